"""Holds that a restored backup brought back: claims and leases are void, and the queue is paused.

The workers that held them are gone, or hold them in a history that the store no longer has. Each space takes
new revisions for it, whose random nonces the lost history cannot have. So a position or a cursor from behind
the backup raises `HistoryLostError`, also after others have written as many revisions again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.attempts import attempts_key, note_attempt
from keepstate.engine.queue.rules import change_pause
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.stores.protocol import Entry

_AT_ONCE: Final = 64
_ERROR: Final = "a backup was restored while this attempt was held"
_QUEUE: Final = (*layout.INDEXES.values(), layout.SCHEDULES)
"""The parts of a space that has a queue."""


@dataclass(frozen=True, slots=True)
class RestoredSpace:
    """Report on one space of a restored store: the holds that were ended.

    Attributes:
        claims: The number of tasks that were claimed, and are ready again.
        leases: The number of leases that were held.
        is_paused: Whether the space has a queue, which is paused now.
    """

    claims: int
    leases: int
    is_paused: bool


async def void_holds(executor: Executor) -> RestoredSpace:
    """Pause the queue of a space, make its claimed tasks ready, and delete its leases.

    An attempt that is cut off like this does not count. The pause comes first, so no worker claims a task
    meanwhile. An interrupted call is completed by the next one. Costs a batch, and one for each 64 holds.
    """
    store, stored = await executor.store(), executor.stored_name
    parts = (await store.sizes(stored)).parts
    has_queue = any(part in parts and parts[part].entries for part in _QUEUE)

    async def begin(unit: Unit) -> None:
        unit.delete(layout.UNUSED)
        if has_queue:
            await change_pause(unit, None, is_paused=True)

    await executor.run(begin, attempts=None)
    claims = await _void(executor, layout.CLAIMED)
    leases = await _void(executor, layout.LEASES)
    return RestoredSpace(claims, leases, has_queue)


async def _void(executor: Executor, part: bytes) -> int:
    """End all holds in a part of the space, and return their number."""
    store, number = await executor.store(), 0
    after: bytes | None = None
    while True:
        page = await store.scan(executor.stored_name, part, after=after, limit=_AT_ONCE)
        if not page.entries:
            return number
        after = page.entries[-1].key
        work = partial(_release if part == layout.CLAIMED else _delete, executor, page.entries)
        number += (await executor.run(work, attempts=None))[0]


async def _release(executor: Executor, places: Sequence[Entry], unit: Unit) -> int:
    """Make tasks ready that are still claimed as their entries in the index say."""
    stored = await unit.read(*(tasks.task_key(tasks.id_in(place)) for place in places))
    records: list[TaskRecord] = []
    for place, entry in zip(places, stored, strict=True):
        if entry is not None:
            record = tasks.decode_record(entry.value, f"a task record of {executor.name!r}")
            if record.state == "claimed" and record.place == place.key:
                records.append(record)
    await unit.read(*(attempts_key(record.id) for record in records))
    now_ms = await unit.now_ms()
    for record in records:
        noted = await note_attempt(unit, record, now_ms, _ERROR)
        tasks.move(unit, noted, "ready", attempt=record.attempt - 1, due_at_ms=now_ms)
    return len(records)


async def _delete(_executor: Executor, leases: Sequence[Entry], unit: Unit) -> int:
    """Delete leases whose entries are unchanged."""
    found = await unit.read(*(lease.key for lease in leases))
    held = [now.key for now, then in zip(found, leases, strict=True) if now and now.version == then.version]
    for key in held:
        unit.delete(key)
    return len(held)
