"""Listings, counts, results and attempts of tasks: what a queue tells without changing a task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unreadable import IfUnreadable, check_unreadable
from keepstate.engine.queue import tasks
from keepstate.engine.queue.attempts import Attempt, read_attempts
from keepstate.engine.queue.listings import StateSummary, count_tasks, list_tasks, read_tasks, summaries
from keepstate.engine.queue.outcome import wait_for_result, wait_until_empty
from keepstate.engine.queue.tasks import STATES, TaskInfo, TaskState
from keepstate.errors import InvalidError
from keepstate.values import limits


class TaskReads:
    """Reads the tasks of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

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
            unreadable: With `skip`, a task whose payload, result or progress cannot be read is left out. With
                `raw`, such a value is an `Unreadable`.

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
            unreadable=check_unreadable(unreadable),
        )

    async def dead(
        self, *, after: str | None = None, limit: int = 100, unreadable: IfUnreadable = "raise"
    ) -> Sequence[TaskInfo]:
        """Return the tasks whose attempts are used up; `requeue` makes one ready again."""
        return await self.list("dead", after=after, limit=limit, unreadable=unreadable)

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

    async def result(self, id: str, *, wait_s: float = 0) -> Any:
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
        tasks.task_key(id)
        return await wait_for_result(self._executor, id, wait_s)

    async def wait_empty(self, timeout_s: float) -> None:
        """Wait until no task is ready, waiting or claimed.

        Raises:
            TimeoutError: There are such tasks after `timeout_s` seconds.
        """
        await wait_until_empty(self._executor, timeout_s)

    async def attempts(self, id: str) -> Sequence[Attempt]:
        """Return the attempts at a task in order, with their errors: the last 20, and the running one.

        A released attempt is none.

        Raises:
            NotFoundError: No task has this id.
        """
        tasks.task_key(id)
        return await read_attempts(self._executor, id)
