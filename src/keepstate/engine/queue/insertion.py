"""Insertion of a task under its id: once, or replacing an existing task."""

from __future__ import annotations

from typing import Final, Literal, get_args

from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.due_tasks import store_task
from keepstate.engine.queue.tasks import Put, TaskRecord
from keepstate.errors import AlreadyExistsError, InvalidError, TransitionError
from keepstate.stores.protocol import Entry

IfPresent = Literal["keep", "replace", "raise"]
CHOICES: Final[tuple[IfPresent, ...]] = get_args(IfPresent)


def check_if_present(if_present: object) -> None:
    """Raise `InvalidError` for a value of `if_present` that is not one of `CHOICES`."""
    if if_present not in CHOICES:
        raise InvalidError(f"`if_present` is {if_present!r}; it is one of {', '.join(CHOICES)}")


async def put_task(
    executor: Executor, unit: Unit, record: TaskRecord, payload: bytes, if_present: IfPresent
) -> Put:
    """Write a new task. If its id has one already, `if_present` decides.

    Args:
        executor: The executor of the space.
        unit: The unit to write to.
        record: The new task. Its times are relative to now.
        payload: Its encoded payload.
        if_present: See `Queue.put`.
    """
    entry = await unit.get(tasks.task_key(record.id))
    if entry is not None:
        known = tasks.decode_record(entry.value, f"task {record.id!r} of {executor.name!r}")
        if if_present == "keep":
            return Put(known.id, added=False, state=known.state)
        if if_present == "raise":
            raise AlreadyExistsError(
                f"space {executor.name!r} already has a task {record.id!r}, which is {known.state}; pass "
                "another id, or if_present='keep'"
            )
        if known.state == "claimed":
            raise TransitionError(
                f"task {record.id!r} of {executor.name!r} is held by worker "
                f"{shorten(known.worker or '')!r}. Wait until it is done, or call discard()",
                current=known.state,
                wanted="replaced",
            )
        erase_task(unit, entry, known)
    unit.put(tasks.payload_key(record.id), payload)
    now_ms = await unit.now_ms()
    store_task(unit, record, record.state, put_at_ms=now_ms, due_at_ms=now_ms + record.due_at_ms)
    return Put(record.id, added=True, state=record.state)


def erase_task(unit: Unit, entry: Entry, record: TaskRecord) -> None:
    """Delete the record of a task with its index entry, payload and result.

    Raises:
        InvalidError: The same transaction made the task ready, so its index key is known only after the
            commit.
    """
    if record.state == "ready" and entry.version == UNWRITTEN:
        raise InvalidError(
            f"task {record.id!r} was put by this transaction; discard it after the transaction"
        )
    index_key = tasks.index_key(record, entry.version)
    for key in (entry.key, index_key, tasks.payload_key(record.id), tasks.result_key(record.id)):
        unit.delete(key)
