"""Task queue: each task is run at least once and completed exactly once.

Each task has a record and one entry in the index of its state. A claim is a batch that moves the task from
one index to another and checks that no other worker has moved it. A claim that is not renewed expires by the
store's clock, and the task can be claimed again. The token of a claim grows across all tasks with the same
id, so that a worker whose claim expired cannot complete a later task of the same id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import (
    check_delay_ms,
    check_duration_ms,
    check_flag,
    check_name,
    check_text,
    check_wait,
    require_instance,
)
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.shield import finish_despite_cancel
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.claimer import ClaimRequest, Match, OnClaim, QueueCache, TaskFilter, claimer_of
from keepstate.engine.queue.claims import Claims
from keepstate.engine.queue.listings import (
    StateSummary,
    count_tasks,
    decode_task,
    list_tasks,
    read_tasks,
    summaries,
)
from keepstate.engine.queue.tasks import (
    DONE_KEPT_MS,
    STATES,
    IfPresent,
    Put,
    TaskInfo,
    TaskRecord,
    TaskState,
    check_if_present,
    erase_task,
    put_task,
)
from keepstate.errors import InvalidError, LeaseLostError, NotFoundError, TransitionError
from keepstate.stores.protocol import Entry
from keepstate.values import limits


@dataclass(frozen=True, slots=True)
class Claim:
    """The proof that a worker holds a task: its id and the claim's token."""

    id: str
    token: int


class Task:
    """A claimed task, held until its lease expires.

    Attributes:
        id: The task's id.
        payload: A copy of the task's payload.
        attempt: Attempt number, starting at 1.
        token: The fencing token. Each later holder gets a larger one.
        worker: The worker that holds the task.
        lease_s: Seconds from each heartbeat until the lease expires.
        kind: The kind given to `put`.
        key: The key given to `put`.
    """

    id: str
    attempt: int
    token: int
    worker: str | None
    kind: str
    key: str | None

    def __init__(
        self,
        queue: Queue,
        record: TaskRecord,
        payload: Any,
        lease_s: float,
        losses: LossDetector,
        *,
        revision: int = 0,
    ) -> None:
        self._queue, self._losses = queue, losses
        self.id, self.attempt, self.token = record.id, record.attempt, record.token
        self.worker, self.payload, self.lease_s = record.worker, payload, lease_s
        self.kind, self.key = record.kind, record.key
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

    async def heartbeat(self, lease_s: float | None = None) -> None:
        """Renew the lease for `lease_s` seconds from now; see `Queue.heartbeat`."""
        await self._queue.heartbeat(self, self.lease_s if lease_s is None else lease_s)

    async def complete(self, result: object = None) -> None:
        """Complete the task with a result; see `Queue.complete`."""
        await self._queue.complete(self, result)

    async def fail(self, error: object, retry_in_s: float | None = None) -> None:
        """Return the task to the queue as failed; see `Queue.fail`."""
        await self._queue.fail(self, error, retry_in_s)

    async def release(self) -> None:
        """Return the task to the queue as if it had not been claimed; see `Queue.release`."""
        await self._queue.release(self)


class Queue:
    """The tasks of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._claims = Claims(executor)

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
        max_attempts: int = 5,
        keep_s: float | None = DONE_KEPT_MS / 1000,
        if_present: IfPresent = "keep",
    ) -> Put:
        """Add a task. `added` of the result is False if the id had a task already.

        Args:
            payload: The task's payload; any value that the codec stores.
            id: An id that makes the put idempotent, until `keep_s` after the task was completed.
            kind: The kind of work, at most 200 bytes of UTF-8, by which workers can claim.
            key: The subject of the work, such as a customer; 1 to 200 bytes of UTF-8. The index has it
                too.
            priority: Tasks with a higher priority are claimed first; equal ones in order of arrival.
            delay_s: Seconds before the task can be claimed.
            max_attempts: The number of failed attempts after which the task is dead.
            keep_s: Seconds for which the task and its result are stored once it is done; None for ever.
            if_present: The rule for an id that has a task: `keep` the existing task in any state, `replace`
                it unless a worker holds it, or `raise`.

        Raises:
            AlreadyExistsError: The id has a task, and `if_present` is `raise`.
            TransitionError: A worker holds that task, and `if_present` is `replace`.
        """
        check_if_present(if_present)
        task_id = str(UUID(bytes=self._executor.clock.random_bytes(16), version=4)) if id is None else id
        if type(priority) is not int or not -(2**31) <= priority < 2**31:
            raise InvalidError(f"`priority` is {priority!r}; it must be an int of 32 bits")
        limits.admit_count("max_attempts", max_attempts)
        wait_ms = check_delay_ms("delay_s", delay_s)
        tasks.task_key(task_id)
        state: TaskState = "waiting" if wait_ms else "ready"
        record = TaskRecord(
            task_id, state, priority, 0, max_attempts, 0, put_at_ms=0, due_at_ms=wait_ms,
            kind=tasks.check_kind("kind", kind) if kind != "" else "",
            key=None if key is None else tasks.check_kind("key", key),
            keep_ms=None if keep_s is None else check_duration_ms("keep_s", keep_s),
        )  # fmt: skip
        stored = self._executor.encode(payload, tasks.payload_key(task_id))

        async def work(unit: Unit) -> Put:
            return await put_task(self._executor, unit, record, stored, if_present)

        if self._executor.gathers:
            return (await self._executor.run(work))[0]
        # A delay counts from the space's present time, which only the store knows exactly.
        supposed = {} if wait_ms else {tasks.task_key(task_id): None}
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
            Task(self, record, payload, lease_s, losses, revision=revision)
            for record, payload, revision in claimed
        ]

    async def take(self, id: str, worker: str, *, lease_s: float) -> Task:
        """Claim one task by its id, regardless of order and delay, and return it.

        Raises:
            ConflictError: A worker holds the task.
            NotFoundError: No task has this id.
            TransitionError: The task is done or dead, or became dead because its last attempt's lease
                expired.
        """
        tasks.task_key(id)
        worker, lease_ms = check_name("worker", worker), check_duration_ms("lease_s", lease_s)
        losses = await self._executor.loss_detector()
        record, payload, revision = await self._claims.take(id, ClaimRequest(worker, lease_ms, losses))
        return Task(self, record, payload, lease_s, losses, revision=revision)

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

    # ---- calls of a holder

    async def heartbeat(self, task: Task | Claim, lease_s: float) -> None:
        """Renew the lease of a task for `lease_s` seconds from now.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def change(unit: Unit, record: TaskRecord) -> None:
            tasks.move(unit, record, "claimed", due_at_ms=await unit.now_ms() + lease_ms)

        await self._change_held(task, change)

    async def complete(self, task: Task | Claim, result: object = None) -> None:
        """Complete a task with a result. Completing it again under the same claim does nothing.

        A transaction that completes it again is rejected, because its other writes were made before.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        stored = None if result is None else self._executor.encode(result, tasks.result_key(task.id))

        async def change(unit: Unit, record: TaskRecord) -> None:
            unit.delete(tasks.payload_key(record.id))
            if stored is not None:
                unit.put(tasks.result_key(record.id), stored, ttl_ms=record.keep_ms)
            now_ms = await unit.now_ms()
            tasks.move(unit, record, "done", due_at_ms=now_ms, error=None, has_result=stored is not None)

        await self._change_held(task, change, is_idempotent=True)

    async def fail(self, task: Task | Claim, error: object, retry_in_s: float | None = None) -> None:
        """Return a task to the queue as failed, to be retried later; dead if its attempts are used up.

        Args:
            task: The task, or its claim.
            error: The error; stored as text, cut to 16 KiB.
            retry_in_s: Seconds until the task can be claimed again. The default is 1 s, 2 s, 4 s … up to 5
                minutes.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        text = tasks.format_error(error)
        given_ms = None if retry_in_s is None else check_delay_ms("retry_in_s", retry_in_s)

        async def change(unit: Unit, record: TaskRecord) -> None:
            now_ms = await unit.now_ms()
            if record.attempt >= record.max_attempts:
                tasks.move(unit, record, "dead", due_at_ms=now_ms, error=text)
                return
            wait_ms = tasks.retry_delay_ms(record.attempt) if given_ms is None else given_ms
            state: TaskState = "waiting" if wait_ms else "ready"
            tasks.move(unit, record, state, due_at_ms=now_ms + wait_ms, error=text)

        await self._change_held(task, change)

    async def release(self, task: Task | Claim) -> None:
        """Return a task to the queue as if it had not been claimed, after the others of its priority.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """

        async def change(unit: Unit, record: TaskRecord) -> None:
            tasks.move(unit, record, "ready", attempt=record.attempt - 1, due_at_ms=await unit.now_ms())

        await self._change_held(task, change)

    async def _change_held(
        self,
        task: Task | Claim,
        change: Callable[[Unit, TaskRecord], Awaitable[None]],
        *,
        is_idempotent: bool = False,
    ) -> None:
        require_instance("task", task, Task, Claim)
        if type(task.token) is not int:
            raise InvalidError(f"`token` of {task!r} is {task.token!r}; give the token of a claim")
        key = tasks.task_key(task.id)

        async def work(unit: Unit) -> None:
            if isinstance(task, Task) and not task._bind_to(unit):  # pyright: ignore[reportPrivateUsage]
                raise self._lost_error(task, None)
            entry = await unit.get(key)
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

    def _lost_error(self, task: Task | Claim, record: TaskRecord | None) -> LeaseLostError:
        now = "deleted"
        if record is not None:
            now = record.state if record.token == task.token else "claimed by another worker"
        return LeaseLostError(
            f"task {task.id!r} of {self._executor.name!r} is no longer held by this claim (now: {now}). "
            "Stop working on it",
            space=self._executor.name,
            name=task.id,
            token=task.token,
        )

    def _record(self, entry: Entry) -> TaskRecord:
        return decode_task(self._executor, entry)

    # ---- reading

    async def counts(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state, all at one revision, in one read.

        Inside a transaction it reads the index of all tasks.
        """
        if not self._executor.gathers:
            return await count_tasks(await self._executor.store(), self._executor.stored_name)
        found: dict[TaskState, int] = {
            state: len([entry async for entry in self._executor.scan(layout.INDEXES[state])])
            for state in STATES
        }
        found["ready"] += len(self._executor.appended_under(layout.READY))
        return found

    async def summaries(
        self, prefix: str = "", *, newest: int = 100, payloads: bool = False
    ) -> dict[TaskState, StateSummary]:
        """Return the number of tasks in each state, all at one revision, and the newest tasks of each.

        The newest tasks are read after that revision. The rest reads the index of all tasks in pages of
        1,024, and holds their keys in memory.

        Args:
            prefix: Include only tasks whose ids start with this prefix.
            newest: The largest number of tasks per state: those that entered it last, the latest first.
            payloads: Whether to read the payloads too.

        Raises:
            CompactedError: More was written during the reads than the log holds.
        """
        if newest != 0 or type(newest) is not int:
            limits.admit_count("newest", newest)
        return await summaries(
            self._executor, prefix=check_text("prefix", prefix), newest=newest, payloads=payloads
        )

    async def list(
        self,
        state: TaskState | None = None,
        *,
        id_prefix: str | None = None,
        after: str | None = None,
        before: str | None = None,
        reverse: bool = False,
        limit: int = 100,
        payloads: bool = False,
    ) -> Sequence[TaskInfo]:
        """Return tasks: ready ones in the order of claiming, those of another state by time.

        With `id_prefix`, or without a state, the order is that of the ids, and the records of all tasks with
        that prefix are read.

        Args:
            state: `ready`, `waiting`, `claimed`, `done` or `dead`; the default is all.
            id_prefix: List only tasks whose ids start with this text.
            after: Only tasks after the one with this `cursor`. In another process, verifying the cursor costs
                one additional read.
            before: Only tasks before the one with this `cursor`.
            reverse: Whether to return the last task first. To read on, pass the last cursor as `before`.
            limit: The largest number of tasks to return.
            payloads: Whether to read the payloads too.

        Raises:
            CompactedError: The log no longer reaches back to the page of a cursor from another process.
            HistoryLostError: The store lost the history that the cursor belongs to.
            InvalidError: The cursor belongs to another space, state or order.
        """
        if state is not None and state not in STATES:
            raise InvalidError(f"`state` is {state!r}; it is one of {', '.join(STATES)}")
        limits.admit_count("limit", limit)
        return await list_tasks(
            self._executor,
            state,
            id_prefix=id_prefix,
            after=after,
            before=before,
            reverse=reverse,
            limit=limit,
            payloads=payloads,
        )

    async def dead(self, *, after: str | None = None, limit: int = 100) -> Sequence[TaskInfo]:
        """Return the tasks whose attempts are used up; `requeue` makes one ready again."""
        return await self.list("dead", after=after, limit=limit)

    async def get(self, id: str, *, payload: bool = False) -> TaskInfo | None:
        """Return one task, or None if no task has this id; with `payload=True`, including its payload."""
        return (await self.get_each(id, payloads=check_flag("payload", payload)))[0]

    async def get_each(self, *ids: str, payloads: bool = False) -> Sequence[TaskInfo | None]:
        """Return tasks in the order of the given ids, all at one revision; None if a task does not exist.

        Args:
            ids: At most 1,000 ids.
            payloads: Whether to read the payloads too.
        """
        for id in ids:
            tasks.task_key(id)
        cursors = dict.fromkeys(ids)
        found = await read_tasks(self._executor, cursors, payloads=check_flag("payloads", payloads))
        by_id = dict(zip(cursors, found, strict=True))
        return [by_id[id] for id in ids]

    async def requeue(self, id: str) -> None:
        """Make a dead task ready again, with all its attempts.

        Raises:
            NotFoundError: No dead task has this id.
        """

        async def work(unit: Unit) -> None:
            entry = await unit.get(tasks.task_key(id))
            record = None if entry is None else self._record(entry)
            if record is None or record.state != "dead":
                raise NotFoundError(f"no dead task of {self._executor.name!r} has the id {id!r}; see dead()")
            tasks.move(unit, record, "ready", attempt=0, due_at_ms=await unit.now_ms())

        await self._executor.run(work)

    async def remove(self, id: str) -> bool:
        """Delete a done or dead task, and return whether it existed. Its id can be used again.

        Raises:
            TransitionError: The task is not done or dead.
        """
        return await self._remove(id, only_finished=True)

    async def discard(self, id: str) -> bool:
        """Delete a task in any state, and return whether it existed. A worker that holds it loses it."""
        return await self._remove(id, only_finished=False)

    async def _remove(self, id: str, *, only_finished: bool) -> bool:
        async def work(unit: Unit) -> bool:
            entry = await unit.get(tasks.task_key(id))
            if entry is None:
                return False
            record = self._record(entry)
            if only_finished and record.state not in ("done", "dead"):
                raise TransitionError(
                    f"task {id!r} of {self._executor.name!r} is {record.state}, not done or dead. Call "
                    "discard() to delete it in any state",
                    current=record.state,
                    wanted="removed",
                )
            erase_task(unit, entry, record)
            return True

        return (await self._executor.run(work))[0]


def _check_kinds(kinds: Sequence[str]) -> list[str]:
    if isinstance(kinds, str) or not kinds:
        raise InvalidError(f"`kinds` is {kinds!r}; give a list of kinds, or None for all")
    return [tasks.check_kind("kinds", kind) if kind != "" else "" for kind in kinds]


def _match_without_documents(match: Match, task_id: str, payload: Any, _: Mapping[str, Any]) -> bool:
    return match(task_id, payload)


def _is_unwritten(entry: Entry | None) -> bool:
    return entry is not None and entry.version == UNWRITTEN
