"""Promotion of due tasks: those whose delay is over, and those whose lease has expired.

No timer runs. A claim promotes due tasks every 0.25 seconds, and always before it reports that none is ready.
"""

from __future__ import annotations

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Entry, Store
from keepstate.values import limits

_PAGE = 64
_EVERY_S = 0.25
"""Seconds between promotions while other tasks are ready."""


class DueTasks:
    """Promotes due tasks of one space from waiting or claimed to ready."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._promoted_at_s: float | None = None

    async def promote(self, store: Store, *, force: bool) -> bool:
        """Make tasks ready whose delay or lease has ended, and return whether there were any."""
        now_s = self._executor.clock.monotonic_s()
        if not force and self._promoted_at_s is not None and now_s - self._promoted_at_s < _EVERY_S:
            return False
        self._promoted_at_s = now_s
        promoted = False
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._executor.stored_name, part, limit=_PAGE)
            due = [entry for entry in page.entries if tasks.time_in(part, entry.key)[0] <= page.now_ms]
            if due:
                promoted = await self._promote_due(due) or promoted
        return promoted

    async def _promote_due(self, due: list[Entry]) -> bool:
        async def work(unit: Unit) -> bool:
            names = [tasks.id_in(entry) for entry in due]
            stored = await unit.read(*(tasks.task_key(name) for name in names))
            now_ms = await unit.now_ms()
            moved = False
            for index, entry in zip(due, stored, strict=True):
                if entry is None:
                    continue
                record = tasks.decode_record(entry.value, f"a task record of {self._executor.name!r}")
                if record.place == index.key and record.due_at_ms <= now_ms:
                    put_ready_or_dead(unit, record, now_ms)
                    moved = True
            return moved

        try:
            return (await self._executor.run(work, attempts=4))[0]
        except ConflictError:
            return True

    async def next_due_s(self, store: Store) -> float:
        """Return the seconds until the next waiting or claimed task is due."""
        soonest = float(limits.TTL_MS)
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._executor.stored_name, part, limit=1)
            for entry in page.entries:
                soonest = min(soonest, tasks.time_in(part, entry.key)[0] - page.now_ms)
        return max(soonest / 1000, 0.001)


def attempts_exhausted(record: TaskRecord) -> bool:
    """Return whether the task is dead once its lease expires."""
    return record.state == "claimed" and record.attempt >= record.max_attempts


def put_ready_or_dead(unit: Unit, record: TaskRecord, now_ms: int) -> TaskRecord:
    """Move a task whose delay or lease has ended to ready or dead, and return its record."""
    if not attempts_exhausted(record):
        return tasks.move(unit, record, "ready")
    error = f"the lease of worker {shorten(record.worker or '')!r} expired in attempt {record.attempt}"
    return tasks.move(unit, record, "dead", due_at_ms=now_ms, error=error)
