"""Ticks under faults: clocks that disagree, kills, and planted bugs. Each instant still becomes one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

from keepstate._runner import TaskRunner
from keepstate.engine.queue import ticks, timetable
from keepstate.engine.queue.timetable import next_instants
from keepstate.engine.space.space import Space
from keepstate.errors import StoreUnavailableError
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Entry, Outcome
from keepstate.stores.sqlite import SqliteStore
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import Turned, TurnedKeepstate
from tests.engine.test_schedules import HOUR_MS, MINUTE_MS, ids


async def test_clocks_an_hour_apart_put_each_instant_of_90_days_once(tmp_path: Path) -> None:
    """Two processes share a file; the space's time is that of the clock that is ahead."""
    clocks = ManualClock(), ManualClock(1_700_000_000_000 + HOUR_MS)
    stores = [
        SqliteStore(tmp_path / "ticks.db", durability="normal", runner=TaskRunner(), clock=clock)
        for clock in clocks
    ]
    spaces: list[Space] = []
    for clock, store in zip(clocks, stores, strict=True):
        await store.open()
        ks = TurnedKeepstate(PassedStore(store, "async"))
        ks.turned = clock
        spaces.append(ks.space("run/1"))
    rules = {"berlin": ("30 2 * * *", "Europe/Berlin"), "new-york": ("0 */6 * * MON-FRI", "America/New_York")}
    for name, (cron, zone) in rules.items():
        await spaces[1].schedules.put(
            name, cron=cron, zone=zone, overlap="allow", missed="all", missed_within_s=86_400
        )
    begin_ms = clocks[1].now_ms()

    found: list[str] = []
    for number in range(90 * 4):
        for clock in clocks:
            clock.advance(6 * HOUR_MS)
        for space in (spaces[number % 2], spaces[1 - number % 2]):
            claimed = await space.queue.claim("w", lease_s=60, count=100)
            found += [task.id for task in claimed]
            for task in claimed:
                await task.complete()

    for store in stores:
        await store.close()
    expected = {
        ticks.tick_id(name, at_ms)
        for name, (cron, zone) in rules.items()
        for at_ms in next_instants(
            timetable.ZonedCron(ticks.Cron(cron), ZoneInfo(zone)), begin_ms, clocks[1].now_ms(), 10_000
        )
    }
    assert len(found) == len(set(found))
    assert set(found) == expected


# ---- planted bugs


async def _ticks_of_workers(turned: Turned, workers: int) -> int:
    """Return how many tasks come of one instant if all workers read before any writes."""
    space = turned.space
    await space.schedules.put("n", every_s=60)
    turned.clock.advance(MINUTE_MS)
    return sum(await asyncio.gather(*(space.schedules.tick() for _ in range(workers))))


async def test_an_instant_is_guarded_by_its_batch_and_by_its_id(turned: Turned) -> None:
    unique = count()
    with patch.object(ticks, "tick_id", lambda name, at_ms: f"schedule/{name}/{next(unique)}/{at_ms}"):
        assert await _ticks_of_workers(turned, 5) == 1  # the batch alone admits one

    await turned.space.schedules.put("m", every_s=60)
    turned.clock.advance(MINUTE_MS)
    unchecked: Callable[..., Any] = lambda *_: None  # noqa: E731
    with patch.object(ticks, "write_schedule", unchecked):
        assert await turned.space.schedules.tick() > 0
        assert await turned.space.schedules.tick() == 0  # the id alone admits one


class Failing(MemoryStore):
    """Fails from a batch on, as if its process had been killed."""

    left: int | None = None

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StoreUnavailableError("the process was killed here")
        return await super().apply(batches)


async def _ticks_under_kills() -> set[int]:
    """Return how many tasks come of one instant if its worker is killed before any of its batches."""
    found: set[int] = set()
    for batches in range(4):
        clock = ManualClock()
        store = Failing(runner=TaskRunner(), clock=clock)
        await store.open()
        ks = TurnedKeepstate(PassedStore(store, "async"))
        ks.turned = clock
        space = ks.space("run/1")
        await space.schedules.put("n", every_s=60)
        clock.advance(MINUTE_MS)
        store.left = batches
        with suppress(StoreUnavailableError):
            await space.schedules.tick()
        store.left = None
        await space.schedules.tick()
        found.add(len(await ids(space)))
        await store.close()
    return found


async def test_a_tick_put_outside_its_batch_is_found() -> None:
    assert await _ticks_under_kills() == {1}
    tick_one, put_ticks = ticks.Ticker._tick_one, ticks.put_ticks

    async def put_later(self: ticks.Ticker, index: Entry, name: str, now_s: float) -> int:
        left: list[tuple[ticks.ScheduleRecord, list[int]]] = []

        async def note(_: Any, __: Any, record: ticks.ScheduleRecord, due: list[int]) -> Any:
            left.append((record, due))
            return record, []

        with patch.object(ticks, "put_ticks", note):
            await tick_one(self, index, name, now_s)
        for record, due in left:
            await self._executor.run(lambda unit: put_ticks(self._executor, unit, record, due))  # noqa: B023
        return len(left)

    with patch.object(ticks.Ticker, "_tick_one", put_later):
        assert 0 in await _ticks_under_kills()


async def test_an_overlap_judged_before_the_batch_is_found(turned: Turned) -> None:
    space = turned.space
    await space.schedules.put("n", every_s=60)
    turned.clock.advance(MINUTE_MS)
    await space.schedules.tick()
    (task,) = await space.queue.claim("w", lease_s=600)
    await task.complete()
    turned.clock.advance(MINUTE_MS)
    real = ticks.put_ticks

    async def late(executor: Any, unit: Any, *rest: Any, **options: Any) -> Any:
        if not await space.queue.get("other"):
            await space.queue.put(0, id="other")
            await space.schedules.run_now("n")  # between the judgement and the batch
        return await real(executor, unit, *rest, **options)

    with patch.object(ticks, "put_ticks", late):
        await space.schedules.tick()

    assert len([id for id in await ids(space) if id.startswith("schedule/")]) == 2
