"""Promotion of due tasks: those whose delay is over, and those whose lease has expired.

No timer runs. A claim promotes due tasks every 0.25 seconds, and always before it reports that none is ready.
It ticks the schedules of the space every second, and then too.
"""

from __future__ import annotations

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.attempts import attempts_key, note_attempt
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.engine.queue.ticks import Ticker
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Entry, Store
from keepstate.values import limits

_PAGE = 64
_EVERY_S = 0.25
"""Seconds between promotions while other tasks are ready."""
_TICK_EVERY_S = 1.0
"""Seconds between looks at schedules while other tasks are ready."""


class DueTasks:
    """Promotes due tasks of one space from waiting or claimed to ready."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._promoted_at_s: float | None = None
        self._ticker = Ticker(executor)
        self._ticked_at_s = executor.clock.monotonic_s()
        self._tick_wait_s: float | None = None
        self._next_at_s: float | None = None
        """The time of the next due task, if the last look found none that was due."""

    def begin(self) -> None:
        """Forget the time of the next due task, because an attempt to claim begins."""
        self._next_at_s = None

    async def promote(self, store: Store, *, force: bool) -> bool:
        """Make tasks ready whose delay or lease has ended, or whose schedule is due.

        Returns:
            Whether there were any.
        """
        now_s = self._executor.clock.monotonic_s()
        if not force and self._promoted_at_s is not None and now_s - self._promoted_at_s < _EVERY_S:
            return False
        self._promoted_at_s, self._next_at_s = now_s, None
        promoted, soonest_ms = False, limits.TTL_MS
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._executor.stored_name, part, limit=_PAGE)
            due_in_ms = [tasks.time_in(part, entry.key)[0] - page.now_ms for entry in page.entries]
            due = [entry for entry, left_ms in zip(page.entries, due_in_ms, strict=True) if left_ms <= 0]
            soonest_ms = min([soonest_ms, *due_in_ms])
            if due:
                promoted = await self._promote_due(due) or promoted
        if soonest_ms > 0:
            self._next_at_s = now_s + soonest_ms / 1000
        if force or now_s - self._ticked_at_s >= _TICK_EVERY_S:
            self._ticked_at_s = now_s
            ticked = await self._ticker.tick(store)
            self._tick_wait_s = ticked.wait_s
            promoted = promoted or ticked.tasks > 0
        return promoted

    async def _promote_due(self, due: list[Entry]) -> bool:
        followed: list[str] = []

        async def work(unit: Unit) -> bool:
            followed.clear()
            names = [tasks.id_in(entry) for entry in due]
            stored = await unit.read(*(tasks.task_key(name) for name in names))
            now_ms = await unit.now_ms()
            records: list[TaskRecord] = []
            for index, entry in zip(due, stored, strict=True):
                if entry is None:
                    continue
                record = tasks.decode_record(entry.value, f"a task record of {self._executor.name!r}")
                if record.place != index.key:
                    continue
                if tasks.time_in(layout.INDEXES[record.state], index.key)[0] <= now_ms:
                    records.append(record)
            await unit.read(*(attempts_key(each.id) for each in records if each.state == "claimed"))
            for record in records:
                moved = await put_ready_or_dead(unit, record, now_ms)
                if moved.state == "dead" and moved.is_followed:
                    followed.append(moved.id)
            return bool(records)

        try:
            promoted = (await self._executor.run(work, attempts=4))[0]
        except ConflictError:
            return True
        await followers.resume(self._executor, followed)
        return promoted

    async def next_due_s(self, store: Store) -> float:
        """Return the seconds until the next waiting or claimed task is due, or a schedule.

        The answer costs no read if `promote` found nothing due since the attempt began.
        """
        soonest = float(limits.TTL_MS if self._tick_wait_s is None else self._tick_wait_s * 1000)
        if self._next_at_s is not None:
            left_ms = (self._next_at_s - self._executor.clock.monotonic_s()) * 1000
            return max(min(soonest, left_ms) / 1000, 0.001)
        for part in (layout.WAITING, layout.CLAIMED):
            page = await store.scan(self._executor.stored_name, part, limit=1)
            for entry in page.entries:
                soonest = min(soonest, tasks.time_in(part, entry.key)[0] - page.now_ms)
        return max(soonest / 1000, 0.001)


def attempts_exhausted(record: TaskRecord) -> bool:
    """Return whether the task is dead once its lease expires."""
    return record.state == "claimed" and record.attempt >= record.max_attempts


async def put_ready_or_dead(unit: Unit, record: TaskRecord, now_ms: int) -> TaskRecord:
    """Move a task whose time has come to ready or dead, and return its record."""
    if record.state == "claimed":
        error = f"the lease of worker {shorten(record.worker or '')!r} expired in attempt {record.attempt}"
        noted = await note_attempt(unit, record, now_ms, error)
        if attempts_exhausted(record):
            return followers.die(unit, noted, now_ms, error)
        return tasks.move(unit, noted, "ready")
    if tasks.is_expired(record, now_ms):
        return followers.die(unit, record, now_ms, tasks.EXPIRED)
    return followers.wake(unit, record, now_ms)
