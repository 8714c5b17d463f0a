"""Processes whose clocks jump, by minutes, days and years, on one store: its spaces keep the right time."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import keepstate
from keepstate._clock import SYSTEM_CLOCK
from keepstate.stores.clock_leaps import LEAP_MS
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program
from tests.tally import Tally, first_seed

EMBEDDED = ("file", "sqlite")
SIZES = [
    pytest.param(300, id="short"),
    pytest.param(6_000, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(600)]),
]
SHOWN = {"file": "file", "sqlite": "SQLite", "redis": "Redis", "valkey": "Valkey", "postgres": "PostgreSQL"}
AGREED_MS = 60_000
"""The time for which two clocks that agreed are not compared again."""


@pytest.mark.parametrize("kind", ["file", "sqlite", "redis", "valkey", "postgres"])
@pytest.mark.parametrize("steps", SIZES)
def test_no_clock_that_jumps_carries_a_space_away(
    kind: str, steps: int, tmp_path: Path, tally: Tally, request: pytest.FixtureRequest
) -> None:
    url = url_of(kind, request, tmp_path)

    async def begin() -> None:
        async with keepstate.open(url) as ks:
            await ks.space("jumping").documents.put("day", 1, ttl_s=86_400)

    asyncio.run(begin())
    counts = _work(url, steps, at_once=kind != "file")

    async def end() -> tuple[int, bool, int]:
        async with keepstate.open(url) as ks:
            documents = ks.space("jumping").documents
            ahead_ms = (await ks.store.read("jumping", [])).now_ms - SYSTEM_CLOCK.now_ms()
            return ahead_ms, await documents.get("day") is None, await documents.get("count", 0)

    ahead_ms, is_gone, count = asyncio.run(end())
    lost = counts["increments"] - count
    tally(
        f"{SHOWN[kind]}: jumping clocks",
        operations=counts["operations"],
        faults=counts["jumps"],
        lost=abs(lost) + is_gone + counts["gone"],
    )
    assert counts["jumps"]
    assert counts["operations"] > counts["refused"] // 2
    assert bool(counts["refused"]) == (kind in EMBEDDED), "a server's time is by its own clock"
    assert (lost, is_gone, counts["gone"]) == (0, False, 0)
    assert ahead_ms <= (LEAP_MS + AGREED_MS if kind in EMBEDDED else AGREED_MS)


def _work(url: str, steps: int, *, at_once: bool) -> Counter[str]:
    """Let three processes work, at once or one after another, and return the sums of their counts."""
    sums = Counter[str]()
    running: list[Program] = []
    for number in range(3):
        seed = first_seed() * 3 + number
        running.append(Program(PROCESSES / "jump_clock.py", url, seed, steps, stdout=subprocess.PIPE))
        if not at_once or number == 2:
            for program in running:
                sums.update(json.loads(program.communicate(timeout=500)[0]))
            running.clear()
    return sums
