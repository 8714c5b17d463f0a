"""Schedules: each instant becomes one task, whoever ticks, by the rules for late and overlapping ones."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import msgspec
import pytest

import keepstate
from keepstate import sync
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.queue import ticks, timetable
from keepstate.engine.queue.schedules import Schedule
from keepstate.engine.queue.timetable import next_instants
from keepstate.engine.space.space import Space
from keepstate.errors import CorruptError, InvalidError, NotFoundError
from keepstate.stores.protocol import Batch, Delete
from keepstate.stores.protocol import Put as StorePut
from tests.engine.conftest import Turned

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def turn_to(turned: Turned, text: str) -> None:
    """Advance the clock to a time in UTC."""
    wanted = to_milliseconds(datetime.fromisoformat(text).replace(tzinfo=UTC))
    turned.clock.advance(wanted - turned.clock.now_ms())


async def ids(space: Space) -> list[str]:
    return [task.id for task in await space.queue.list()]


async def finish_all(space: Space) -> list[str]:
    """Run all tasks that are ready, and return the times in their ids."""
    found = await space.queue.claim("w", lease_s=60, count=1_000)
    for task in found:
        await task.complete()
    return [task.id.rpartition("/")[2] for task in found]


async def got(space: Space, name: str) -> Schedule:
    schedule = await space.schedules.get(name)
    assert schedule is not None
    return schedule


# ---- on every backend


@pytest.mark.parametrize("zone", ["localtime", "posixrules", "Factory"])
async def test_a_zone_that_is_another_one_on_each_machine_is_refused(turned: Turned, zone: str) -> None:
    for call in (
        turned.space.schedules.put("nightly", cron="0 2 * * *", zone=zone),
        turned.space.usage.set_zone(zone),
    ):
        with pytest.raises(InvalidError, match="another zone on each machine"):
            await call


async def test_a_schedule_puts_one_task_for_each_instant(space: Space) -> None:
    put = await space.schedules.put(
        "beat", every_s=1, kind="beat", key="k", payload={"n": 1}, overlap="allow"
    )
    assert put.next_at == put.put_at + timedelta(seconds=1)

    found: list[Any] = []
    while len(found) < 2:
        found += await space.queue.claim("w", lease_s=60, wait_s=30)

    first, second = (datetime.fromisoformat(task.id.removeprefix("schedule/beat/")) for task in found[:2])
    assert first == put.next_at
    assert (second - first) % timedelta(seconds=1) == timedelta(0) < second - first
    assert [(task.kind, task.key, task.payload) for task in found[:2]] == [("beat", "k", {"n": 1})] * 2


async def test_a_hundred_workers_tick_and_one_task_comes(space: Space) -> None:
    await space.schedules.put("beat", every_s=1)
    await asyncio.sleep(1.01)

    put = await asyncio.gather(*(space.schedules.tick() for _ in range(100)))

    assert sum(put) == 1
    assert (await space.queue.counts())["ready"] == 1


async def test_handles_of_one_store_tick_and_one_task_comes(shared_url: str) -> None:
    handles = [keepstate.open(shared_url) for _ in range(8)]
    spaces = [ks.space("run/1") for ks in handles]
    await spaces[0].schedules.put("beat", every_s=1)
    await asyncio.sleep(1.01)

    put = await asyncio.gather(*(space.schedules.tick() for space in spaces for _ in range(3)))

    assert sum(put) == 1
    for ks in handles:
        await ks.close()


async def test_schedules_are_listed_changed_and_deleted(space: Space) -> None:
    for name in ("c", "a", "b/1"):
        await space.schedules.put(name, cron="0 2 * * *", zone="Europe/Berlin", payload=name)

    page = await space.schedules.list(limit=2)
    rest = await space.schedules.list(after=page.next)

    assert [each.name for each in (*page, *rest)] == ["a", "b/1", "c"]
    assert rest.next is None
    found = await space.schedules.get("b/1", payload=True)
    assert found is not None and found.payload == "b/1"
    assert await space.schedules.delete("b/1")
    assert not await space.schedules.delete("b/1")
    assert await space.schedules.get("b/1") is None
    assert [each.name for each in await space.schedules.list()] == ["a", "c"]
    assert (await space.size()).entries == 7  # two schedules with three each, and the outbox of their queue


async def test_run_now_puts_a_task_and_leaves_the_next_tick_where_it_was(space: Space) -> None:
    before = await space.schedules.put("nightly", cron="0 2 * * *", payload=5)
    await space.schedules.pause("nightly")
    await space.schedules.resume("nightly")

    put = await space.schedules.run_now("nightly")

    (task,) = await space.queue.claim("w", lease_s=60)
    assert put.added and (task.id, task.payload) == (put.id, 5)
    assert (await got(space, "nightly")).next_at == before.next_at


async def test_a_transaction_puts_a_schedule_with_what_belongs_to_it(space: Space) -> None:
    with pytest.raises(RuntimeError):
        async with space.transaction() as tx:
            await tx.schedules.put("nightly", cron="0 2 * * *")
            raise RuntimeError
    assert await space.schedules.list() == []

    async with space.transaction() as tx:
        await tx.documents.put("customer", {"name": "Ann"})
        await tx.schedules.put("nightly", cron="0 2 * * *")
        assert [each.name for each in await tx.schedules.list()] == ["nightly"]

    assert (await space.schedules.next("nightly", 1))[0].hour == 2


async def test_a_large_payload_comes_with_each_task(space: Space) -> None:
    await space.schedules.put("large", every_s=1, payload="x" * 3_000_000)

    (task,) = await space.queue.claim("w", lease_s=60, wait_s=30)

    assert task.payload == "x" * 3_000_000


def test_the_blocking_twin_has_schedules() -> None:
    with sync.open("memory://") as ks:
        space = ks.space("run/1")
        space.schedules.put("beat", every_s=1)
        (task,) = space.queue.claim("w", lease_s=60, wait_s=30)
        assert task.id.startswith("schedule/beat/")
        assert space.schedules.list()[0].last_id == task.id


# ---- rules, on a clock that the test turns


async def test_90_days_of_real_zones_tick_exactly_as_computed(turned: Turned) -> None:
    turn_to(turned, "2025-02-20T00:00")
    space = turned.space
    rules = {
        "berlin": ("30 2 * * *", "Europe/Berlin"),
        "new-york": ("0 */6 * * MON-FRI", "America/New_York"),
        "cairo": ("0 0 * * *", "Africa/Cairo"),
        "lord-howe": ("15 2 * * *", "Australia/Lord_Howe"),
        "apia": ("0 9 L * *", "Pacific/Apia"),
    }
    for name, (cron, zone) in rules.items():
        await space.schedules.put(name, cron=cron, zone=zone, overlap="allow")
    begin_ms = turned.clock.now_ms()
    expected = {
        ticks.tick_id(name, at_ms)
        for name, (cron, zone) in rules.items()
        for at_ms in next_instants(
            timetable.ZonedCron(ticks.Cron(cron), ZoneInfo(zone)), begin_ms, begin_ms + 90 * DAY_MS, 10_000
        )
    }

    found: list[str] = []
    for _ in range(90 * 24 * 2):
        turned.clock.advance(30 * MINUTE_MS)
        claimed = await space.queue.claim("w", lease_s=60, count=100)
        found += [task.id for task in claimed]
        for task in claimed:
            await task.complete()

    assert len(found) == len(set(found))
    assert set(found) == expected


async def test_a_tick_is_one_read_if_nothing_is_due(turned: Turned) -> None:
    await turned.space.schedules.put("nightly", cron="0 2 * * *")
    store = await turned.space.executor.store()
    with (
        patch.object(store, "scan", wraps=store.scan) as scan,
        patch.object(store, "read", wraps=store.read) as read,
        patch.object(store, "apply", wraps=store.apply) as apply,
    ):
        assert await turned.space.schedules.tick() == 0

    assert (scan.call_count, read.call_count, apply.call_count) == (1, 0, 0)


async def test_the_same_schedule_put_again_writes_nothing(turned: Turned) -> None:
    async def put(payload: int) -> Schedule:
        return await turned.space.schedules.put("n", every_s=60, payload=payload, missed="all")

    first = await put(1)
    revision = await turned.space.revision()
    turned.clock.advance(30_000)

    assert await put(1) == first
    assert await turned.space.revision() == revision
    assert (await put(2)).next_at == first.next_at
    assert await turned.space.revision() == revision + 1


async def test_changed_times_count_from_the_change(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60)
    turned.clock.advance(90_000)
    now = await space.now()

    changed = await space.schedules.put("n", every_s=10)

    assert changed.next_at == now + timedelta(seconds=10)
    assert await space.schedules.tick() == 0


async def test_a_paused_schedule_puts_nothing_and_misses_nothing(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60, missed="all")
    assert await space.schedules.pause("n")
    assert not await space.schedules.pause("n")
    turned.clock.advance(10 * MINUTE_MS)
    assert await space.schedules.tick() == 0
    paused = await space.schedules.put("n", every_s=60, kind="other", missed="all")
    assert paused.paused and paused.next_at is None

    assert await space.schedules.resume("n")
    assert not await space.schedules.resume("n")

    assert await space.schedules.tick() == 0
    turned.clock.advance(MINUTE_MS)
    assert await space.schedules.tick() == 1
    assert len(await ids(space)) == 1


@pytest.mark.parametrize(
    ("missed", "within_s", "late_ms", "expected"),
    [
        ("last", 3600, 2 * HOUR_MS, ["14:00:00Z"]),
        ("last", 3600, 2 * HOUR_MS + 59 * MINUTE_MS, ["14:00:00Z"]),
        ("last", 600, 2 * HOUR_MS + 11 * MINUTE_MS, []),
        ("last", 600, 2 * HOUR_MS + 10 * MINUTE_MS, ["14:00:00Z"]),
        ("skip", 3600, 2 * HOUR_MS + MINUTE_MS, ["14:00:00Z"]),
        ("skip", 3600, 2 * HOUR_MS + MINUTE_MS + 1, []),
        ("all", 2 * 3600, 3 * HOUR_MS, ["13:00:00Z", "14:00:00Z", "15:00:00Z"]),
        ("all", 86_400, 2 * HOUR_MS, ["12:00:00Z", "13:00:00Z", "14:00:00Z"]),
    ],
)
async def test_missed_ticks_follow_their_rule(
    turned: Turned, missed: Any, within_s: float, late_ms: int, expected: list[str]
) -> None:
    turn_to(turned, "2025-06-01T11:30")
    space = turned.space
    await space.schedules.put("n", cron="0 * * * *", missed=missed, missed_within_s=within_s, overlap="allow")
    turned.clock.advance(30 * MINUTE_MS + late_ms)

    await space.schedules.tick()

    assert [id.rpartition("T")[2] for id in sorted(await ids(space))] == expected
    found = await got(space, "n")
    assert (found.skipped == "missed") == (len(expected) < late_ms // HOUR_MS + 1)
    assert found.next_at is not None and found.next_at > await space.now()


async def test_a_leap_of_400_days_is_bounded(turned: Turned) -> None:
    space = turned.space
    for missed in ("skip", "last", "all"):
        await space.schedules.put(
            missed, cron="* * * * *", missed=missed, missed_within_s=500 * 86_400, overlap="allow"
        )
    turned.clock.advance(400 * DAY_MS)

    put = 0
    for _ in range(20):
        put += await space.schedules.tick()

    assert put == 1 + 1 + ticks.MOST_MISSED
    newest = sorted(id for id in await _all_ids(space) if id.startswith("schedule/all/"))
    assert datetime.fromisoformat(newest[-1].rpartition("/")[2]) > await space.now() - timedelta(minutes=1)
    assert await space.schedules.tick() == 0


async def _all_ids(space: Space) -> list[str]:
    found = await space.queue.list(limit=10_000)
    return [task.id for task in found]


async def test_a_tick_is_skipped_while_the_last_task_has_not_ended(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60, overlap="skip")
    turned.clock.advance(MINUTE_MS)
    await space.schedules.tick()
    (task,) = await space.queue.claim("w", lease_s=600)
    turned.clock.advance(MINUTE_MS)
    assert await space.schedules.tick() == 0
    assert (await got(space, "n")).skipped == "overlap"

    await task.complete()
    turned.clock.advance(MINUTE_MS)

    assert await space.schedules.tick() == 1


@pytest.mark.parametrize("end", ["complete", "dead", "discard"])
async def test_a_queued_tick_comes_when_the_one_before_has_ended(turned: Turned, end: str) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60, overlap="queue")
    turned.clock.advance(MINUTE_MS)
    await space.schedules.tick()
    (task,) = await space.queue.claim("w", lease_s=600)
    turned.clock.advance(2 * MINUTE_MS)
    await space.schedules.tick()
    turned.clock.advance(1_000)
    assert await space.schedules.tick() == 0
    assert (await got(space, "n")).skipped == "missed"  # `last` queues one of the two

    if end == "complete":
        await task.complete()
    elif end == "discard":
        await space.queue.discard(task.id)
    else:
        for _ in range(5):
            await task.fail("no", retry_in_s=0)
            task, *_ = [*await space.queue.claim("w", lease_s=600), task]
    turned.clock.advance(1_000)

    assert await space.schedules.tick() == 1


async def test_queued_ticks_come_one_after_the_other_and_are_bounded(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60, overlap="queue", missed="all", missed_within_s=86_400)
    turned.clock.advance(150 * MINUTE_MS)
    done: list[str] = []
    for _ in range(150):
        await space.schedules.tick()
        found = await finish_all(space)
        assert len(found) <= 1
        done += found
        turned.clock.advance(1_000)

    assert done == sorted(set(done))
    assert ticks.MOST_QUEUED <= len(done) <= ticks.MOST_QUEUED + 5
    assert (await got(space, "n")).skipped == "overlap"


async def test_ticks_that_may_overlap_run_beside_one_another(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60, overlap="queue")
    for _ in range(3):
        turned.clock.advance(MINUTE_MS)
        await space.schedules.tick()
    await space.schedules.put("n", every_s=60, overlap="allow")  # takes over what is queued

    turned.clock.advance(MINUTE_MS)
    await space.schedules.tick()

    assert (await space.queue.counts())["ready"] == 4
    assert (await space.schedules.list())[0].next_at == await space.now() + timedelta(minutes=1)


async def test_a_schedule_ends_with_its_last_tick(turned: Turned) -> None:
    space = turned.space
    until = await space.now() + timedelta(minutes=2)
    await space.schedules.put("n", every_s=60, until=until, overlap="allow", missed="all")
    assert len(await space.schedules.next("n", 10)) == 2
    turned.clock.advance(10 * MINUTE_MS)

    assert await space.schedules.tick() == 2
    assert (await got(space, "n")).next_at is None
    assert await space.schedules.next("n") == []
    turned.clock.advance(DAY_MS)
    assert await space.schedules.tick() == 0
    again = await space.schedules.put("late", every_s=60, until=until)
    assert again.next_at is None


async def test_jitter_delays_a_task_alike_in_every_process(turned: Turned) -> None:
    turn_to(turned, "2025-06-01T11:59")
    for name in ("a", "b"):
        await turned.ks.space(name).schedules.put("n", cron="0 * * * *", jitter_s=600)
    turned.clock.advance(MINUTE_MS)
    due: list[datetime] = []
    for name in ("a", "b"):
        space = turned.ks.space(name)
        assert await space.schedules.tick() == 1
        (task,) = await space.queue.list("waiting")
        assert task.id == "schedule/n/2025-06-01T12:00:00Z"
        due.append(task.due_at)

    delays = [(moment - datetime(2025, 6, 1, 12, tzinfo=UTC)).total_seconds() for moment in due]
    assert delays == [337.205, 526.051]


async def test_a_zone_whose_rules_change_is_followed_within_a_day(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_to(turned, "2025-06-01T00:00")
    space = turned.space
    await space.schedules.put("n", cron="0 12 20 * *", zone="Europe/Berlin")
    assert (await got(space, "n")).next_at == datetime(2025, 6, 20, 10, tzinfo=UTC)
    real = ticks.find_zone
    monkeypatch.setattr(ticks, "find_zone", lambda name: real("Asia/Tokyo"))  # nine hours ahead from now on

    turn_to(turned, "2025-06-02T00:00")
    assert await space.schedules.tick() == 0
    assert (await got(space, "n")).next_at == datetime(2025, 6, 20, 3, tzinfo=UTC)
    turn_to(turned, "2025-06-20T03:00")
    for _ in range(20):
        await space.schedules.tick()

    assert await ids(space) == ["schedule/n/2025-06-20T03:00:00Z"]


async def test_a_schedule_that_this_machine_cannot_use_is_left_to_others(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    space = turned.space
    for number in range(40):
        await space.schedules.put(f"berlin/{number}", cron="* * * * *", zone="Europe/Berlin")
    await space.schedules.put("z", cron="* * * * *")
    turned.clock.advance(MINUTE_MS)
    real = ticks.find_zone

    def find(name: str) -> Any:
        if name == "Europe/Berlin":
            raise InvalidError("`zone` is unknown here")
        return real(name)

    with monkeypatch.context() as here, caplog.at_level(logging.WARNING):
        here.setattr(ticks, "find_zone", find)
        assert sum([await space.schedules.tick() for _ in range(3)]) == 1
        assert len(caplog.records) == 40
        assert (await space.queue.claim("w", lease_s=60, wait_s=0))[0].id.startswith("schedule/z/")

    assert sum([await turned.ks.space("run/1").schedules.tick() for _ in range(3)]) == 40


async def test_an_existing_task_of_the_same_id_is_kept(turned: Turned) -> None:
    turn_to(turned, "2025-06-01T11:59")
    space = turned.space
    await space.schedules.put("n", cron="0 * * * *", payload="ours")
    await space.queue.put("theirs", id="schedule/n/2025-06-01T12:00:00Z")
    turned.clock.advance(MINUTE_MS)

    assert await space.schedules.tick() == 0

    (task,) = await space.queue.claim("w", lease_s=60)
    assert task.payload == "theirs"
    assert await space.schedules.tick() == 0


async def test_a_busy_queue_ticks_too(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60, kind="tick")
    for number in range(10):
        await space.queue.put(number)
    turned.clock.advance(MINUTE_MS)

    for _ in range(5):
        (task,) = await space.queue.claim("w", lease_s=600)
        await task.complete()
        turned.clock.advance(1_000)

    assert len([id for id in await ids(space) if id.startswith("schedule/")]) == 1


async def test_fields_of_a_later_version_are_kept(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60)
    store = await space.executor.store()
    key = ticks.schedule_key("n")
    entry = (await store.read(space.executor.stored_name, [key])).entries[0]
    assert entry is not None
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(entry.value), "new"])
    await store.apply([Batch(space.executor.stored_name, [StorePut(key, later)])])
    turned.clock.advance(MINUTE_MS)

    assert await space.schedules.tick() == 1

    entry = (await store.read(space.executor.stored_name, [key])).entries[0]
    assert entry is not None and msgspec.msgpack.decode(entry.value)[-1] == "new"


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\xdc\xff\xff", b"\x81\x01\x02"])
async def test_a_damaged_schedule_is_reported_and_stops_no_other_one(turned: Turned, value: bytes) -> None:
    space = turned.space
    await space.schedules.put("a", every_s=60)
    await space.schedules.put("b", every_s=60)
    store = await space.executor.store()
    await store.apply([Batch(space.executor.stored_name, [StorePut(ticks.schedule_key("a"), value)])])
    turned.clock.advance(MINUTE_MS)

    assert await space.schedules.tick() == 1
    with pytest.raises(CorruptError, match="schedule"):
        await space.schedules.get("a")


async def test_a_schedule_without_its_payload_is_reported(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("a", every_s=60)
    store = await space.executor.store()
    await store.apply([Batch(space.executor.stored_name, [Delete(ticks.planned_key("a"))])])

    with pytest.raises(CorruptError, match="it is lost"):
        await space.schedules.run_now("a")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "either `cron` or `every_s`"),
        ({"cron": "* * * * *", "every_s": 5}, "either `cron` or `every_s`"),
        ({"every_s": 0.5}, "at least 1 second"),
        ({"every_s": float("nan")}, "every_s"),
        ({"every_s": True}, "every_s"),
        ({"every_s": 60, "zone": "Europe/Berlin"}, "`zone` is for `cron`"),
        ({"cron": "0 0 30 2 *"}, "no day ever matches"),
        ({"cron": "0 0 * * *", "zone": "Moon"}, "IANA"),
        ({"cron": "0 0 * * *", "zone": 5}, "zone"),
        ({"every_s": 60, "jitter_s": 86_401}, "a day"),
        ({"every_s": 60, "jitter_s": -1}, "jitter_s"),
        ({"every_s": 60, "missed": "none"}, "missed"),
        ({"every_s": 60, "missed_within_s": 0}, "missed_within_s"),
        ({"every_s": 60, "overlap": "maybe"}, "overlap"),
        ({"every_s": 60, "until": datetime(2030, 1, 1)}, "no time zone"),
        ({"every_s": 60, "until": "2030"}, "until"),
        ({"every_s": 60, "kind": "x" * 201}, "kind"),
        ({"every_s": 60, "key": ""}, "key"),
        ({"every_s": 60, "payload": object()}, "object"),
    ],
)
async def test_a_wrong_argument_is_refused_and_nothing_is_stored(
    turned: Turned, given: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidError, match=reason):
        await turned.space.schedules.put("n", **given)

    assert await turned.space.revision() == 0


@pytest.mark.parametrize("name", ["", "x" * 161, "\ud800", 5, None])
async def test_a_wrong_name_is_refused(turned: Turned, name: Any) -> None:
    for call in ("put", "get", "delete", "pause", "resume", "run_now", "next"):
        options = {"every_s": 60} if call == "put" else {}
        with pytest.raises(InvalidError, match="schedule name"):
            await getattr(turned.space.schedules, call)(name, **options)


@pytest.mark.parametrize("call", ["pause", "resume", "run_now", "next"])
async def test_a_missing_schedule_is_named(turned: Turned, call: str) -> None:
    with pytest.raises(NotFoundError, match="'gone'"):
        await getattr(turned.space.schedules, call)("gone")


async def test_the_longest_name_fits_into_the_ids_of_its_tasks(turned: Turned) -> None:
    await turned.space.schedules.put("ü" * 80, every_s=1.001)
    turned.clock.advance(1_001)

    assert await turned.space.schedules.tick() == 1


async def test_no_entry_of_the_index_outlives_its_schedule(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60)
    await space.schedules.put("n", every_s=30)
    await space.schedules.pause("n")
    await space.schedules.resume("n")
    turned.clock.advance(MINUTE_MS)
    await space.schedules.tick()
    store = await space.executor.store()

    page = await store.scan(space.executor.stored_name, layout.TICKS)
    assert len(page.entries) == 1
    await space.schedules.delete("n")
    assert (await store.scan(space.executor.stored_name, layout.TICKS)).entries == []
