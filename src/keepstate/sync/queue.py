"""Blocking twins of `keepstate.engine.queue.queue`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.engine.queue import queue as engine
from keepstate.engine.queue.claimer import Match
from keepstate.engine.queue.listings import StateSummary
from keepstate.engine.queue.queue import Claim
from keepstate.engine.queue.tasks import DONE_KEPT_MS, IfPresent, Put, TaskInfo, TaskState
from keepstate.sync.twin import Twin, inner_of


class Queue(Twin[engine.Queue]):
    """The tasks of a space, or of a transaction on it."""

    def put(
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
        return finish(
            self._inner.put(
                payload,
                id=id,
                kind=kind,
                key=key,
                priority=priority,
                delay_s=delay_s,
                max_attempts=max_attempts,
                keep_s=keep_s,
                if_present=if_present,
            )
        )

    def claim(
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
        return [
            Task(each)
            for each in finish(
                self._inner.claim(
                    worker, lease_s=lease_s, count=count, wait_s=wait_s, match=match, kinds=kinds
                )
            )
        ]

    def take(self, id: str, worker: str, *, lease_s: float) -> Task:
        """Claim one task by its id, regardless of order and delay, and return it.

        Raises:
            ConflictError: A worker holds the task.
            NotFoundError: No task has this id.
            TransitionError: The task is done or dead, or became dead because its last attempt's lease
                expired.
        """
        return Task(finish(self._inner.take(id, worker, lease_s=lease_s)))

    def work(
        self,
        worker: str,
        *,
        lease_s: float = 60,
        wait_s: float | None = None,
        match: Match | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[Task]:
        """Yield tasks one by one, each claimed on demand. Raises the errors of `claim`.

        Args:
            worker: The name of the worker.
            lease_s: Seconds until the lease of each task expires.
            wait_s: End the iteration after this many seconds without a task. The default never ends.
            match: As for `claim`.
            kinds: As for `claim`.
        """
        return (
            Task(each)
            for each in finish_each(
                self._inner.work(worker, lease_s=lease_s, wait_s=wait_s, match=match, kinds=kinds)
            )
        )

    def heartbeat(self, task: Task | Claim, lease_s: float) -> None:
        """Renew the lease of a task for `lease_s` seconds from now.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.heartbeat(inner_of(task) if isinstance(task, Task) else task, lease_s))

    def complete(self, task: Task | Claim, result: object = None) -> None:
        """Complete a task with a result. Completing it again under the same claim does nothing.

        A transaction that completes it again is rejected, because its other writes were made before.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.complete(inner_of(task) if isinstance(task, Task) else task, result))

    def fail(self, task: Task | Claim, error: object, retry_in_s: float | None = None) -> None:
        """Return a task to the queue as failed, to be retried later; dead if its attempts are used up.

        Args:
            task: The task, or its claim.
            error: The error; stored as text, cut to 16 KiB.
            retry_in_s: Seconds until the task can be claimed again. The default is 1 s, 2 s, 4 s … up to 5
                minutes.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.fail(inner_of(task) if isinstance(task, Task) else task, error, retry_in_s))

    def release(self, task: Task | Claim) -> None:
        """Return a task to the queue as if it had not been claimed, after the others of its priority.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        finish(self._inner.release(inner_of(task) if isinstance(task, Task) else task))

    def counts(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state, all at one revision, in one read.

        Inside a transaction it reads the index of all tasks.
        """
        return finish(self._inner.counts())

    def summaries(
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
        return finish(self._inner.summaries(prefix, newest=newest, payloads=payloads))

    def list(
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
        return finish(
            self._inner.list(
                state,
                id_prefix=id_prefix,
                after=after,
                before=before,
                reverse=reverse,
                limit=limit,
                payloads=payloads,
            )
        )

    def dead(self, *, after: str | None = None, limit: int = 100) -> Sequence[TaskInfo]:
        """Return the tasks whose attempts are used up; `requeue` makes one ready again."""
        return finish(self._inner.dead(after=after, limit=limit))

    def get(self, id: str, *, payload: bool = False) -> TaskInfo | None:
        """Return one task, or None if no task has this id; with `payload=True`, including its payload."""
        return finish(self._inner.get(id, payload=payload))

    def get_each(self, *ids: str, payloads: bool = False) -> Sequence[TaskInfo | None]:
        """Return tasks in the order of the given ids, all at one revision; None if a task does not exist.

        Args:
            ids: At most 1,000 ids.
            payloads: Whether to read the payloads too.
        """
        return finish(self._inner.get_each(*ids, payloads=payloads))

    def requeue(self, id: str) -> None:
        """Make a dead task ready again, with all its attempts.

        Raises:
            NotFoundError: No dead task has this id.
        """
        finish(self._inner.requeue(id))

    def remove(self, id: str) -> bool:
        """Delete a done or dead task, and return whether it existed. Its id can be used again.

        Raises:
            TransitionError: The task is not done or dead.
        """
        return finish(self._inner.remove(id))

    def discard(self, id: str) -> bool:
        """Delete a task in any state, and return whether it existed. A worker that holds it loses it."""
        return finish(self._inner.discard(id))


class Task(Twin[engine.Task]):
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

    @property
    def id(self) -> str:
        """The task's id."""
        return self._inner.id

    @property
    def payload(self) -> Any:
        """A copy of the task's payload."""
        return self._inner.payload

    @property
    def attempt(self) -> int:
        """Attempt number, starting at 1."""
        return self._inner.attempt

    @property
    def token(self) -> int:
        """The fencing token. Each later holder gets a larger one."""
        return self._inner.token

    @property
    def worker(self) -> str | None:
        """The worker that holds the task."""
        return self._inner.worker

    @property
    def lease_s(self) -> float:
        """Seconds from each heartbeat until the lease expires."""
        return self._inner.lease_s

    @property
    def kind(self) -> str:
        """The kind given to `put`."""
        return self._inner.kind

    @property
    def key(self) -> str | None:
        """The key given to `put`."""
        return self._inner.key

    def heartbeat(self, lease_s: float | None = None) -> None:
        """Renew the lease for `lease_s` seconds from now; see `Queue.heartbeat`."""
        finish(self._inner.heartbeat(lease_s))

    def complete(self, result: object = None) -> None:
        """Complete the task with a result; see `Queue.complete`."""
        finish(self._inner.complete(result))

    def fail(self, error: object, retry_in_s: float | None = None) -> None:
        """Return the task to the queue as failed; see `Queue.fail`."""
        finish(self._inner.fail(error, retry_in_s))

    def release(self) -> None:
        """Return the task to the queue as if it had not been claimed; see `Queue.release`."""
        finish(self._inner.release())
