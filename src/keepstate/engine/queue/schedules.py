"""Schedules: what a space does at given times, such as a report every night at two.

A schedule is stored, and its instants become tasks of the queue. The schedule needs no process of its own:
every worker that claims tasks of the space also puts those that are due.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import (
    check_choice,
    check_delay_ms,
    check_duration_ms,
    check_flag,
    require_instance,
)
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.kernel.stored import describe, shorten, to_datetime, to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.cron import Cron
from keepstate.engine.queue.tasks import Put
from keepstate.engine.queue.ticks import (
    MISSED,
    OVERLAPS,
    Missed,
    Overlap,
    ScheduleRecord,
    Skipped,
    Ticker,
    decode_schedule,
    plan_next,
    planned_key,
    put_ticks,
    schedule_key,
    tick_key,
    write_schedule,
)
from keepstate.engine.queue.timetable import check_zone, next_instants
from keepstate.errors import InvalidError, NotFoundError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

_LEAST_EVERY_MS: Final = 1_000
_LONGEST_JITTER_S: Final = 86_400
_MOST_NEXT: Final = 1_000
_DEFINED: Final = (
    *("cron", "every_ms", "zone", "until_ms", "kind", "key"),
    *("jitter_ms", "missed", "missed_within_ms", "overlap"),
)
"""The fields of a schedule that its caller defines."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule of a space.

    Attributes:
        name: Its name.
        cron: The cron expression; None for one with `every_s`.
        every_s: The seconds between two ticks; None for one with `cron`.
        zone: The zone of the cron expression.
        kind: The kind of its tasks.
        key: The key of its tasks.
        payload: The payload of its tasks, if requested.
        jitter_s: The most seconds by which a tick is delayed.
        missed: The rule for ticks that no worker put in time.
        missed_within_s: How late a missed tick may be.
        overlap: The rule for a tick that comes before the last one is done.
        until: The time of the last tick at the latest.
        paused: Whether it is paused.
        next_at: The time of its next tick, without jitter; None if it is paused or has ended.
        last_at: The time for which its last task was put; None before the first one.
        last_id: The id of its last task.
        skipped_at: The time of the last tick that became no task, or of the first of several.
        skipped: Why: it was `missed`, or it would have been an `overlap`.
        put_at: When it was put first, by the store's clock.
    """

    name: str
    cron: str | None
    every_s: float | None
    zone: str
    kind: str
    key: str | None
    payload: Any
    jitter_s: float
    missed: Missed
    missed_within_s: float
    overlap: Overlap
    until: datetime | None
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_id: str | None
    skipped_at: datetime | None
    skipped: Skipped | None
    put_at: datetime


class Schedules:
    """The schedules of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._ticker = Ticker(executor)

    def __repr__(self) -> str:
        return f"<Schedules of {self._executor.name!r}>"

    # ---- changing

    async def put(
        self,
        name: str,
        *,
        cron: str | None = None,
        every_s: float | None = None,
        zone: str = "UTC",
        kind: str = "",
        payload: object = None,
        key: str | None = None,
        jitter_s: float = 0,
        missed: Missed = "last",
        missed_within_s: float = 3600,
        overlap: Overlap = "skip",
        until: datetime | None = None,
    ) -> Schedule:
        """Add a schedule, or change the one of this name. Putting the same one again writes nothing.

        Each tick becomes the task `schedule/<name>/<instant>`. A changed schedule stays paused if it was, and
        continues after its last tick. If only its payload, kind, key or rules change, the time of the next
        tick stays.

        Args:
            name: 1 to 160 bytes of UTF-8.
            cron: Five fields: minute, hour, day of the month, month, day of the week. A wall time that the
                zone skips runs at the end of the gap, one that comes twice runs once, the first time.
            every_s: Seconds between two ticks, at least 1; the first one comes so long after the put. Give
                this or `cron`.
            zone: The time zone of `cron`, such as `Europe/Berlin`.
            kind: The kind of the tasks.
            payload: The payload of the tasks; any value that the codec stores.
            key: The key of the tasks.
            jitter_s: Delay each tick by up to this many seconds, at most a day. The delay follows from space,
                name and instant.
            missed: The rule for ticks that no worker put in time: `last` puts the last one, `all` puts each,
                up to the last 1,000, and `skip` puts none that is over a minute late.
            missed_within_s: With `last` and `all`, how late a tick may be.
            overlap: The rule for a tick while the task of an earlier one has not ended: `skip` it, `queue` it
                until then, at most 100 of them, or `allow` both to run.
            until: The time of the last tick at the latest.

        Raises:
            InvalidError: The expression or the zone is wrong, or no time ever matches.
            MissingExtraError: This machine has no time zones.
        """
        wanted, planned = self._definition(
            name, cron, every_s, zone, kind, payload, key, jitter_s, missed, missed_within_s, overlap, until
        )

        async def work(unit: Unit) -> Schedule:
            entry, stored = await unit.read(schedule_key(name), planned_key(name))
            former = None if entry is None else self._decode(entry)
            is_same = former is not None and _rules(former) == _rules(wanted)
            if former is not None and is_same and stored is not None and await unit.value(stored) == planned:
                return self._info(former, payload)
            record = await self._joined(unit, wanted, former)
            unit.put(planned_key(name), planned)
            write_schedule(unit, record, former)
            return self._info(record, payload)

        return (await self._executor.run(work))[0]

    def _definition(
        self,
        name: str,
        cron: str | None,
        every_s: float | None,
        zone: str,
        kind: str,
        payload: object,
        key: str | None,
        jitter_s: float,
        missed: Missed,
        missed_within_s: float,
        overlap: Overlap,
        until: datetime | None,
    ) -> tuple[ScheduleRecord, bytes]:
        """Return a new schedule, and its encoded payload, after verifying all arguments."""
        schedule_key(name)
        if (cron is None) == (every_s is None):
            raise InvalidError(f"schedule {name!r} needs either `cron` or `every_s`")
        every_ms = None
        if every_s is not None:
            every_ms = check_duration_ms("every_s", every_s)
            if every_ms < _LEAST_EVERY_MS:
                raise InvalidError(f"`every_s` is {every_s!r}; it is at least 1 second")
            if zone != "UTC":
                raise InvalidError("`zone` is for `cron`; leave it out with `every_s`")
        elif cron is not None:
            cron = Cron(cron).text
        if (delay_ms := check_delay_ms("jitter_s", jitter_s)) > _LONGEST_JITTER_S * 1000:
            raise InvalidError(f"`jitter_s` is {jitter_s!r}; it is at most {_LONGEST_JITTER_S}, a day")
        check_choice("missed", missed, *MISSED)
        check_choice("overlap", overlap, *OVERLAPS)
        if until is not None:
            require_instance("until", until, datetime)
            if until.tzinfo is None:
                raise InvalidError(f"`until` is {until!r}, which has no time zone; give an aware time")
        record = ScheduleRecord(
            name=name, cron=cron, every_ms=every_ms, zone=check_zone(zone),
            kind=tasks.check_kind("kind", kind) if kind != "" else "",
            key=None if key is None else tasks.check_kind("key", key),
            jitter_ms=delay_ms, missed=missed,
            missed_within_ms=check_duration_ms("missed_within_s", missed_within_s), overlap=overlap,
            until_ms=None if until is None else to_milliseconds(until),
        )  # fmt: skip
        return record, self._executor.encode(payload, planned_key(name))

    async def _joined(
        self, unit: Unit, wanted: ScheduleRecord, former: ScheduleRecord | None
    ) -> ScheduleRecord:
        """Return a new definition with the progress of the former one."""
        now_ms = await unit.now_ms()
        if former is None:
            record = msgspec.structs.replace(wanted, put_at_ms=now_ms, anchor_ms=now_ms, last_ms=now_ms)
            return plan_next(record, record.next_after(now_ms), now_ms)
        rules = {name: getattr(wanted, name) for name in _DEFINED}
        record = msgspec.structs.replace(former, **rules)
        if _times(former) == _times(wanted):
            return record
        anchor_ms = former.anchor_ms if former.every_ms == wanted.every_ms else now_ms
        record = msgspec.structs.replace(record, anchor_ms=anchor_ms, last_ms=now_ms)
        if record.is_paused:
            return record
        return plan_next(record, record.next_after(now_ms), now_ms)

    async def delete(self, name: str) -> bool:
        """Delete a schedule, and return whether it existed. Its tasks remain."""

        async def work(unit: Unit) -> bool:
            entry = await unit.get(schedule_key(name))
            if entry is None:
                return False
            record = self._decode(entry)
            if record.due_ms is not None:
                unit.delete(tick_key(record.due_ms, name))
            tasks.note_kind(unit, record.kind)
            unit.delete(planned_key(name))
            unit.delete(entry.key)
            return True

        return (await self._executor.run(work))[0]

    async def pause(self, name: str) -> bool:
        """Put no more tasks until `resume`. Return False if the schedule was paused already.

        Raises:
            NotFoundError: No schedule has this name.
        """

        async def work(unit: Unit) -> bool:
            former = await self._read(unit, name)
            if former.is_paused:
                return False
            record = msgspec.structs.replace(former, is_paused=True, next_ms=None, due_ms=None, queued=())
            write_schedule(unit, record, former)
            return True

        return (await self._executor.run(work))[0]

    async def resume(self, name: str) -> bool:
        """Put tasks again. Return False if the schedule was not paused.

        Ticks of the pause are not missed: the next one is the first after this call.

        Raises:
            NotFoundError: No schedule has this name.
        """

        async def work(unit: Unit) -> bool:
            former = await self._read(unit, name)
            if not former.is_paused:
                return False
            now_ms = await unit.now_ms()
            record = msgspec.structs.replace(former, is_paused=False, last_ms=max(former.last_ms, now_ms))
            write_schedule(unit, plan_next(record, record.next_after(record.last_ms), now_ms), former)
            return True

        return (await self._executor.run(work))[0]

    async def run_now(self, name: str) -> Put:
        """Put a task of the schedule now, also if it is paused or its last task has not ended.

        The time of the next tick stays. The task counts for `overlap`.

        Raises:
            NotFoundError: No schedule has this name.
        """

        async def work(unit: Unit) -> Put:
            former = await self._read(unit, name)
            record, (put,) = await put_ticks(
                self._executor, unit, former, [await unit.now_ms()], is_manual=True
            )
            write_schedule(unit, record, former)
            return put

        return (await self._executor.run(work))[0]

    async def tick(self) -> int:
        """Put the tasks of due schedules, of at most 32 at a time, and return their number.

        Workers call it themselves: `claim`, and what is built on it. If nothing is due, it costs one read.
        """
        self._executor.require_outside_transaction("ticking")
        return (await self._ticker.tick(await self._executor.store())).tasks

    # ---- reading

    async def get(self, name: str, *, payload: bool = False) -> Schedule | None:
        """Return a schedule, or None if none has this name; with `payload=True`, including its payload."""
        check_flag("payload", payload)

        async def work(unit: Unit) -> Schedule | None:
            keys = (schedule_key(name), planned_key(name))[: 1 + payload]
            entry, *planned = await unit.read(*keys)
            if entry is None:
                return None
            return self._info(self._decode(entry), await self._payload(unit, *planned))

        return (await self._executor.run(work))[0]

    async def list(self, *, after: str | None = None, limit: int = 100) -> Page[Schedule]:
        """Return one page of the schedules in the order of their names, without payloads.

        Args:
            after: Only schedules after the page with this cursor as `next`.
            limit: The largest number of schedules to return.
        """
        limits.admit_count("limit", limit)
        positions = Positions(await self._executor.store(), self._executor.stored_name, self._executor.name)
        part = await positions.range_in(
            layout.SCHEDULES, layout.SCHEDULES, after=after, before=None, reverse=False
        )
        rows: list[tuple[bytes, Schedule]] = []
        mark = None
        async for unit, entry in self._scan(part.after, limit):
            mark = unit.scanned_at
            rows.append((entry.key, self._info(self._decode(entry), None)))
            if len(rows) > limit:
                break
        return Page() if mark is None else positions.page_of(layout.SCHEDULES, part, limit, rows, mark)

    def _scan(self, after: bytes | None, limit: int) -> AsyncIterator[tuple[Unit, Entry]]:
        return self._executor.scan(layout.SCHEDULES, after=after, at_once=min(limit + 1, limits.PAGE_ROWS))

    async def next(self, name: str, n: int = 5) -> Sequence[datetime]:
        """Return the times of the next ticks, in UTC and without jitter; those of a paused schedule too.

        Args:
            name: The schedule.
            n: The number of times, at most 1,000. There are fewer if it ends before.

        Raises:
            NotFoundError: No schedule has this name.
        """
        limits.admit_count("n", n, most=_MOST_NEXT)

        async def work(unit: Unit) -> Sequence[datetime]:
            record = await self._read(unit, name)
            from_ms = max(record.last_ms, await unit.now_ms())
            return [*map(to_datetime, next_instants(record.timetable(), from_ms, record.until_ms, n))]

        return (await self._executor.run(work))[0]

    async def _read(self, unit: Unit, name: str) -> ScheduleRecord:
        entry = await unit.get(schedule_key(name))
        if entry is None:
            raise NotFoundError(
                f"space {self._executor.name!r} has no schedule {shorten(name)!r}; "
                "list the schedules to see their names"
            )
        return self._decode(entry)

    def _decode(self, entry: Entry) -> ScheduleRecord:
        return decode_schedule(entry.value, f"{describe(entry.key)} of {self._executor.name!r}")

    async def _payload(self, unit: Unit, planned: Entry | None = None) -> Any:
        if planned is None:
            return None
        return decode_value(self._executor, planned.key, await unit.value(planned))

    def _info(self, record: ScheduleRecord, payload: object) -> Schedule:
        return Schedule(
            name=record.name, cron=record.cron, every_s=_seconds(record.every_ms), zone=record.zone,
            kind=record.kind, key=record.key, payload=payload, jitter_s=record.jitter_ms / 1000,
            missed=record.missed, missed_within_s=record.missed_within_ms / 1000, overlap=record.overlap,
            until=_time(record.until_ms), paused=record.is_paused, next_at=_time(record.next_ms),
            last_at=_time(record.ticked_ms), last_id=record.last_id, skipped_at=_time(record.skipped_ms),
            skipped=record.skipped, put_at=to_datetime(record.put_at_ms),
        )  # fmt: skip


def _times(record: ScheduleRecord) -> tuple[object, ...]:
    """Return what decides the times of ticks."""
    return record.cron, record.every_ms, record.zone, record.until_ms


def _rules(record: ScheduleRecord) -> tuple[object, ...]:
    """Return what a caller defines, without the payload."""
    return tuple(getattr(record, name) for name in _DEFINED)


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else to_datetime(at_ms)


def _seconds(duration_ms: int | None) -> float | None:
    return None if duration_ms is None else duration_ms / 1000
