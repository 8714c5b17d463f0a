"""A queue of tasks: at least once to run, exactly once to complete.

Each task has a record and one entry in the index of its state. To claim one is a batch that moves it from one
index to another and checks that nobody else has moved it; a claim that is not renewed runs out by the store's
clock, and the task can be claimed again. The token of a claim is a revision of the space: it grows over all
lives of an id, so that a holder whose claim ran out cannot complete a later task of the same id either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_flag, check_name, check_text, require_instance
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.shield import finish_despite_cancel
from keepstate.engine.kernel.times import check_delay_ms, check_duration_ms, check_wait
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.claims import ClaimRequest, Claims, Match, OnClaim, TaskFilter, without_documents
from keepstate.engine.queue.counts import count_tasks
from keepstate.engine.queue.due_tasks import store_task
from keepstate.engine.queue.insertion import IfPresent, admit_if_present, erase_task, put_task
from keepstate.engine.queue.listings import StateSummary, listed, read_tasks, record_of, summaries
from keepstate.engine.queue.tasks import DONE_KEPT_MS, STATES, Put, TaskInfo, TaskRecord, TaskState
from keepstate.errors import InvalidError, LeaseLostError, NotFoundError, TransitionError
from keepstate.stores.protocol import Entry
from keepstate.values import limits


@dataclass(frozen=True, slots=True)
class Claim:
    """What proves that a worker holds a task."""

    id: str
    token: int


class Task:
    """A claimed task, held until its lease ends.

    Attributes:
        id: Its name.
        payload: What it is about; a copy.
        attempt: The how-manieth time it is claimed; 1 for the first.
        token: Fences this holder from later ones: each has a higher one.
        worker: Who holds it.
        lease_s: For how long it is held from each heartbeat on, in seconds.
    """

    id: str
    attempt: int
    token: int
    worker: str | None

    def __init__(
        self, queue: Queue, record: TaskRecord, payload: Any, lease_s: float, losses: LossDetector
    ) -> None:
        self._queue, self._losses = queue, losses
        self.id, self.attempt, self.token = record.id, record.attempt, record.token
        self.worker, self.payload, self.lease_s = record.worker, payload, lease_s

    def __repr__(self) -> str:
        return f"<Task {self.id!r} attempt {self.attempt} of {self.worker!r}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: it is held by one process; send Claim(task.id, task.token), which "
            "the methods of a queue take in its place"
        )

    def _is_known_to(self, unit: Unit) -> bool:
        """Whether the store has not forgotten the claim; the unit then commits only if it still has not."""
        if self._losses.has_lost_history:
            return False
        unit.require_no_loss(self._losses)
        return True

    async def heartbeat(self, lease_s: float | None = None) -> None:
        """Hold the task for `lease_s` from now on; see `Queue.heartbeat`."""
        await self._queue.heartbeat(self, self.lease_s if lease_s is None else lease_s)

    async def complete(self, result: object = None) -> None:
        """End the task with its result; see `Queue.complete`."""
        await self._queue.complete(self, result)

    async def fail(self, error: object, retry_in_s: float | None = None) -> None:
        """Give the task back as failed; see `Queue.fail`."""
        await self._queue.fail(self, error, retry_in_s)

    async def release(self) -> None:
        """Give the task back as if it had not been claimed; see `Queue.release`."""
        await self._queue.release(self)


class Queue:
    """The tasks of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._claims = Claims(executor)

    def __repr__(self) -> str:
        return f"<Queue of {self._executor.name!r}>"

    # ---- putting

    async def put(
        self,
        payload: object,
        *,
        id: str | None = None,
        priority: int = 0,
        delay_s: float = 0,
        max_attempts: int = 5,
        if_present: IfPresent = "keep",
    ) -> Put:
        """Add a task; the result says whether it did, as a known id may add nothing.

        Args:
            payload: What it is about; anything that the codec keeps.
            id: Names it, so that it is put once: until a week after it was completed.
            priority: Higher ones are claimed first; equal ones in order of coming.
            delay_s: It can be claimed only after so many seconds.
            max_attempts: After so many failed attempts it is dead.
            if_present: Rule for an id that has a task: `keep` that task in whatever state, `replace` it
                unless a worker holds it, or `raise`.

        Raises:
            AlreadyExistsError: The id has a task, and `if_present` is `raise`.
            TransitionError: A worker holds that task, and `if_present` is `replace`.
        """
        admit_if_present(if_present)
        task_id = str(UUID(bytes=self._executor.clock.random_bytes(16), version=4)) if id is None else id
        if type(priority) is not int or not -(2**31) <= priority < 2**31:
            raise InvalidError(f"`priority` is {priority!r}; it must be an int of 32 bits")
        limits.admit_count("max_attempts", max_attempts)
        wait_ms = check_delay_ms("delay_s", delay_s)
        tasks.task_key(task_id)
        state: TaskState = "waiting" if wait_ms else "ready"
        record = TaskRecord(task_id, state, priority, 0, max_attempts, 0, put_at_ms=0, due_at_ms=wait_ms)
        stored = self._executor.encode(payload, tasks.payload_key(task_id))

        async def work(unit: Unit) -> Put:
            return await put_task(self._executor, unit, record, stored, if_present)

        return (await self._executor.run(work))[0]

    # ---- claiming

    async def claim(
        self,
        worker: str,
        *,
        lease_s: float,
        count: int = 1,
        wait_s: float = 0,
        match: Match | None = None,
    ) -> list[Task]:
        """Return up to `count` tasks, now held by this worker; none if there are none.

        A task that cannot be read here, for its class is of newer code, is left to others; a warning tells.
        Where `match` raises, or the call is cancelled, what it has taken by then is given back.

        Args:
            worker: Who claims.
            lease_s: For how long to hold them, in seconds, unless a heartbeat says more.
            count: How many at the most.
            wait_s: How long to wait for the first one, in seconds.
            match: Takes only tasks for which it answers true, given their id and payload.

        Raises:
            InvalidError: There are only tasks that cannot be read here, and no `match` to choose others by.
        """
        choice: TaskFilter | None = None
        if match is not None:
            self._executor.reject_coroutine(match)
            choice = without_documents(match)
        return await self.claim_with(
            worker, lease_s=lease_s, count=count, wait_s=wait_s, match=choice, on_claim=None
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
    ) -> list[Task]:
        """Claim, and let `on_claim` do more in the same batch.

        Where another worker gets the task, nothing of it is applied. Where there is a `match` these documents
        are read along with the tasks. For what stands above the engine.
        """
        self._executor.require_outside_transaction("claiming a task")
        worker, lease_ms = check_name("worker", worker), check_duration_ms("lease_s", lease_s)
        check_wait("wait_s", wait_s)
        limits.admit_count("count", count)
        losses = await self._executor.loss_detector()
        claimed = await self._claims.claim(
            ClaimRequest(worker, lease_ms, match, documents, on_claim), count, wait_s, losses
        )
        return [Task(self, record, payload, lease_s, losses) for record, payload in claimed]

    async def take(self, id: str, worker: str, *, lease_s: float) -> Task:
        """Return one task by its id, now held by this worker: out of turn, and before its delay ends.

        Raises:
            ConflictError: Somebody holds it.
            NotFoundError: There is none.
            TransitionError: It is done or dead, or dead now: the lease of its last attempt has run out.
        """
        tasks.task_key(id)
        worker, lease_ms = check_name("worker", worker), check_duration_ms("lease_s", lease_s)
        losses = await self._executor.loss_detector()
        record, payload = await self._claims.take(id, ClaimRequest(worker, lease_ms), losses)
        return Task(self, record, payload, lease_s, losses)

    async def work(
        self, worker: str, *, lease_s: float = 60, wait_s: float | None = None, match: Match | None = None
    ) -> AsyncIterator[Task]:
        """Yield one task after the other, each claimed when it is asked for; raises what `claim` raises.

        Args:
            worker: Who claims.
            lease_s: For how long to hold each, in seconds.
            wait_s: Ends when no task has come for so long; without it, it never ends.
            match: As for `claim`.
        """
        while True:
            found = await self.claim(
                worker, lease_s=lease_s, wait_s=60.0 if wait_s is None else wait_s, match=match
            )
            if not found and wait_s is not None:
                return
            for task in found:
                yield task

    # ---- what a holder says

    async def heartbeat(self, task: Task | Claim, lease_s: float) -> None:
        """Hold a task for `lease_s` from now on.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def change(unit: Unit, record: TaskRecord) -> None:
            store_task(unit, record, "claimed", due_at_ms=await unit.now_ms() + lease_ms)

        await self._change(task, change)

    async def complete(self, task: Task | Claim, result: object = None) -> None:
        """End a task with its result. To complete it again under the same claim does nothing.

        A transaction that completes it again is refused: what else it does has been done once already.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        stored = None if result is None else self._executor.encode(result, tasks.result_key(task.id))

        async def change(unit: Unit, record: TaskRecord) -> None:
            unit.delete(tasks.payload_key(record.id))
            if stored is not None:
                unit.put(tasks.result_key(record.id), stored, ttl_ms=DONE_KEPT_MS)
            now_ms = await unit.now_ms()
            store_task(unit, record, "done", due_at_ms=now_ms, error=None, has_result=stored is not None)

        await self._change(task, change, done_is_done=True)

    async def fail(self, task: Task | Claim, error: object, retry_in_s: float | None = None) -> None:
        """Give a task back as failed: to be tried again later, or dead if it has had its attempts.

        Args:
            task: The task, or what proves its claim.
            error: What went wrong; kept as text, of which 16 KiB.
            retry_in_s: When it can be claimed again, in seconds; without it, after 1 s, 2 s, 4 s … up to 5
                minutes.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        text = tasks.told(error)
        given_ms = None if retry_in_s is None else check_delay_ms("retry_in_s", retry_in_s)

        async def change(unit: Unit, record: TaskRecord) -> None:
            now_ms = await unit.now_ms()
            if record.attempt >= record.max_attempts:
                store_task(unit, record, "dead", due_at_ms=now_ms, error=text)
                return
            wait_ms = tasks.retry_ms(record.attempt) if given_ms is None else given_ms
            state: TaskState = "waiting" if wait_ms else "ready"
            store_task(unit, record, state, due_at_ms=now_ms + wait_ms, error=text)

        await self._change(task, change)

    async def release(self, task: Task | Claim) -> None:
        """Give a task back as if it had not been claimed; it stands behind the others of its priority.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """

        async def change(unit: Unit, record: TaskRecord) -> None:
            store_task(unit, record, "ready", attempt=record.attempt - 1, due_at_ms=await unit.now_ms())

        await self._change(task, change)

    async def _change(
        self,
        task: Task | Claim,
        change: Callable[[Unit, TaskRecord], Awaitable[None]],
        *,
        done_is_done: bool = False,
    ) -> None:
        require_instance("task", task, Task, Claim)
        if type(task.token) is not int:
            raise InvalidError(f"`token` of {task!r} is {task.token!r}; give the token of a claim")
        key = tasks.task_key(task.id)

        async def work(unit: Unit) -> None:
            if isinstance(task, Task) and not task._is_known_to(unit):  # pyright: ignore[reportPrivateUsage]
                raise self._lost(task, None)
            entry = await unit.get(key)
            record = None if entry is None else self._record(entry)
            if record is None or record.token != task.token or record.state != "claimed":
                again = record is not None and record.state == "done" and record.token == task.token
                # In a transaction what stands beside it would be done again: only its own completion counts.
                if done_is_done and again and (not self._executor.gathers or _is_unwritten(entry)):
                    return
                raise self._lost(task, record)
            unit.delete(record.place)
            await change(unit, record)

        if self._executor.gathers:
            await self._executor.run(work)
        else:
            await finish_despite_cancel(self._executor.runner, lambda: self._executor.run(work))

    def _lost(self, task: Task | Claim, record: TaskRecord | None) -> LeaseLostError:
        now = (
            "gone" if record is None else record.state if record.token == task.token else "claimed by another"
        )
        return LeaseLostError(
            f"task {task.id!r} of {self._executor.name!r} is no longer held ({now}); drop it",
            space=self._executor.name,
            name=task.id,
            token=task.token,
        )

    def _record(self, entry: Entry) -> TaskRecord:
        return record_of(self._executor, entry)

    # ---- looking

    async def counts(self) -> dict[TaskState, int]:
        """Return how many tasks stand where, all at one moment.

        It reads the index of all tasks, a page of 1,024 at a time, and holds their keys meanwhile.

        Raises:
            CompactedError: More was written meanwhile than the log keeps.
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
        """Return, by state, how many tasks there are, all at one moment, and the newest of them.

        The newest are read after that moment. For the rest it costs what `counts` costs.

        Args:
            prefix: Only tasks whose ids start so.
            newest: How many of each state at the most: those that came to it last, the last one first.
            payloads: Reads what they are about, too.

        Raises:
            CompactedError: More was written meanwhile than the log keeps.
        """
        if newest != 0 or type(newest) is not int:
            limits.admit_count("newest", newest)
        return await summaries(
            self._executor, prefix=check_text("prefix", prefix), newest=newest, payloads=payloads
        )

    async def list(
        self, state: TaskState, *, after: str | None = None, limit: int = 100, payloads: bool = False
    ) -> Sequence[TaskInfo]:
        """Return tasks of a state: ready ones in the order of claiming, the others by time.

        Args:
            state: `ready`, `waiting`, `claimed`, `done` or `dead`.
            after: The `cursor` of the task to go on behind. Another process that goes on behind a cursor
                compares its history in one read more.
            limit: How many at the most.
            payloads: Reads what they are about, too.

        Raises:
            CompactedError: The log no longer reaches back to the page of a cursor from another process.
            HistoryLostError: The store lost the history that the cursor was read in.
            InvalidError: The cursor is of another space or state.
        """
        if state not in STATES:
            raise InvalidError(f"`state` is {state!r}; it is one of {', '.join(STATES)}")
        limits.admit_count("limit", limit)
        return await listed(self._executor, state, after=after, limit=limit, payloads=payloads)

    async def dead(self, *, after: str | None = None, limit: int = 100) -> Sequence[TaskInfo]:
        """Return the tasks that have failed for good; `requeue` gives one another chance."""
        return await self.list("dead", after=after, limit=limit)

    async def get(self, id: str, *, payload: bool = False) -> TaskInfo | None:
        """Return one task, or None if there is none of this id; on request with what it is about."""
        return (await self.get_each(id, payloads=check_flag("payload", payload)))[0]

    async def get_each(self, *ids: str, payloads: bool = False) -> Sequence[TaskInfo | None]:
        """Return tasks in the order of their ids, None for an absent one; all of one revision.

        Args:
            ids: At most 1,000.
            payloads: Reads what they are about, too.
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
            unit.delete(record.place)
            store_task(unit, record, "ready", attempt=0, due_at_ms=await unit.now_ms())

        await self._executor.run(work)

    async def remove(self, id: str) -> bool:
        """Remove a completed or dead task for good, and return whether it existed; its id is free again.

        Raises:
            TransitionError: It is still to be done.
        """
        return await self._remove(id, is_over=True)

    async def discard(self, id: str) -> bool:
        """Remove a task wherever it stands, and return whether it existed; who holds it has lost it."""
        return await self._remove(id, is_over=False)

    async def _remove(self, id: str, *, is_over: bool) -> bool:
        async def work(unit: Unit) -> bool:
            entry = await unit.get(tasks.task_key(id))
            if entry is None:
                return False
            record = self._record(entry)
            if is_over and record.state not in ("done", "dead"):
                raise TransitionError(
                    f"task {id!r} of {self._executor.name!r} is {record.state}, and not over yet",
                    current=record.state,
                    wanted="removed",
                )
            erase_task(unit, entry, record)
            return True

        return (await self._executor.run(work))[0]


def _is_unwritten(entry: Entry | None) -> bool:
    return entry is not None and entry.version == UNWRITTEN
