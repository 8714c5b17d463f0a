"""Changes of tasks by others than their holder: messages, cancelling, requeueing, deletion."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.engine.kernel.arguments import check_moment_ms, check_name, check_text
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.endings import (
    Ends,
    cancel_task,
    chunks,
    erase_task,
    find_dead,
    requeue_tasks,
    rerun_task,
)
from keepstate.engine.queue.listings import decode_task
from keepstate.engine.queue.messages import send_message
from keepstate.engine.queue.step_records import (
    StepEdit,
    StepRecord,
    erase_steps,
    find_step,
    has_many_steps,
    step_key,
)
from keepstate.engine.queue.tasks import ENDED, Put
from keepstate.errors import InvalidError, NotFoundError, TransitionError
from keepstate.values import limits


class TaskControl:
    """Changes the tasks of a space, or of a transaction on it, whether or not they are held."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def send(self, id: str, name: str, value: object, *, send_id: str | None = None) -> bool:
        """Send a message to a task, and wake the task if it waits for one of this name.

        The task has at most 200 messages that it has not received. What it has not received when it ends is
        deleted.

        Args:
            id: The id of the task.
            name: The name by which the task receives the message; 1 to 200 bytes of UTF-8.
            value: Any value that the codec stores.
            send_id: An id that makes the sending idempotent for a day; at most 512 bytes of UTF-8.

        Returns:
            Whether the message was stored; False if one with this `send_id` was sent before.

        Raises:
            NotFoundError: No task has this id.
            TransitionError: The task has ended.
        """
        tasks.task_key(id)
        if send_id is not None:
            send_id = check_name("send_id", send_id)
        return await send_message(self._executor, id, tasks.check_kind("name", name), value, send_id)

    async def cancel(self, id: str, *, by: str | None = None, reason: str = "") -> bool:
        """Cancel a task that has not ended, and return whether there was such a task.

        A worker that holds it loses it at once. Tasks that wait for it become dead.

        Args:
            id: The id of the task.
            by: The canceller; the author of the handle by default.
            reason: The reason; stored as text, cut to 16 KiB.
        """
        tasks.task_key(id)
        by = self._executor.author if by is None else check_name("by", by)
        reason = check_text("reason", reason)
        ends = Ends(self._executor)
        cancelled, _ = await self._executor.run(
            lambda unit: cancel_task(self._executor, ends, unit, id, by, reason)
        )
        await ends.resume()
        return cancelled

    async def requeue(
        self, *ids: str, kind: str | None = None, since: datetime | None = None, limit: int = 1000
    ) -> int:
        """Make dead tasks ready again, with all their attempts, and return their number.

        A task that is dead because of another one waits for that one again; both are requeued by one call.
        At most 100 tasks are requeued in one batch.

        Args:
            ids: The ids of the tasks. Without ids, all dead tasks, or those of `kind` or `since` a time.
            kind: Only tasks of this kind.
            since: Only tasks that died at this time or later.
            limit: The largest number of tasks, those that died first.

        Raises:
            InvalidError: Neither ids nor `kind` nor `since` are given, or ids together with one of them.
            NotFoundError: No dead task has one of the ids.
            TransitionError: A task of these ids waits for a dead one that is not requeued.
        """
        limits.admit_count("limit", limit)
        if bool(ids) == (kind is not None or since is not None):
            raise InvalidError("requeue() takes ids, or `kind` and `since`: give either")
        for id in ids:
            tasks.task_key(id)
        if not ids:
            kind = kind if kind is None or kind == "" else tasks.check_kind("kind", kind)
            since_ms = 0 if since is None else check_moment_ms("since", since)
            found = await find_dead(self._executor, kind=kind, since_ms=since_ms, limit=limit)
        else:
            found = list(ids)
        number = 0
        for some in chunks(found):
            await self._tell_followers(some)
            work = partial(requeue_tasks, self._executor, ids=some, strict=bool(ids))
            number += len((await self._executor.run(work))[0])
        return number

    async def rerun(
        self,
        id: str,
        *,
        from_step: str | None = None,
        result: object | Missing = MISSING,
        as_id: str | None = None,
    ) -> Put:
        """Run an ended task again, with the same payload, and without its steps.

        Args:
            id: The id of the task.
            from_step: Keep the steps that were recorded before this one, and run again from there. A copy
                takes at most 400 steps of 4 MiB in all.
            result: Keep this step too, with this result instead of its own. The handler gets it.
            as_id: Run a copy under this id instead, whatever the state of the task. If the id has a task
                already, it is kept, and `added` is False.

        Raises:
            InvalidError: `result` is given without `from_step`, or for a step that sleeps or asks.
            NotFoundError: No task has this id, or the task has no such step.
            TransitionError: The task has not ended, and `as_id` is not given.
        """
        tasks.task_key(id)
        if as_id is not None:
            tasks.task_key(as_id)
        number, edit = 0, None
        if from_step is not None:
            if result is not MISSING:
                self._executor.encode(result, step_key(id, from_step))  # refused before anything is read
            row = await self._recorded(id, from_step)
            number = row.number
            if result is not MISSING:
                number += 1
                edit = self._edit(id if as_id is None else as_id, from_step, row, result)
        elif result is not MISSING:
            raise InvalidError("`result` is that of a step; name the step by `from_step`")
        await self._tell_followers([id])
        put: Put | None = None
        while put is None:
            put, _ = await self._executor.run(
                lambda unit: rerun_task(self._executor, unit, id, as_id, number, edit)
            )
        return put

    def _edit(self, id: str, name: str, row: StepRecord, result: object) -> StepEdit:
        if row.kind in ("sleep", "ask"):
            raise InvalidError(
                f"step {shorten(name)!r} of task {id!r} is of kind {row.kind!r}: it has no result"
            )
        key = step_key(id, name)
        return StepEdit(key, row, self._executor.encode(result, key))

    async def _recorded(self, id: str, step: str) -> StepRecord:
        step_key(id, step)

        async def work(unit: Unit) -> StepRecord:
            entry = await unit.get(tasks.task_key(id))
            row = None
            if entry is not None:
                row = await find_step(self._executor, unit, decode_task(self._executor, entry), step)
            if row is None:
                raise NotFoundError(
                    f"task {id!r} of {self._executor.name!r} has no step {shorten(step)!r}; "
                    "list its steps to see their names"
                )
            return row

        return (await self._executor.run(work))[0]

    async def remove(self, id: str) -> bool:
        """Delete a task that has ended, and return whether it existed. Its id can be used again.

        Raises:
            TransitionError: The task has not ended.
        """
        return await self._remove(id, only_ended=True)

    async def discard(self, id: str) -> bool:
        """Delete a task in any state, and return whether it existed.

        A worker that holds it loses it. Tasks that wait for it become dead.
        """
        return await self._remove(id, only_ended=False)

    async def _remove(self, id: str, *, only_ended: bool) -> bool:
        ends = Ends(self._executor)

        async def work(unit: Unit) -> bool | None:
            entry = await unit.get(tasks.task_key(id))
            if entry is None:
                return False
            record = decode_task(self._executor, entry)
            if only_ended and record.state not in ENDED:
                raise TransitionError(
                    f"task {id!r} of {self._executor.name!r} is {record.state} and has not ended. Call "
                    "discard() to delete it in any state",
                    current=record.state,
                    wanted="removed",
                )
            if record.is_followed:
                if record.state not in ENDED:
                    now_ms = await unit.now_ms()
                    record = await ends.end(
                        unit, record, "cancelled", version=entry.version, due_at_ms=now_ms
                    )
                if record.is_followed:
                    return None
                entry = await unit.get(tasks.task_key(id))
                assert entry is not None
            if record.has_steps and not self._executor.gathers and await has_many_steps(unit, record.id):
                if record.state not in ENDED:
                    now_ms = await unit.now_ms()
                    await ends.end(unit, record, "cancelled", version=entry.version, due_at_ms=now_ms)
                else:
                    await erase_steps(self._executor, unit, record)
                return None
            await erase_task(self._executor, unit, entry, record)
            return True

        while True:
            ends.left = []
            removed, _ = await self._executor.run(work)
            await ends.resume()
            if removed is not None:
                return removed
            if self._executor.gathers:
                raise TransitionError(
                    f"task {id!r} of {self._executor.name!r} has too many followers to be deleted in a "
                    "transaction; delete it outside",
                    current="followed",
                    wanted="removed",
                )
            await followers.resume(self._executor, [id])

    async def _tell_followers(self, ids: Sequence[str]) -> None:
        """Go on with the endings of tasks whose followers a killed process has not told."""
        if self._executor.gathers:
            return
        read = partial(_marked, ids=ids)
        await followers.resume(self._executor, (await self._executor.run(read))[0])


async def _marked(unit: Unit, ids: Sequence[str]) -> list[str]:
    marks = await unit.read(*map(followers.ending_key, ids))
    return [id for id, mark in zip(ids, marks, strict=True) if mark is not None]
