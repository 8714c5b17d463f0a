"""Ended attempts of tasks, with their errors: the last ones, in one entry for each task.

A claim writes no entry. The task's record tells of the running attempt, and of the one that completed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import decode_stored, to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import NotFoundError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import pack

_encode: Final = msgspec.msgpack.Encoder().encode


class AttemptRecord(msgspec.Struct, array_like=True, frozen=True):
    """An ended attempt as it is stored."""

    number: int
    worker: str | None
    began_at_ms: int | None
    ended_at_ms: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a task.

    Attributes:
        number: Attempt number, starting at 1, and again after the task was requeued.
        worker: The worker that held the task.
        began_at: The time of the claim, by the store's clock.
        ended_at: The time of its end; None while it runs.
        error: The error that ended it, cut to 4 KiB; None if there was none.
    """

    number: int
    worker: str | None
    began_at: datetime | None
    ended_at: datetime | None
    error: str | None


def attempts_key(task_id: str) -> bytes:
    """Return the key of the ended attempts of a task."""
    return layout.ATTEMPTS + pack(task_id)


async def note_attempt(unit: Unit, record: TaskRecord, ended_at_ms: int, error: str) -> TaskRecord:
    """Add the present attempt of a claimed task to the ended ones. Return the record, not yet written."""
    key = attempts_key(record.id)
    entry = await unit.get(key)
    rows = [] if entry is None else decode_stored(entry.value, list[Any], key)
    text = tasks.cut_text(error, limits.ATTEMPT_ERROR_BYTES)
    row = [record.attempt, record.worker, record.began_at_ms, ended_at_ms, text]
    unit.put(key, _encode([*rows[1 - limits.ATTEMPTS_KEPT :], row]))
    return tasks.replaced(record, has_attempts=True)


async def read_attempts(executor: Executor, task_id: str) -> list[Attempt]:
    """Return the attempts at a task in order; the last ones if there were many.

    Raises:
        NotFoundError: No task has this id.
    """

    async def work(unit: Unit) -> tuple[Entry | None, Entry | None]:
        stored, ended = await unit.read(tasks.task_key(task_id), attempts_key(task_id))
        return stored, ended

    (stored, ended), _ = await executor.run(work)
    if stored is None:
        raise NotFoundError(f"no task of {executor.name!r} has the id {task_id!r}")
    record = tasks.decode_record(stored.value, f"task {task_id!r} of {executor.name!r}")
    rows = [] if ended is None else decode_stored(ended.value, list[AttemptRecord], ended.key)
    found = [
        Attempt(row.number, row.worker, _moment(row.began_at_ms), to_datetime(row.ended_at_ms), row.error)
        for row in rows
    ]
    if record.state in ("claimed", "done"):
        ended_at = to_datetime(record.due_at_ms) if record.state == "done" else None
        found.append(Attempt(record.attempt, record.worker, _moment(record.began_at_ms), ended_at, None))
    return found


def _moment(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else to_datetime(at_ms)
