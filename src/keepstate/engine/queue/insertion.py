"""Puts a task under its id: once, or in place of the task that stands there."""

from __future__ import annotations

from typing import Final, Literal, get_args

from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.key_text import shorten
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.due_tasks import store_task
from keepstate.engine.queue.tasks import Put, TaskRecord
from keepstate.errors import AlreadyExistsError, InvalidError, TransitionError
from keepstate.stores.protocol import Entry

IfPresent = Literal["keep", "replace", "raise"]
CHOICES: Final[tuple[IfPresent, ...]] = get_args(IfPresent)


def admit_if_present(if_present: object) -> None:
    """Refuse a value of `if_present` that is not one of `CHOICES`."""
    if if_present not in CHOICES:
        raise InvalidError(f"`if_present` is {if_present!r}; it is one of {', '.join(CHOICES)}")


async def put_task(
    executor: Executor, unit: Unit, record: TaskRecord, payload: bytes, if_present: IfPresent
) -> Put:
    """Write a new task from now on, unless the rule `if_present` keeps or refuses the one of the same id.

    Args:
        executor: Names the space in errors.
        unit: Reads and writes.
        record: The new task; its times count from 0.
        payload: Its encoded payload.
        if_present: See `Queue.put`.
    """
    entry = await unit.get(tasks.task_key(record.id))
    if entry is not None:
        known = tasks.opened(entry.value, f"task {record.id!r} of {executor.name!r}")
        if if_present == "keep":
            return Put(known.id, added=False, state=known.state)
        if if_present == "raise":
            raise AlreadyExistsError(
                f"{executor.name!r} has a task {record.id!r}, which is {known.state}; give another id"
            )
        if known.state == "claimed":
            raise TransitionError(
                f"task {record.id!r} of {executor.name!r} is held by {shorten(known.worker or '')!r}; "
                "wait, or call discard()",
                current=known.state,
                wanted="replaced",
            )
        erase_task(unit, entry, known)
    unit.put(tasks.payload_key(record.id), payload)
    now_ms = await unit.now_ms()
    store_task(unit, record, record.state, put_at_ms=now_ms, due_at_ms=now_ms + record.due_at_ms)
    return Put(record.id, added=True, state=record.state)


def erase_task(unit: Unit, entry: Entry, record: TaskRecord) -> None:
    """Delete the record of a task and all that belongs to it.

    Raises:
        InvalidError: The same transaction has made the task ready, and its place is known only at the end.
    """
    if record.state == "ready" and entry.version == UNWRITTEN:
        raise InvalidError(f"task {record.id!r} is put by this transaction; discard it after its end")
    place = tasks.place_of(record, entry.version)
    for key in (entry.key, place, tasks.payload_key(record.id), tasks.result_key(record.id)):
        unit.delete(key)
