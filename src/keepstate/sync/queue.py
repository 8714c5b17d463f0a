"""Blocking twins of `keepstate.engine.queue.queue`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.engine.queue import queue as engine
from keepstate.engine.queue.claims import Match
from keepstate.engine.queue.insertion import IfPresent
from keepstate.engine.queue.listings import StateSummary
from keepstate.engine.queue.queue import Claim
from keepstate.engine.queue.tasks import Put, TaskInfo, TaskState
from keepstate.sync.twin import Twin, inner_of


class Queue(Twin[engine.Queue]):
    """The tasks of a space, or of a transaction on it."""

    def put(
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
        return finish(
            self._inner.put(
                payload,
                id=id,
                priority=priority,
                delay_s=delay_s,
                max_attempts=max_attempts,
                if_present=if_present,
            )
        )

    def claim(
        self, worker: str, *, lease_s: float, count: int = 1, wait_s: float = 0, match: Match | None = None
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
        return [
            Task(each)
            for each in finish(
                self._inner.claim(worker, lease_s=lease_s, count=count, wait_s=wait_s, match=match)
            )
        ]

    def take(self, id: str, worker: str, *, lease_s: float) -> Task:
        """Return one task by its id, now held by this worker: out of turn, and before its delay ends.

        Raises:
            ConflictError: Somebody holds it.
            NotFoundError: There is none.
            TransitionError: It is done or dead, or dead now: the lease of its last attempt has run out.
        """
        return Task(finish(self._inner.take(id, worker, lease_s=lease_s)))

    def work(
        self, worker: str, *, lease_s: float = 60, wait_s: float | None = None, match: Match | None = None
    ) -> Iterator[Task]:
        """Yield one task after the other, each claimed when it is asked for; raises what `claim` raises.

        Args:
            worker: Who claims.
            lease_s: For how long to hold each, in seconds.
            wait_s: Ends when no task has come for so long; without it, it never ends.
            match: As for `claim`.
        """
        return (
            Task(each)
            for each in finish_each(self._inner.work(worker, lease_s=lease_s, wait_s=wait_s, match=match))
        )

    def heartbeat(self, task: Task | Claim, lease_s: float) -> None:
        """Hold a task for `lease_s` from now on.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        finish(self._inner.heartbeat(inner_of(task) if isinstance(task, Task) else task, lease_s))

    def complete(self, task: Task | Claim, result: object = None) -> None:
        """End a task with its result. To complete it again under the same claim does nothing.

        A transaction that completes it again is refused: what else it does has been done once already.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        finish(self._inner.complete(inner_of(task) if isinstance(task, Task) else task, result))

    def fail(self, task: Task | Claim, error: object, retry_in_s: float | None = None) -> None:
        """Give a task back as failed: to be tried again later, or dead if it has had its attempts.

        Args:
            task: The task, or what proves its claim.
            error: What went wrong; kept as text, of which 16 KiB.
            retry_in_s: When it can be claimed again, in seconds; without it, after 1 s, 2 s, 4 s … up to 5
                minutes.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        finish(self._inner.fail(inner_of(task) if isinstance(task, Task) else task, error, retry_in_s))

    def release(self, task: Task | Claim) -> None:
        """Give a task back as if it had not been claimed; it stands behind the others of its priority.

        Raises:
            LeaseLostError: It is no longer held by this claim.
        """
        finish(self._inner.release(inner_of(task) if isinstance(task, Task) else task))

    def counts(self) -> dict[TaskState, int]:
        """Return how many tasks stand where, all at one moment.

        It reads the index of all tasks, a page of 1,024 at a time, and holds their keys meanwhile.

        Raises:
            CompactedError: More was written meanwhile than the log keeps.
        """
        return finish(self._inner.counts())

    def summaries(
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
        return finish(self._inner.summaries(prefix, newest=newest, payloads=payloads))

    def list(
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
        return finish(self._inner.list(state, after=after, limit=limit, payloads=payloads))

    def dead(self, *, after: str | None = None, limit: int = 100) -> Sequence[TaskInfo]:
        """Return the tasks that have failed for good; `requeue` gives one another chance."""
        return finish(self._inner.dead(after=after, limit=limit))

    def get(self, id: str, *, payload: bool = False) -> TaskInfo | None:
        """Return one task, or None if there is none of this id; on request with what it is about."""
        return finish(self._inner.get(id, payload=payload))

    def get_each(self, *ids: str, payloads: bool = False) -> Sequence[TaskInfo | None]:
        """Return tasks in the order of their ids, None for an absent one; all of one revision.

        Args:
            ids: At most 1,000.
            payloads: Reads what they are about, too.
        """
        return finish(self._inner.get_each(*ids, payloads=payloads))

    def requeue(self, id: str) -> None:
        """Make a dead task ready again, with all its attempts.

        Raises:
            NotFoundError: No dead task has this id.
        """
        finish(self._inner.requeue(id))

    def remove(self, id: str) -> bool:
        """Remove a completed or dead task for good, and return whether it existed; its id is free again.

        Raises:
            TransitionError: It is still to be done.
        """
        return finish(self._inner.remove(id))

    def discard(self, id: str) -> bool:
        """Remove a task wherever it stands, and return whether it existed; who holds it has lost it."""
        return finish(self._inner.discard(id))


class Task(Twin[engine.Task]):
    """A claimed task, held until its lease ends.

    Attributes:
        id: Its name.
        payload: What it is about; a copy.
        attempt: The how-manieth time it is claimed; 1 for the first.
        token: Fences this holder from later ones: each has a higher one.
        worker: Who holds it.
        lease_s: For how long it is held from each heartbeat on, in seconds.
    """

    @property
    def id(self) -> str:
        """Its name."""
        return self._inner.id

    @property
    def payload(self) -> Any:
        """What it is about; a copy."""
        return self._inner.payload

    @property
    def attempt(self) -> int:
        """The how-manieth time it is claimed; 1 for the first."""
        return self._inner.attempt

    @property
    def token(self) -> int:
        """Fences this holder from later ones: each has a higher one."""
        return self._inner.token

    @property
    def worker(self) -> str | None:
        """Who holds it."""
        return self._inner.worker

    @property
    def lease_s(self) -> float:
        """For how long it is held from each heartbeat on, in seconds."""
        return self._inner.lease_s

    def heartbeat(self, lease_s: float | None = None) -> None:
        """Hold the task for `lease_s` from now on; see `Queue.heartbeat`."""
        finish(self._inner.heartbeat(lease_s))

    def complete(self, result: object = None) -> None:
        """End the task with its result; see `Queue.complete`."""
        finish(self._inner.complete(result))

    def fail(self, error: object, retry_in_s: float | None = None) -> None:
        """Give the task back as failed; see `Queue.fail`."""
        finish(self._inner.fail(error, retry_in_s))

    def release(self) -> None:
        """Give the task back as if it had not been claimed; see `Queue.release`."""
        finish(self._inner.release())
