"""Ticks of schedules: stored schedules, the index of those that are due, and the tasks that they become.

A schedule is moved on by the batch that puts its tasks, and that batch checks the schedule as it was read. So
any number of workers may tick, and each instant becomes one task. No timer runs: a claim ticks about once a
second while other tasks are ready, and always before it reports that none is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import (
    StoredMs,
    corrupt_error,
    decode_whole,
    describe,
    encode_fields,
    shorten,
    to_datetime,
)
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.cron import Cron
from keepstate.engine.queue.endings import put_task
from keepstate.engine.queue.tasks import Put, TaskRecord
from keepstate.engine.queue.timetable import Interval, Timetable, ZonedCron, find_zone, next_instants
from keepstate.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    UnsupportedError,
)
from keepstate.stores.protocol import Entry, Store
from keepstate.values import limits
from keepstate.values.key import pack, unpack

Missed: TypeAlias = Literal["skip", "last", "all"]
Overlap: TypeAlias = Literal["skip", "queue", "allow"]
Skipped: TypeAlias = Literal["missed", "overlap"]
MISSED: Final[tuple[Missed, ...]] = get_args(Missed)
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)

NAME_BYTES: Final = 160
"""Size of a schedule's name, so that the ids of its tasks fit."""
ON_TIME_MS: Final = 60_000
"""How late a tick may be before `missed="skip"` gives it up."""
MOST_MISSED: Final = 1_000
"""The number of missed ticks that become tasks, the latest ones."""
MOST_QUEUED: Final = 100
"""The number of ticks that wait for the one before."""

_MAX_ATTEMPTS: Final = 5
_AT_ONCE: Final = 100
"""Tasks put by one batch, each with three writes."""
_PAGE: Final = 32
_LATEST_IDS: Final = 16
"""The number of tasks that a schedule whose ticks may overlap remembers."""
_LOOK_AGAIN_MS: Final = 1_000
_DAY_MS: Final = 24 * 3600 * 1000
_GIVEN_UP_S: Final = 60.0
_MOST_GIVEN_UP: Final = 1_000
_ATTEMPTS: Final = 4
_UNUSABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
_log = logging.getLogger("keepstate.engine")
_encode: Final = msgspec.msgpack.Encoder().encode


class ScheduleRecord(msgspec.Struct, array_like=True, frozen=True):
    """A schedule as it is stored."""

    name: str
    cron: str | None
    every_ms: int | None
    zone: str
    kind: str
    key: str | None
    jitter_ms: int
    missed: Missed
    missed_within_ms: int
    overlap: Overlap
    until_ms: StoredMs | None
    is_paused: bool = False
    put_at_ms: StoredMs = 0
    anchor_ms: StoredMs = 0
    """The time from which `every_ms` counts."""
    last_ms: StoredMs = 0
    """Every instant up to this time was judged."""
    next_ms: StoredMs | None = None
    """The next instant, by the zone data of the last worker that looked; None if none comes."""
    due_ms: StoredMs | None = None
    """The time of its entry in the index; None if it has none."""
    open_ids: tuple[str, ...] = ()
    """The tasks put last that may not have ended."""
    queued: tuple[StoredMs, ...] = ()
    """Instants whose tasks are put when the open ones have ended."""
    last_id: str | None = None
    ticked_ms: StoredMs | None = None
    """The instant of the task put last."""
    skipped_ms: StoredMs | None = None
    skipped: Skipped | None = None
    """The last instant, or the first of several, that became no task, and why."""
    later: tuple[Any, ...] = ()
    """Fields added by a later version of keepstate. They are written back unchanged."""

    def timetable(self) -> Timetable:
        """Return its instants.

        Raises:
            InvalidError: This machine does not know the zone.
        """
        if self.every_ms is not None:
            return Interval(self.anchor_ms, self.every_ms)
        assert self.cron is not None
        return ZonedCron(Cron(self.cron), find_zone(self.zone))

    def next_after(self, at_ms: int) -> int | None:
        """Return the next instant after a time, or None if it has ended by then."""
        return next(iter(next_instants(self.timetable(), at_ms, self.until_ms, 1)), None)


@dataclass(frozen=True, slots=True)
class TickResult:
    """The result of looking at the schedules of a space.

    Attributes:
        tasks: The number of tasks put.
        wait_s: Seconds until a schedule is due next; None without any.
    """

    tasks: int
    wait_s: float | None


# ---- stored form


def schedule_key(name: str) -> bytes:
    """Return the key of a schedule.

    Raises:
        InvalidError: The name is not a str of 1 to 160 bytes.
    """
    try:
        is_fit = type(name) is str and 0 < len(name.encode()) <= NAME_BYTES
    except UnicodeEncodeError:
        is_fit = False
    if not is_fit:
        raise InvalidError(f"schedule name {name!r:.200} must be a str of 1 to {NAME_BYTES} bytes of UTF-8")
    return layout.SCHEDULES + pack(name)


def planned_key(name: str) -> bytes:
    """Return the key of the payload of a schedule's tasks."""
    return layout.PLANNED + pack(name)


def tick_key(due_ms: int, name: str) -> bytes:
    """Return the key of a schedule in the index of due ones."""
    return layout.TICKS + pack(due_ms, name)


def tick_in(key: bytes) -> tuple[int, str]:
    """Return the time and the schedule in a key of the index."""
    match unpack(key[len(layout.TICKS) :]):
        case (int(due_ms), str(name)):
            return due_ms, name
        case _:
            raise corrupt_error(describe(key), "it does not contain a time and a name")


def decode_schedule(stored: bytes, place: str) -> ScheduleRecord:
    """Decode a stored schedule. `place` names it in errors.

    Raises:
        CorruptError: It is not a schedule.
    """
    return decode_whole(stored, ScheduleRecord, place)


def encode_schedule(record: ScheduleRecord) -> bytes:
    """Encode a schedule for storing."""
    return _encode(encode_fields(record))


def write_schedule(unit: Unit, record: ScheduleRecord, former: ScheduleRecord | None) -> None:
    """Write a schedule and its entry in the index of due ones."""
    for each in (record, former):
        if each is not None:
            tasks.note_kind(unit, each.kind)
    if former is not None and former.due_ms is not None and former.due_ms != record.due_ms:
        unit.delete(tick_key(former.due_ms, former.name))
    if record.due_ms is not None:
        unit.put(tick_key(record.due_ms, record.name), b"")
    unit.put(schedule_key(record.name), encode_schedule(record))


def plan_next(record: ScheduleRecord, next_ms: int | None, now_ms: int) -> ScheduleRecord:
    """Return a schedule with its next instant, and with the time at which to look at it again.

    A schedule in a zone is looked at once a day, because the rules of its zone may change.
    """
    due_ms = next_ms
    if due_ms is not None and record.cron is not None and record.zone != "UTC":
        due_ms = min(due_ms, now_ms + _DAY_MS)
    if record.queued:
        due_ms = min(now_ms + _LOOK_AGAIN_MS, due_ms or now_ms + _LOOK_AGAIN_MS)
    return msgspec.structs.replace(record, next_ms=next_ms, due_ms=due_ms)


# ---- the tasks of a schedule


def tick_id(name: str, at_ms: int) -> str:
    """Return the id of the task of an instant."""
    precision = "milliseconds" if at_ms % 1000 else "seconds"
    instant = to_datetime(at_ms).replace(tzinfo=None).isoformat(timespec=precision)
    return f"schedule/{name}/{instant}Z"


def jitter_ms(space: str, record: ScheduleRecord, at_ms: int) -> int:
    """Return the delay of an instant's task: the same in every process, spread over spaces and instants."""
    digest = sha256(pack(space, record.name, at_ms)).digest()
    return int.from_bytes(digest[:8]) % (record.jitter_ms + 1)


async def put_ticks(
    executor: Executor, unit: Unit, record: ScheduleRecord, instants: list[int], *, is_manual: bool = False
) -> tuple[ScheduleRecord, list[Put]]:
    """Put the tasks of some instants, and return the schedule that remembers them."""
    planned = planned_key(record.name)
    ids = [tick_id(record.name, at_ms) for at_ms in instants]
    stored, *_ = await unit.read(planned, *map(tasks.task_key, ids))
    if stored is None:
        raise corrupt_error(f"{describe(planned)} of {executor.name!r}", "it is lost")
    payload, now_ms = await unit.value(stored), await unit.now_ms()
    found: list[Put] = []
    for at_ms, id in zip(instants, ids, strict=True):
        delay_ms = 0 if is_manual else jitter_ms(executor.stored_name, record, at_ms)
        wait_ms = max(at_ms + delay_ms - now_ms, 0)
        task = TaskRecord(
            id, "ready", 0, 0, _MAX_ATTEMPTS, 0, put_at_ms=0, due_at_ms=wait_ms,
            kind=record.kind, key=record.key,
        )  # fmt: skip
        own = executor.rebind(payload, planned, tasks.payload_key(id))
        found.append(await put_task(executor, unit, task, own, "keep"))
    open_ids = tuple(dict.fromkeys((*record.open_ids, *ids)))
    if record.overlap == "allow":
        open_ids = open_ids[-_LATEST_IDS:]
    record = msgspec.structs.replace(
        record, open_ids=open_ids[-MOST_QUEUED:], last_id=ids[-1], ticked_ms=instants[-1]
    )
    return record, found


async def _open_ids(executor: Executor, unit: Unit, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids of the tasks that have not ended."""
    entries = await unit.read(*map(tasks.task_key, ids)) if ids else []
    place = f"a task record of {executor.name!r}"
    states = [None if entry is None else tasks.decode_record(entry.value, place).state for entry in entries]
    return tuple(
        id for id, state in zip(ids, states, strict=True) if state in ("ready", "waiting", "claimed")
    )


def _due(record: ScheduleRecord, now_ms: int) -> tuple[list[int], ScheduleRecord]:
    """Return the instants that are due by the rule for missed ones, and the schedule after them."""
    table = record.timetable()
    end_ms = now_ms if record.until_ms is None else min(now_ms, record.until_ms)
    first_ms = table.after(record.last_ms)
    if first_ms is None or first_ms > end_ms:
        return [], msgspec.structs.replace(record, last_ms=max(record.last_ms, now_ms))
    within_ms = ON_TIME_MS if record.missed == "skip" else record.missed_within_ms
    most = MOST_MISSED if record.missed == "all" else 1
    found = table.latest(max(record.last_ms, now_ms - within_ms - 1), end_ms, most)
    if not found or found[0] != first_ms:
        record = msgspec.structs.replace(record, skipped_ms=first_ms, skipped="missed")
    chosen = found[:_AT_ONCE]
    last_ms = chosen[-1] if len(chosen) < len(found) else now_ms
    return chosen, msgspec.structs.replace(record, last_ms=last_ms)


def _admit(record: ScheduleRecord, due: list[int]) -> tuple[list[int], ScheduleRecord]:
    """Return the instants whose tasks are put now by the rule for overlapping ones, and the schedule."""
    wanted = [*record.queued, *due]
    if record.overlap == "allow":
        return wanted, msgspec.structs.replace(record, queued=())
    chosen = [] if record.open_ids else wanted[:1]
    rest = wanted[len(chosen) :]
    kept = rest[:MOST_QUEUED] if record.overlap == "queue" else []
    record = msgspec.structs.replace(record, queued=tuple(kept))
    if len(rest) > len(kept):
        record = msgspec.structs.replace(record, skipped_ms=rest[len(kept)], skipped="overlap")
    return chosen, record


class Ticker:
    """Puts the tasks of the schedules of one space that are due.

    Args:
        executor: The executor of the space.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._given_up: dict[bytes, float] = {}
        """When to try again a schedule that this process cannot use, by its key in the index."""

    async def tick(self, store: Store) -> TickResult:
        """Put the tasks of due schedules, of at most 32 at a time.

        A schedule that this process cannot use, for example because the machine lacks its zone, is left to
        other workers.
        """
        put, looked, after = 0, 0, None
        now_s = self._executor.clock.monotonic_s()
        while True:
            page = await store.scan(self._executor.stored_name, layout.TICKS, after=after, limit=_PAGE)
            for entry in page.entries:
                due_ms, name = tick_in(entry.key)
                if due_ms > page.now_ms:
                    return TickResult(put, self._wait_s((due_ms - page.now_ms) / 1000))
                if self._given_up.get(entry.key, 0.0) > now_s:
                    continue
                if looked == _PAGE:
                    return TickResult(put, 0.0)
                looked += 1
                put += await self._tick_one(entry, name, now_s)
            if page.next is None:
                return TickResult(put, self._wait_s(0.0 if looked else None))
            after = page.next

    def _wait_s(self, due_s: float | None) -> float | None:
        if not self._given_up:
            return due_s
        return _GIVEN_UP_S if due_s is None else min(due_s, _GIVEN_UP_S)

    async def _tick_one(self, index: Entry, name: str, now_s: float) -> int:
        async def work(unit: Unit) -> int:
            key = schedule_key(name)
            entry = await unit.get(key)
            if entry is None:
                return 0
            former = decode_schedule(entry.value, f"{describe(key)} of {self._executor.name!r}")
            now_ms = await unit.now_ms()
            if former.due_ms is None or former.due_ms > now_ms:
                return 0  # another worker was first
            due, record = _due(former, now_ms)
            if record.overlap != "allow" and (due or record.queued):
                still_open = await _open_ids(self._executor, unit, record.open_ids)
                record = msgspec.structs.replace(record, open_ids=still_open)
            due, record = _admit(record, due)
            put: list[Put] = []
            if due:
                record, put = await put_ticks(self._executor, unit, record, due)
            next_ms = record.next_after(record.last_ms)
            write_schedule(unit, plan_next(record, next_ms, now_ms), former)
            return sum(each.added for each in put)

        try:
            return (await self._executor.run(work, attempts=_ATTEMPTS))[0]
        except _UNUSABLE as error:
            self._give_up(index.key, name, error, now_s)
        except ConflictError:  # other workers tick it
            pass
        return 0

    def _give_up(self, key: bytes, name: str, error: KeepstateError, now_s: float) -> None:
        if len(self._given_up) >= _MOST_GIVEN_UP:
            self._given_up.clear()
        if key not in self._given_up:
            _log.warning("schedule %r of %r cannot tick here: %s", shorten(name), self._executor.name, error)
        self._given_up[key] = now_s + _GIVEN_UP_S


assert _AT_ONCE * 3 + 4 <= limits.BATCH_WRITES
