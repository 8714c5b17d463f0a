"""Schedules over 90 simulated days, by processes that are killed at random batches.

No tick is lost, and none is repeated.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import keepstate
from keepstate.engine.queue import ticks, timetable
from keepstate.engine.queue.timetable import next_instants
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program
from tests.processes.tick_by_turned_clock import HOUR_MS, SPACE, Turned
from tests.tally import Tally, first_seed

BEGIN_MS = round(datetime(2040, 2, 20, tzinfo=UTC).timestamp() * 1000)
"""A time that no server has reached. Clocks change in Berlin and New York within the 90 days after it."""
UNTIL_MS = BEGIN_MS + 90 * 24 * HOUR_MS
END_MS = UNTIL_MS + 10 * 24 * HOUR_MS
"""Ticks that kills have delayed come after the last instant."""
INTERVAL_S = 20 * 3600
LATE_S = 10 * 86_400
"""Kills delay a tick by days, because each process turns the clock before it ticks."""
ZONED = {"berlin": ("30 2 * * *", "Europe/Berlin"), "new-york": ("0 */6 * * MON-FRI", "America/New_York")}
LEAST_KILLS = 20
NAMES = {"sqlite": "SQLite, full", "postgres": "PostgreSQL", "redis": "Redis"}


async def put_schedules(url: str) -> None:
    """Put three schedules at the time at which the 90 days begin."""
    async with keepstate.open(url) as ks:
        await ks.space(SPACE).documents.put("made", None)
    with ExitStack() as stack:
        turned = Turned(url, ManualClock(BEGIN_MS), stack)
        async with keepstate.open(url) as ks:
            space, until = ks.space(SPACE), datetime.fromtimestamp(UNTIL_MS / 1000, UTC)
            await turned.turn(await ks.opened(), 0)
            for name, (cron, zone) in ZONED.items():
                await space.schedules.put(
                    name,
                    cron=cron,
                    zone=zone,
                    overlap="allow",
                    missed="all",
                    missed_within_s=LATE_S,
                    until=until,
                )
            await space.schedules.put(
                "interval",
                every_s=INTERVAL_S,
                overlap="queue",
                missed="all",
                missed_within_s=LATE_S,
                until=until,
            )


def computed_ids() -> list[str]:
    """Return the ids of the tasks of all instants."""
    tables: dict[str, timetable.Timetable] = {
        name: timetable.ZonedCron(ticks.Cron(cron), ZoneInfo(zone)) for name, (cron, zone) in ZONED.items()
    }
    tables["interval"] = timetable.Interval(BEGIN_MS, INTERVAL_S * 1000)
    return sorted(
        ticks.tick_id(name, at_ms)
        for name, table in tables.items()
        for at_ms in next_instants(table, BEGIN_MS, UNTIL_MS, 10_000)
    )


def tick_under_kills(url: str) -> int:
    """Start a process after each one that was killed, until one ends, and return the number of kills."""
    kills = 0
    while True:
        seed = first_seed() * 10_000 + kills
        program = Program(PROCESSES / "tick_by_turned_clock.py", url, seed, END_MS, stderr=subprocess.PIPE)
        errors = program.communicate(timeout=300)[1]
        if program.returncode == 0:
            return kills
        assert program.returncode == -signal.SIGKILL, errors
        kills += 1


async def finished_ids(url: str) -> list[str]:
    """Return the id of each task as often as it was completed."""
    async with keepstate.open(url) as ks:
        return sorted([str(event.data) for event in await ks.space(SPACE).events.read(limit=10_000)])


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", NAMES)
def test_ticks_of_90_days_are_exactly_those_computed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url, expected = url_of(kind, request, tmp_path), computed_ids()
    asyncio.run(put_schedules(url))

    kills = tick_under_kills(url)

    found = Counter(asyncio.run(finished_ids(url)))
    lost, ghosts = [*({*expected} - {*found})], [*({*found} - {*expected})]
    repeated = [id for id, times in found.items() if times > 1]
    print(f"{len(expected)} ticks on {kind}: {kills} kills")
    assert (lost, ghosts, repeated) == ([], [], [])
    assert kills >= LEAST_KILLS
    counts = {"tasks": len(expected), "worker_kills": kills}
    tally(f"{NAMES[kind]}: ticks under kills", **counts, lost=0, ghosts=0, applied_twice=0)
