"""Transactions that scan entries with a time to live, on clocks that jump: each has a serial order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

import keepstate
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.file import FileStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Put, Store
from keepstate.stores.sqlite import SqliteStore
from keepstate.testing.clocks import ManualClock
from keepstate.testing.schedules import Schedule
from tests.engine.conftest import url_of
from tests.tally import Tally, first_seed

DEEP = [pytest.mark.deep, pytest.mark.timeout(600)]
EMBEDDED = [
    *(pytest.param(kind, 20, id=f"{kind}-short") for kind in ("memory", "file", "SQLite")),
    *(
        pytest.param(kind, count, id=f"{kind}-long", marks=DEEP)
        for kind, count in {"memory": 1_500, "file": 300, "SQLite": 300}.items()
    ),
]
SERVERS = {"redis": "Redis", "valkey": "Valkey", "postgres": "PostgreSQL"}
COUNTS = [pytest.param(3, id="short", marks=pytest.mark.slow), pytest.param(60, id="long", marks=DEEP)]
_JUMPS = 0.1
_LONGEST_JUMP_MS = 12


async def play(store: Store, clock: ManualClock | None, seeds: Iterable[int]) -> Counter[str]:
    """Play a schedule for each seed, and return how many transactions and jumps of the clock there were.

    Args:
        store: The store.
        clock: Its clock, which jumps now and then; None if it has one of its own.
        seeds: The seeds of the schedules.

    Raises:
        AssertionError: A transaction saw what no serial order explains.
    """
    counts = Counter[str]()
    for seed in seeds:
        dice = Random(f"clock of {seed}")

        async def pass_time(ms: int, dice: Random = dice) -> None:
            if clock is None:
                await asyncio.sleep(ms / 1_000)
                return
            clock.advance(ms)
            if dice.random() < _JUMPS:
                counts["faults"] += 1
                jump = clock.turn_back if dice.random() < 0.5 else clock.advance
                jump(dice.randint(1, _LONGEST_JUMP_MS))

        space = f"schedule/{seed}"
        await store.apply([Batch(space, [Put(b"\x01first", b"")])])  # an empty space remembers no time
        schedule = Schedule(store, space, seed, pass_time)
        await schedule.play()
        counts["schedules"] += 1
        counts["operations"] += schedule.committed + schedule.refused
        counts["refused"] += schedule.refused
        await store.drop(space)
    return counts


@pytest.mark.parametrize(("kind", "count"), EMBEDDED)
def test_scans_of_what_expires_have_a_serial_order_when_clocks_jump(
    kind: str, count: int, tmp_path: Path, tally: Tally
) -> None:
    clock, runner = ManualClock(seed=first_seed()), ThreadRunner()
    makes: dict[str, type[FileStore | SqliteStore]] = {"file": FileStore, "SQLite": SqliteStore}
    store: StoreBase = (
        makes[kind](tmp_path / "store", runner=runner, clock=clock)
        if kind in makes
        else MemoryStore(runner=runner, clock=clock)
    )
    finish(store.open())
    try:
        counts = finish(play(store, clock, range(first_seed(), first_seed() + count)))
    finally:
        finish(store.close())

    assert counts["faults"] > count // 2
    assert 0 < counts["refused"] < counts["operations"]
    _tell(kind, counts, tally)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("count", COUNTS)
def test_scans_of_what_expires_have_a_serial_order_on_servers(
    kind: str, count: int, tmp_path: Path, tally: Tally, request: pytest.FixtureRequest
) -> None:
    url = url_of(kind, request, tmp_path)

    async def work() -> Counter[str]:
        async with keepstate.open(url) as ks:
            return await play(ks.store, None, range(first_seed(), first_seed() + count))

    _tell(SERVERS[kind], asyncio.run(work()), tally)


def _tell(kind: str, counts: Counter[str], tally: Tally) -> None:
    assert counts["operations"]
    shown = {name: counts[name] for name in ("operations", "faults", "schedules")}
    tally(f"{kind}: scans while entries expire", **shown, disordered=0)
