"""Tasks whose time has come: those whose delay is over, and those whose worker was not heard of in time.

Nobody watches the clock for them. Who looks for a task looks for these now and then, and always where it
would else find none.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.key_text import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import DONE_KEPT_MS, TaskRecord, TaskState
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Entry, Store
from keepstate.values import limits

_PAGE = 64
_EVERY_S = 0.25
"""How often to look for due and forgotten tasks while enough others are ready."""


class DueTasks:
    """Makes waiting and claimed tasks of one space ready when they are due."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._looked_at_s: float | None = None

    async def wake(self, store: Store, *, force: bool) -> bool:
        """Make tasks ready whose delay or lease is over, and return whether there were any."""
        now_s = self._executor.clock.monotonic_s()
        if not force and self._looked_at_s is not None and now_s - self._looked_at_s < _EVERY_S:
            return False
        self._looked_at_s = now_s
        now_ms = (await store.read(self._executor.stored_name, [])).now_ms
        woken = False
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._executor.stored_name, part, limit=_PAGE)
            due = [entry for entry in page.entries if tasks.time_in(part, entry.key)[0] <= now_ms]
            if due:
                woken = await self._make_ready(due) or woken
        return woken

    async def _make_ready(self, due: list[Entry]) -> bool:
        async def work(unit: Unit) -> bool:
            names = [tasks.id_in(entry) for entry in due]
            stored = await unit.read(*(tasks.task_key(name) for name in names))
            now_ms = await unit.now_ms()
            moved = False
            for index, entry in zip(due, stored, strict=True):
                if entry is None:
                    continue
                record = tasks.opened(entry.value, f"a task record of {self._executor.name!r}")
                if record.place == index.key and record.due_at_ms <= now_ms:
                    put_ready_or_dead(unit, entry.key, record, now_ms)
                    moved = True
            return moved

        try:
            return (await self._executor.run(work, attempts=4))[0]
        except ConflictError:
            return True

    async def next_due_s(self, store: Store) -> float:
        """Return in how many seconds the next waiting or claimed task is due."""
        now_ms = (await store.read(self._executor.stored_name, [])).now_ms
        soonest = float(limits.TTL_MS)
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._executor.stored_name, part, limit=1)
            for entry in page.entries:
                soonest = min(soonest, tasks.time_in(part, entry.key)[0] - now_ms)
        return max(soonest / 1000, 0.001)


def attempts_exhausted(record: TaskRecord) -> bool:
    """Whether the end of its lease is the end of the task."""
    return record.state == "claimed" and record.attempt >= record.max_attempts


def put_ready_or_dead(unit: Unit, key: bytes, record: TaskRecord, now_ms: int) -> TaskRecord:
    """Write a task under its key as one whose delay or lease is over, and return its record."""
    unit.delete(record.place)
    if not attempts_exhausted(record):
        return put_ready(unit, key, record)
    place = tasks.timed_key(layout.DEAD, now_ms, record.id)
    error = f"the lease of worker {shorten(record.worker or '')!r} ran out in attempt {record.attempt}"
    record = msgspec.structs.replace(record, state="dead", due_at_ms=now_ms, place=place, error=error)
    unit.put(place, tasks.name_of(record))
    unit.put(key, tasks.encoded(record))
    return record


def store_task(unit: Unit, record: TaskRecord, state: TaskState, **changes: Any) -> TaskRecord:
    """Write a record and its index entry for a new state; the old entry is the caller's to remove."""
    key, kept_ms = tasks.task_key(record.id), DONE_KEPT_MS if state == "done" else None
    if state == "ready":
        return put_ready(unit, key, record, **changes)
    record = msgspec.structs.replace(record, state=state, **changes)
    place = tasks.timed_key(layout.INDEXES[state], record.due_at_ms, record.id)
    record = msgspec.structs.replace(record, place=place)
    unit.put(place, tasks.name_of(record), ttl_ms=kept_ms)
    unit.put(key, tasks.encoded(record), ttl_ms=kept_ms)
    return record


def put_ready(unit: Unit, key: bytes, record: TaskRecord, **changes: Any) -> TaskRecord:
    """Write a task under its key as a ready one, and return its record; what else has changed is given.

    Its old index entry is the caller's to remove.
    """
    prefix = tasks.ready_prefix(record.priority)
    stamp_index = unit.append(prefix, tasks.name_of(record))
    changes |= {"state": "ready", "place": prefix, "stamp_index": stamp_index}
    record = msgspec.structs.replace(record, **changes)
    unit.put(key, tasks.encoded(record))
    return record
