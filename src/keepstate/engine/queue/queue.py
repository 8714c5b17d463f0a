"""Task queue: each task is run at least once and completed exactly once.

Each task has a record and one entry in the index of its state. A claim is a batch that moves the task from
one index to another and checks that no other worker has moved it. A claim that is not renewed expires by the
store's clock, and the task can be claimed again. The token of a claim grows across all tasks with the same
id, so that a worker whose claim expired cannot complete a later task of the same id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import UUID

from keepstate._deferral import defer_imports
from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import (
    check_delay_ms,
    check_duration_ms,
    check_flag,
    check_moment_ms,
    check_name,
    check_wait,
    require_instance,
)
from keepstate.engine.kernel.executor import Executor, OwnedHome
from keepstate.engine.kernel.shield import finish_despite_cancel
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.stored import corrupt_error
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.attempts import attempts_key
from keepstate.engine.queue.claim_requests import ClaimRequest, Match, OnClaim, TaskFilter
from keepstate.engine.queue.claimer import claimer_of
from keepstate.engine.queue.claims import Claims
from keepstate.engine.queue.endings import Ends, fail_task, put_task
from keepstate.engine.queue.listings import decode_task
from keepstate.engine.queue.messages import unread
from keepstate.engine.queue.queue_cache import QueueCache
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.rules import RuleControl
from keepstate.engine.queue.step_calls import RecordedStep, StepCalls, lost_error
from keepstate.engine.queue.step_control import StepControl
from keepstate.engine.queue.step_memory import StepMemory
from keepstate.engine.queue.steps import BeginTransaction, TaskSteps
from keepstate.engine.queue.task_control import TaskControl
from keepstate.engine.queue.task_reads import TaskReads
from keepstate.engine.queue.tasks import (
    DONE_KEPT_MS,
    IfPresent,
    Payload,
    Put,
    TaskRecord,
    check_if_present,
)
from keepstate.errors import InvalidError, LeaseLostError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.queue import worker as _worker
else:
    defer_imports(globals(), _worker="keepstate.engine.queue.worker")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Claim:
    """The proof that a worker holds a task: its id and the claim's token."""

    id: str
    token: int


class Task(TaskSteps, Generic[Payload]):
    """A claimed task, held until its lease expires. `Task[Topic]` tells a type checker that of its payload.

    Attributes:
        id: The task's id.
        payload: A copy of the task's payload.
        attempt: Attempt number, starting at 1.
        max_attempts: The number of failed attempts after which the task is dead.
        token: The fencing token. Each later holder gets a larger one.
        worker: The worker that holds the task.
        lease_s: Seconds from each heartbeat until the lease expires.
        kind: The kind given to `put`.
        key: The key given to `put`.
        space: The name of the space, without its tenant.
        tenant: The tenant that the space belongs to, or None.
        cancelled: Whether this process knows that the task was cancelled. A worker learns it at once.
        traceparent: The `traceparent` of the notes of the put, by `open(meta=…)`; None without one.
        is_dead: Whether `fail` has made the task dead.
    """

    id: str
    payload: Payload
    attempt: int
    max_attempts: int
    token: int
    worker: str | None
    kind: str
    key: str | None
    space: str
    tenant: str | None
    cancelled: bool
    traceparent: str | None
    ended_as: str | None = None
    """The method of this object that has ended the claim; None while the claim is held."""
    is_dead: bool = False

    def __init__(
        self,
        queue: Queue,
        record: TaskRecord,
        payload: Any,
        lease_s: float,
        losses: LossDetector,
        *,
        stored_payload: bytes,
        revision: int = 0,
    ) -> None:
        self._queue, self._losses, self._stored_payload = queue, losses, stored_payload
        self.id, self.attempt, self.token = record.id, record.attempt, record.token
        self.worker, self.payload, self.lease_s = record.worker, payload, lease_s
        self.kind, self.key, self.cancelled = record.kind, record.key, False
        self.traceparent, self.max_attempts = record.traceparent, record.max_attempts
        self._executor, self._begin, self._steps = queue.executor, queue.begin_transaction, StepMemory(record)
        self.space, self.tenant = self._executor.name, self._executor.home.tenant_id
        self._stored = (
            Entry(tasks.task_key(self.id), tasks.encode_record(record), revision, 0) if revision else None
        )
        """The record as this claim wrote it last; None if that is unknown."""

    def __repr__(self) -> str:
        return f"<Task {self.id!r} attempt {self.attempt} of {self.worker!r}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled, because one process holds it. Send Claim(task.id, task.token) "
            "instead, which the methods of a queue accept"
        )

    def _bind_to(self, unit: Unit) -> bool:
        """Return whether the claim was not lost by the store, and make the unit's commit depend on that."""
        if self._losses.has_lost_history:
            return False
        unit.require_no_loss(self._losses)
        return True

    async def heartbeat(self, lease_s: float | None = None, *, progress: object = None) -> None:
        """Renew the lease for `lease_s` seconds from now; see `Queue.heartbeat`."""
        await self._queue.heartbeat(self, self.lease_s if lease_s is None else lease_s, progress=progress)

    async def complete(self, result: object = None) -> None:
        """Complete the task with a result; see `Queue.complete`. Running steps end first.

        Raises:
            InvalidError: The handler has caught `Suspended`.
        """
        await self._prepare_end()
        await self._end("completed", self._queue.complete(self, result))

    async def fail(self, error: object, retry_in_s: float | None = None, *, is_final: bool = False) -> None:
        """Return the task to the queue as failed; see `Queue.fail`. Running steps end first."""
        await self._finish_running()
        await self._end("failed", self._queue.fail(self, error, retry_in_s, is_final=is_final))

    async def release(self) -> None:
        """Return the task to the queue as if it had not been claimed; see `Queue.release`."""
        await self._end("released", self._queue.release(self))

    async def _suspend(
        self,
        wait_s: float | None,
        *,
        messages: Sequence[str],
        after: Sequence[str],
        marks: Mapping[str, bytes],
    ) -> None:
        suspending = self._queue.suspend(self, wait_s, messages=messages, after=after, marks=marks)
        await self._end("waiting", suspending)

    async def _change_steps(
        self, work: Callable[[Unit, TaskRecord, int], Awaitable[T]], known: Mapping[bytes, Entry | None]
    ) -> T:
        return await self._queue.change_steps(self, work, known)

    async def _fence(self, unit: Unit) -> tuple[TaskRecord, int]:
        return await self._queue.held_record(self, unit)

    async def later(self, seconds: float) -> None:
        """Return the task to the queue for some seconds, as if it had not been claimed.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        check_delay_ms("seconds", seconds)
        await self._end("waiting", self._queue.suspend(self, seconds))

    @property
    def executor(self) -> Executor:
        """The executor of the task's space."""
        return self._queue.executor

    async def _end(self, what: str, ending: Awaitable[None]) -> None:
        """End the claim; told before, so that a worker does not take the end for a loss."""
        former, self.ended_as = self.ended_as, what
        try:
            await ending
        except BaseException:  # also a cancellation; raised again
            self.ended_as = former
            raise


class Queue(TaskReads, TaskControl, RuleControl, StepControl):
    """The tasks of a space, or of a transaction on it."""

    def __init__(self, executor: Executor, begin_transaction: BeginTransaction | None = None) -> None:
        super().__init__(executor)
        self._begin_transaction = begin_transaction
        self._claims = Claims(executor)

    @property
    def executor(self) -> Executor:
        """The executor of the space; for its tasks."""
        return self._executor

    @property
    def begin_transaction(self) -> BeginTransaction | None:
        """The function that begins a transaction on the space, for steps; None in a transaction."""
        return self._begin_transaction

    @property
    def _known(self) -> QueueCache:
        return claimer_of(self._executor).known

    def __repr__(self) -> str:
        return f"<Queue of {self._executor.name!r}>"

    # ---- putting

    async def put(
        self,
        payload: object,
        *,
        id: str | None = None,
        kind: str = "",
        key: str | None = None,
        priority: int = 0,
        delay_s: float = 0,
        at: datetime | None = None,
        after: Sequence[str] = (),
        max_attempts: int = 5,
        expires_s: float | None = None,
        keep_s: float | None = DONE_KEPT_MS / 1000,
        if_present: IfPresent = "keep",
    ) -> Put:
        """Add a task. `added` of the result is False if the id had a task already.

        Args:
            payload: The task's payload; any value that the codec stores.
            id: An id that makes the put idempotent, until `keep_s` after the task was completed or cancelled.
            kind: The kind of work, at most 200 bytes of UTF-8, by which workers can claim.
            key: The subject of the work, such as a customer; 1 to 200 bytes of UTF-8. The index has it
                too.
            priority: Tasks with a higher priority are claimed first; equal ones in order of arrival.
            delay_s: Seconds before the task can be claimed.
            at: The time from which the task can be claimed, instead of `delay_s`.
            after: The ids of at most 100 tasks that have to be done before this one. If one of them becomes
                dead or is cancelled, this task becomes dead.
            max_attempts: The number of failed attempts after which the task is dead.
            expires_s: Seconds after which the task is dead unless a worker has begun it.
            keep_s: Seconds for which the task, its payload and its result are stored once it is done or
                cancelled; None for ever.
            if_present: The rule for an id that has a task: `keep` the existing task in any state, `replace`
                it unless a worker holds it, or `raise`.

        Raises:
            AlreadyExistsError: The id has a task, and `if_present` is `raise`.
            NotFoundError: `after` names a task that does not exist.
            TransitionError: A worker holds that task, or other tasks wait for it and this one would wait too,
                and `if_present` is `replace`.
        """
        check_if_present(if_present)
        task_id = str(UUID(bytes=self._executor.clock.random_bytes(16), version=4)) if id is None else id
        if type(priority) is not int or not -(2**31) <= priority < 2**31:
            raise InvalidError(f"`priority` is {priority!r}; it must be an int of 32 bits")
        limits.admit_count("max_attempts", max_attempts)
        wait_ms = check_delay_ms("delay_s", delay_s)
        at_ms = None if at is None else check_moment_ms("at", at)
        if at_ms is not None and wait_ms:
            raise InvalidError("`at` and `delay_s` both say when the task can be claimed; give one of them")
        tasks.task_key(task_id)
        record = TaskRecord(
            task_id, "ready", priority, 0, max_attempts, 0, put_at_ms=0, due_at_ms=wait_ms,
            kind=tasks.check_kind("kind", kind) if kind != "" else "",
            key=None if key is None else tasks.check_kind("key", key),
            keep_ms=None if keep_s is None else check_duration_ms("keep_s", keep_s),
            expires_at_ms=None if expires_s is None else check_duration_ms("expires_s", expires_s),
            waits_for=_check_ids("after", after, task_id) if after else (),
            traceparent=self._executor.traceparent(),
        )  # fmt: skip
        stored = self._executor.encode(payload, tasks.payload_key(task_id))

        async def work(unit: Unit) -> Put:
            return await put_task(self._executor, unit, record, stored, if_present, at_ms=at_ms)

        if self._executor.gathers:
            return (await self._executor.run(work))[0]
        # A delay counts from the space's present time, which only the store knows exactly.
        is_timed = wait_ms or at_ms is not None or expires_s is not None
        supposed = {} if is_timed or record.waits_for else {tasks.task_key(task_id): None}
        return (await self._known.change(self._executor, work, task_id, supposed))[0]

    # ---- claiming

    async def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        count: int = 1,
        wait_s: float = 0,
        match: Match | None = None,
        kinds: Sequence[str] | None = None,
    ) -> list[Task]:
        """Claim up to `count` tasks for a worker, and return them; an empty list if there are none.

        A task that cannot be read, for example because its class is of newer code, is skipped with a logged
        warning. If `match` raises or the call is cancelled, the tasks claimed so far are released.

        Args:
            worker: The name of the worker.
            lease_s: Seconds until the lease expires, unless a heartbeat renews it.
            count: The largest number of tasks to claim.
            wait_s: Seconds to wait for the first task.
            match: A function of a task's id and payload that returns whether to claim the task.
            kinds: The kinds of tasks to claim, which costs nothing; the default is all.

        Raises:
            InvalidError: There are only tasks that this process cannot read, and there is no `match`.
        """
        choice: TaskFilter | None = None
        if match is not None:
            self._executor.reject_coroutine(match)
            choice = partial(_match_without_documents, match)
        return await self.claim_with(
            worker,
            lease_s=lease_s,
            count=count,
            wait_s=wait_s,
            match=choice,
            on_claim=None,
            kinds=kinds,
        )

    async def claim_with(
        self,
        worker: str,
        *,
        lease_s: float,
        count: int = 1,
        wait_s: float = 0,
        match: TaskFilter | None,
        on_claim: OnClaim | None,
        documents: Sequence[str] = (),
        kinds: Sequence[str] | None = None,
    ) -> list[Task]:
        """Claim tasks, and add the writes of `on_claim` to the same batch; for the layers above the engine.

        If another worker gets the task, none of the writes are applied. With a `match`, the documents are
        read together with the tasks.
        """
        self._executor.require_outside_transaction("claiming a task")
        worker, lease_ms = check_name("worker", worker), check_duration_ms("lease_s", lease_s)
        check_wait("wait_s", wait_s)
        limits.admit_count("count", count)
        wanted = None if kinds is None else frozenset(_check_kinds(kinds))
        losses = await self._executor.loss_detector()
        claimed = await self._claims.claim(
            ClaimRequest(worker, lease_ms, losses, count, wait_s, match, documents, on_claim, wanted)
        )
        return [
            Task(self, record, payload, lease_s, losses, stored_payload=stored, revision=revision)
            for record, payload, stored, revision in claimed
        ]

    async def next_look_s(self) -> float:
        """Return the seconds until a task may become claimable by itself; for workers over many spaces."""
        return await self._claims.next_look_s()

    async def take(self, id: str, worker: str, *, lease_s: float) -> Task:
        """Claim one task by its id, regardless of order and delay, and return it.

        Raises:
            ConflictError: A worker holds the task.
            NotFoundError: No task has this id.
            TransitionError: The task has ended, became dead because its last attempt's lease expired, or
                waits for other tasks.
        """
        tasks.task_key(id)
        worker, lease_ms = check_name("worker", worker), check_duration_ms("lease_s", lease_s)
        losses = await self._executor.loss_detector()
        record, payload, stored, revision = await self._claims.take(
            id, ClaimRequest(worker, lease_ms, losses)
        )
        return Task(self, record, payload, lease_s, losses, stored_payload=stored, revision=revision)

    async def work(
        self,
        worker: str,
        *,
        lease_s: float = 60,
        wait_s: float | None = None,
        match: Match | None = None,
        kinds: Sequence[str] | None = None,
    ) -> AsyncIterator[Task]:
        """Yield tasks one by one, each claimed on demand. Raises the errors of `claim`.

        Args:
            worker: The name of the worker.
            lease_s: Seconds until the lease of each task expires.
            wait_s: End the iteration after this many seconds without a task. The default never ends.
            match: As for `claim`.
            kinds: As for `claim`.
        """
        while True:
            found = await self.claim(
                worker, lease_s=lease_s, wait_s=60.0 if wait_s is None else wait_s, match=match, kinds=kinds
            )
            if not found and wait_s is not None:
                return
            for task in found:
                yield task

    async def run(
        self,
        handlers: _worker.Handler | Mapping[str, _worker.Handler],
        *,
        concurrency: int = 10,
        lease_s: float = 60,
        timeout_s: float | None = None,
        drain_s: float = 30,
        retry: Retry | None = None,
        worker: str | None = None,
        stop: _worker.StopEvent | None = None,
        idle_s: float | None = None,
    ) -> _worker.RunReport:
        """Claim tasks and call their handlers, until the process is asked to stop by SIGTERM or SIGINT.

        A handler is a function of the `Task`. A coroutine function runs in the event loop, a plain function
        in a thread, where the methods of the task block. What the handler returns is the result of the task.
        If it raises, the task fails, and is tried again by `retry`. Leases are renewed by a thread of their
        own. If the task is cancelled or lost, the handler is cancelled, and what it returns is dropped.

        A signal that the application handles itself is left to it; set `stop` then. At the end, handlers have
        `drain_s` to finish. Tasks that are left are released, which uses no attempt.

        Args:
            handlers: A handler for all tasks, or handlers by kind. Tasks of other kinds are not claimed.
            concurrency: The largest number of tasks at once.
            lease_s: Seconds after which another worker may claim a task of this one if this one has died.
            timeout_s: Seconds after which an attempt fails. A thread cannot be ended: its result is dropped.
            drain_s: Seconds that handlers have to finish at the end.
            retry: The rules for errors, instead of those of `configure`. Without any, it pauses for 1, 2, 4 …
                seconds, up to 5 minutes.
            worker: The name of the worker. Default: the process and the machine.
            stop: An `Event` that ends the worker once it is set.
            idle_s: End the worker after this many seconds without a task.

        Raises:
            ClosedError: The handle was closed.
        """
        self._executor.require_outside_transaction("running a worker")
        options = _worker.check_options(
            handlers, concurrency=concurrency, lease_s=lease_s, timeout_s=timeout_s, drain_s=drain_s,
            retry=retry, worker=worker, stop=stop, idle_s=idle_s,
        )  # fmt: skip
        home, executor = self._executor.home, self._executor
        if home.runner.mode == "async":
            return await _worker.Worker(home, self.claim, options).run()

        async def work(handle: OwnedHome, options: _worker.WorkerOptions) -> _worker.RunReport:
            queue: Queue = handle.space(executor.name, author=executor.author).queue
            return await _worker.Worker(handle, queue.claim, options).run()

        return _worker.run_in_loop(home, work, options)

    # ---- calls of a holder

    async def heartbeat(self, task: Task | Claim, lease_s: float, *, progress: object = None) -> None:
        """Renew the lease of a task for `lease_s` seconds from now.

        Args:
            task: The task, or its claim.
            lease_s: Seconds until the lease expires.
            progress: A value of at most 4 KiB that listings show, for example how far the work is. None
                leaves the last one.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        lease_ms = check_duration_ms("lease_s", lease_s)
        require_instance("task", task, Task, Claim)
        told: dict[str, Any] = {}
        if progress is not None:
            told["progress"] = self._executor.encode(progress, tasks.task_key(task.id))
            if len(told["progress"]) > limits.PROGRESS_BYTES:
                raise InvalidError(
                    f"`progress` has {len(told['progress'])} bytes; it may have {limits.PROGRESS_BYTES}"
                )

        async def change(unit: Unit, record: TaskRecord) -> None:
            tasks.move(unit, record, "claimed", due_at_ms=await unit.now_ms() + lease_ms, **told)

        await self._change_held(task, change)

    async def complete(self, task: Task | Claim, result: object = None) -> None:
        """Complete a task with a result. Completing it again under the same claim does nothing.

        A transaction that completes it again is rejected, because its other writes were made before.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        stored = None if result is None else self._executor.encode(result, tasks.result_key(task.id))
        payload = task._stored_payload if isinstance(task, Task) else None  # pyright: ignore[reportPrivateUsage]
        ends = Ends(self._executor)

        async def change(unit: Unit, record: TaskRecord) -> None:
            if stored is not None:
                unit.put(tasks.result_key(record.id), stored, ttl_ms=record.keep_ms)
            await ends.end(
                unit, record, "done", payload=payload, due_at_ms=await unit.now_ms(), error=None,
                has_result=stored is not None,
            )  # fmt: skip

        await self._change_held(task, change, is_idempotent=True)
        await ends.resume()

    async def fail(
        self, task: Task | Claim, error: object, retry_in_s: float | None = None, *, is_final: bool = False
    ) -> None:
        """Return a task to the queue as failed, to be retried later; dead if its attempts are used up.

        Args:
            task: The task, or its claim.
            error: The error; stored as text, cut to 16 KiB.
            retry_in_s: Seconds until the task can be claimed again. The default is decided by the `retry` of
                `configure`: 1 s, 2 s, 4 s … up to 5 minutes, and a tenth more or less, unless it was set.
            is_final: Whether the task is dead at once, because another attempt cannot succeed.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        require_instance("task", task, Task, Claim)
        given_ms = None if retry_in_s is None else check_delay_ms("retry_in_s", retry_in_s)
        check_flag("is_final", is_final)
        ends, spread, is_dead = Ends(self._executor), self._executor.clock.spread(), False

        async def change(unit: Unit, record: TaskRecord) -> None:
            nonlocal is_dead
            is_dead = await fail_task(ends, unit, record, error, given_ms, spread, is_final=is_final)

        rules = (layout.QUEUE_RULES,) if given_ms is None and not is_final else ()
        await self._change_held(task, change, also=(attempts_key(task.id), *rules))
        if isinstance(task, Task):
            task.is_dead = is_dead
        await ends.resume()

    async def release(self, task: Task | Claim) -> None:
        """Return a task to the queue as if it had not been claimed, after the others of its priority.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """

        async def change(unit: Unit, record: TaskRecord) -> None:
            tasks.move(unit, record, "ready", attempt=record.attempt - 1, due_at_ms=await unit.now_ms())

        await self._change_held(task, change)

    async def suspend(
        self,
        task: Task | Claim,
        wait_s: float | None,
        *,
        messages: Sequence[str] = (),
        after: Sequence[str] = (),
        marks: Mapping[str, bytes] | None = None,
    ) -> None:
        """Return a task to the queue until something happens, as if it had not been claimed.

        The task becomes ready after `wait_s`, with the first message of one of the names, or when all of the
        other tasks have ended, however. If one of these is the case already, it is ready at once.

        Args:
            task: The task, or its claim.
            wait_s: Seconds after which it becomes ready in any case; None for never.
            messages: The names of messages.
            after: The ids of tasks. One that does not exist has ended.
            marks: Keys of entries, by the name that the task waits on. If one of them is absent already, the
                task is ready at once. The batch that deletes one of them wakes the task by the name.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        wait_ms = None if wait_s is None else check_delay_ms("wait_s", wait_s)

        async def change(unit: Unit, record: TaskRecord) -> None:
            now_ms = await unit.now_ms()
            due_at_ms = tasks.FOREVER_MS if wait_ms is None else now_ms + wait_ms
            record = tasks.replaced(
                record, attempt=record.attempt - 1, due_at_ms=due_at_ms, is_suspended=True,
                waits_for=tuple(after), waits_on=(*messages, *(marks or ())),
            )  # fmt: skip
            has_message = marks is not None and None in await unit.read(*marks.values())
            for name in messages:
                has_message = has_message or bool(await unread(self._executor, unit, record, name))
            if after:
                record, _ = await followers.follow(self._executor, unit, record, is_new=False)
            if has_message or due_at_ms <= now_ms or (after and not record.waits_for):
                followers.wake(unit, record, now_ms)
            else:
                tasks.move(unit, record, "waiting")

        await self._change_held(task, change)

    async def _change_held(
        self,
        task: Task | Claim,
        change: Callable[[Unit, TaskRecord], Awaitable[None]],
        *,
        is_idempotent: bool = False,
        also: Sequence[bytes] = (),
    ) -> None:
        _check_claim("task", task, Task, Claim)
        key = tasks.task_key(task.id)

        async def work(unit: Unit) -> None:
            if isinstance(task, Task) and not task._bind_to(unit):  # pyright: ignore[reportPrivateUsage]
                raise self._lost_error(task, None)
            entry = (await unit.read(key, *also))[0]
            record = None if entry is None else self._record(entry)
            if record is None or record.token != task.token or record.state != "claimed":
                is_repeated = record is not None and record.state == "done" and record.token == task.token
                # A transaction would repeat its other writes, so only its own completion makes this a no-op.
                if is_idempotent and is_repeated and (not self._executor.gathers or _is_unwritten(entry)):
                    return
                raise self._lost_error(task, record)
            await change(unit, record)

        if self._executor.gathers:
            await self._executor.run(work)
            return

        async def once() -> None:
            stored = task._stored if isinstance(task, Task) else None  # pyright: ignore[reportPrivateUsage]
            if isinstance(task, Task):
                task._stored = None  # pyright: ignore[reportPrivateUsage]
            # A lease or a delay counts from the space's present time, which only the store knows exactly.
            supposed = {key: stored} if stored is not None and is_idempotent else {}
            _, written = await self._known.change(self._executor, work, task.id, supposed)
            if isinstance(task, Task):
                task._stored = written  # pyright: ignore[reportPrivateUsage]

        await finish_despite_cancel(self._executor.runner, once)

    # ---- a holder elsewhere

    async def attach(self, claim: Claim, *, lease_s: float = 60) -> Task:
        """Return the task that a claim holds, for a worker that has only the claim.

        Use one object for one attempt: only it knows which names of steps the attempt has used.

        Args:
            claim: The id of the task and the token of its claim.
            lease_s: The default of the object's heartbeats. The lease itself stays.

        Raises:
            LeaseLostError: The claim no longer holds the task.
        """
        _check_claim("claim", claim, Claim)
        check_duration_ms("lease_s", lease_s)
        losses = await self._executor.loss_detector()
        task_key, payload_key = tasks.task_key(claim.id), tasks.payload_key(claim.id)

        async def work(unit: Unit) -> tuple[TaskRecord, bytes]:
            entry, payload = await unit.read(task_key, payload_key)
            record = None if entry is None else self._record(entry)
            if record is None or record.token != claim.token or record.state != "claimed":
                raise self._lost_error(claim, record)
            if payload is None:
                raise corrupt_error(f"task {claim.id!r} of {self._executor.name!r}", "its payload is lost")
            return record, await unit.value(payload)

        record, stored = (await self._executor.run(work))[0]
        payload = decode_value(self._executor, payload_key, stored)
        return Task(self, record, payload, lease_s, losses, stored_payload=stored)

    async def begin_step(self, claim: Claim, name: str, *, once: bool = False) -> RecordedStep:
        """Return the recorded result of a step, or let a worker elsewhere run it and call `record_step`.

        Again under the same claim, it gives the same answer. A worker uses each name once in an attempt.

        Args:
            claim: The id of the task and the token of its claim.
            name: The name of the step.
            once: Record the intent first. If the attempt ends before the result is recorded, the next one
                gets `StepUnknownError` until `settle`.

        Raises:
            InvalidError: The task has too many steps, or another kind of step with this name.
            LeaseLostError: The claim no longer holds the task.
            StepUnknownError: The step was begun with `once`, and whether it was done is unknown.
        """
        check_flag("once", once)
        return await self._step_calls(claim, name).begin(once=once)

    async def record_step(self, claim: Claim, name: str, result: object) -> RecordedStep:
        """Record the result of a step that a worker elsewhere has run, and return the recorded one.

        A result that is recorded already stays.

        Raises:
            InvalidError: As for `begin_step`, or the result cannot be stored.
            LeaseLostError: The claim no longer holds the task. Nothing was recorded.
            StepUnknownError: Another attempt has begun the step with `once`.
        """
        return await self._step_calls(claim, name).record(result)

    def _step_calls(self, claim: Claim, name: str) -> StepCalls:
        _check_claim("claim", claim, Claim)
        return StepCalls(self._executor, claim.id, claim.token, name)

    async def change_steps(
        self,
        task: Task,
        change: Callable[[Unit, TaskRecord, int], Awaitable[T]],
        known: Mapping[bytes, Entry | None],
    ) -> T:
        """Run work in a batch that commits only while a claim holds its task; for the steps of the task.

        Args:
            task: The task.
            change: The work, given the task's record and its version.
            known: Entries by key that the work reads, as this process knows them; empty to read at once.
        """
        answers: list[T] = []

        async def work(unit: Unit) -> None:
            answers.clear()
            await unit.read(tasks.task_key(task.id), *known)
            answers.append(await change(unit, *await self.held_record(task, unit)))

        async def once() -> None:
            stored = task._stored  # pyright: ignore[reportPrivateUsage]
            supposed = {} if stored is None or not known else {stored.key: stored, **known}
            _, written = await self._known.change(self._executor, work, task.id, supposed)
            if written is not None:
                task._stored = written  # pyright: ignore[reportPrivateUsage]

        await finish_despite_cancel(self._executor.runner, once)
        return answers[-1]

    async def held_record(self, task: Task, unit: Unit) -> tuple[TaskRecord, int]:
        """Return the record of a task with its version, and make the commit depend on the claim.

        Raises:
            LeaseLostError: The claim no longer holds the task.
        """
        if not task._bind_to(unit):  # pyright: ignore[reportPrivateUsage]
            raise self._lost_error(task, None)
        entry = await unit.get(tasks.task_key(task.id))
        record = None if entry is None else self._record(entry)
        if entry is None or record is None or record.token != task.token or record.state != "claimed":
            raise self._lost_error(task, record)
        return record, entry.version

    def _lost_error(self, task: Task | Claim, record: TaskRecord | None) -> LeaseLostError:
        if isinstance(task, Task) and record is not None and record.token == task.token:
            task.cancelled = task.cancelled or record.state == "cancelled"
        return lost_error(self._executor, task.id, task.token, record)

    def _record(self, entry: Entry) -> TaskRecord:
        return decode_task(self._executor, entry)


def _check_ids(what: str, ids: object, own: str) -> tuple[str, ...]:
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise InvalidError(f"`{what}` is {ids!r}; give a list of ids")
    given = tuple(dict.fromkeys(cast("Sequence[str]", ids)))
    for id in given:
        tasks.task_key(id)
    if own in given:
        raise InvalidError(f"`{what}` names {own!r} itself; a task cannot wait for its own end")
    if len(given) > limits.AFTER_TASKS:
        raise InvalidError(f"`{what}` names {len(given)} tasks; it may name {limits.AFTER_TASKS}")
    return given


def _check_kinds(kinds: Sequence[str]) -> list[str]:
    if isinstance(kinds, str) or not kinds:
        raise InvalidError(f"`kinds` is {kinds!r}; give a list of kinds, or None for all")
    return [tasks.check_kind("kinds", kind) if kind != "" else "" for kind in kinds]


def _match_without_documents(match: Match, task_id: str, payload: Any, _: Mapping[str, Any]) -> bool:
    return match(task_id, payload)


def _check_claim(what: str, given: Any, *kinds: type) -> None:
    """Raise `InvalidError` unless an argument is of one of these classes, with the token of a claim."""
    require_instance(what, given, *kinds)
    if type(given.token) is not int:
        raise InvalidError(f"`token` of {given!r} is {given.token!r}; give the token of a claim")


def _is_unwritten(entry: Entry | None) -> bool:
    return entry is not None and entry.version == UNWRITTEN
