"""Blocking twins of `keepstate.engine.queue.task_reads`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.engine.queue import task_reads as engine
from keepstate.engine.queue.attempts import Attempt
from keepstate.engine.queue.listings import StateSummary
from keepstate.engine.queue.tasks import TaskInfo, TaskState
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.TaskReads)


class TaskReads(Twin[Inner]):
    """Reads the tasks of a space, or of a transaction on it."""

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
            unreadable: With `skip`, a task whose payload, result or progress cannot be read is left out. With
                `raw`, such a value is an `Unreadable`.

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
        unreadable: IfUnreadable = "raise",
    ) -> Sequence[TaskInfo]:
        """Return tasks: ready ones in the order of claiming, those of another state by time.

        Tasks that a claim has put into lines, because they have a key or because rules hold for them, come
        after the other ready ones, by priority, kind and key.

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
            unreadable: With `skip`, a task whose payload, result or progress cannot be read is left out. With
                `raw`, such a value is an `Unreadable`.

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
                unreadable=unreadable,
            )
        )

    def dead(
        self, *, after: str | None = None, limit: int = 100, unreadable: IfUnreadable = "raise"
    ) -> Sequence[TaskInfo]:
        """Return the tasks whose attempts are used up; `requeue` makes one ready again."""
        return finish(self._inner.dead(after=after, limit=limit, unreadable=unreadable))

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

    def result(self, id: str, *, wait_s: float = 0) -> Any:
        """Return the result of a task; None if it was completed without one.

        Args:
            id: The id of the task.
            wait_s: Seconds to wait until the task has ended.

        Raises:
            NotFoundError: No task has this id; a completed one is deleted after its `keep_s`.
            TaskCancelledError: The task was cancelled.
            TaskFailedError: The task is dead.
            TimeoutError: The task has not ended in time.
        """
        return finish(self._inner.result(id, wait_s=wait_s))

    def wait_empty(self, timeout_s: float) -> None:
        """Wait until no task is ready, waiting or claimed.

        Raises:
            TimeoutError: There are such tasks after `timeout_s` seconds.
        """
        finish(self._inner.wait_empty(timeout_s))

    def attempts(self, id: str) -> Sequence[Attempt]:
        """Return the attempts at a task in order, with their errors: the last 20, and the running one.

        A released attempt is none.

        Raises:
            NotFoundError: No task has this id.
        """
        return finish(self._inner.attempts(id))
