"""Steps of tasks, for their operators: lists of them, and results of steps whose end is unknown."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import shorten, to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.listings import decode_task
from keepstate.engine.queue.step_calls import RecordedStep, read_step
from keepstate.engine.queue.step_records import (
    Step,
    StepRecord,
    decode_step,
    name_in,
    scan_steps,
    step_key,
    write_step,
)
from keepstate.errors import NotFoundError, TransitionError


class NotDone(Enum):
    """The type of `NOT_DONE`."""

    NOT_DONE = "NOT_DONE"


NOT_DONE: Final = NotDone.NOT_DONE
"""For `Queue.settle`: the step was not done, and runs in the next attempt."""


class StepControl:
    """Changes the steps of tasks of a space, whether or not the tasks are held."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def steps(self, id: str) -> list[Step]:
        """Return the recorded steps of a task, in the order of recording.

        Raises:
            NotFoundError: No task has this id.
        """
        tasks.task_key(id)
        return await list_steps(self._executor, id)

    async def step_result(self, id: str, name: str) -> RecordedStep:
        """Return a step of a task with its result; `is_done` is False while it has none.

        Raises:
            NotFoundError: The task does not exist, or has no such step.
        """
        tasks.task_key(id)
        return await read_step(self._executor, id, name)

    async def settle(self, id: str, name: str, result: object) -> None:
        """Tell the result of a step with `once` that was begun, and whose end is unknown.

        A dead task goes on after `requeue`.

        Args:
            id: The id of the task.
            name: The name of the step.
            result: The result of the step, or `NOT_DONE` to let it run in the next attempt.

        Raises:
            NotFoundError: The task does not exist, or the step was not begun.
            TransitionError: The step is not open, or the attempt that began it still holds the task.
        """
        tasks.task_key(id)
        await settle_step(self._executor, id, name, result)


async def list_steps(executor: Executor, task_id: str) -> list[Step]:
    """Return the steps of a task in the order of recording.

    Raises:
        NotFoundError: No task has this id.
    """

    async def work(unit: Unit) -> list[tuple[str, StepRecord]]:
        entry = await unit.get(tasks.task_key(task_id))
        if entry is None:
            raise NotFoundError(f"no task of {executor.name!r} has the id {task_id!r}")
        life_ms = decode_task(executor, entry).put_at_ms
        rows: list[tuple[str, StepRecord]] = []
        async for each in scan_steps(executor, unit, task_id):
            name = name_in(each.key)[1]
            row = decode_step(each.value, f"step {name!r} of task {task_id!r} of {executor.name!r}")
            if row.life_ms == life_ms:
                rows.append((name, row))
        return rows

    rows = (await executor.run(work))[0]
    return [
        Step(
            name, row.kind, row.state, to_datetime(row.at_ms), row.attempt,
            None if row.due_ms is None else to_datetime(row.due_ms), row.size_bytes,
        )
        for name, row in sorted(rows, key=lambda each: each[1].number)
    ]  # fmt: skip


async def settle_step(executor: Executor, task_id: str, name: str, result: object) -> None:
    """Tell the result of a step whose end is unknown; see `Queue.settle`."""
    key = step_key(task_id, name)
    stored = None if result is NOT_DONE else executor.encode(result, key)
    what = f"step {name!r} of task {task_id!r} of {executor.name!r}"

    async def work(unit: Unit) -> None:
        task, entry = await unit.read(tasks.task_key(task_id), key)
        if task is None:
            raise NotFoundError(f"no task of {executor.name!r} has the id {task_id!r}")
        record = decode_task(executor, task)
        row = None if entry is None else decode_step(entry.value, what)
        if row is None or row.life_ms != record.put_at_ms:
            raise NotFoundError(f"{what} was not begun; list the steps to see those that were")
        if row.state != "open":
            raise TransitionError(f"{what} is {row.state}, not open", current=row.state, wanted="done")
        if record.state == "claimed" and record.token == row.token:
            raise TransitionError(
                f"{what} may be running now, by worker {shorten(record.worker or '')!r}. Settle it when that "
                "attempt has ended",
                current="open",
                wanted="done",
            )
        if stored is None:
            unit.delete(key)
            return
        row = msgspec.structs.replace(row, state="done", at_ms=await unit.now_ms())
        write_step(unit, key, row, stored)

    await executor.run(work)
