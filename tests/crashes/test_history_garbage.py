"""Collectors beside four writers lose nothing that a branch or tag leads to, and do collect."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random

import msgspec
import pytest

import keepstate
from tests.crashes.history_company import Collected, Told, collect_once, judge
from tests.crashes.history_stage import STORIES
from tests.engine.conftest import url_of
from tests.processes import Program
from tests.tally import Tally, first_seed

ROOT = Path(__file__).resolve().parents[2]
SPACE = "run/1"
NAMES = ["w0", "w1", "w2", "w3"]
SHOWN = {"sqlite": "SQLite", "redis": "Redis", "postgres": "PostgreSQL"}
SHORT_S, LONG_S, _AT_MOST_S = 3.0, 20.0, 400.0


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        *(pytest.param(kind, SHORT_S, id=f"{kind}-short", marks=pytest.mark.slow) for kind in SHOWN),
        *(pytest.param(kind, LONG_S, id=f"{kind}-long", marks=pytest.mark.deep) for kind in SHOWN),
    ],
)
def test_collectors_beside_four_writing_processes_lose_nothing(
    kind: str, seconds: float, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url, seed = url_of(kind, request, tmp_path), first_seed()

    told, collected = beside_writers(url, seconds, seed)
    findings = asyncio.run(judged(url, told))

    done = dict(sum((Counter(one.done) for one in told), Counter[str]()))
    print(f"{kind}, seed {seed}: {collected}, {sum(len(one.states) for one in told)} commits, {done}")
    assert [*findings, *collected.faults] == [], f"seed {seed}"
    # A loaded machine does less; in a short run there may be nothing to remove yet.
    assert collected.rounds >= seconds / 2
    assert collected.removed >= (seconds / 2 if seconds == LONG_S else 0)
    assert collected.given_up <= collected.rounds
    wanted = ("edit", "large", "branch", "tag", "drop_name", "squash", "rollback", "count", "move", "fork")
    assert [way for way in wanted[: 2 if seconds < LONG_S else None] if not done.get(way)] == []
    tally(
        f"{SHOWN[kind]}: collectors while writers run",
        commits=sum(len(one.states) for one in told),
        collections=collected.rounds,
        collected=collected.removed,
        lost=0,
        corrupt=0,
    )


def beside_writers(url: str, seconds: float, seed: int) -> tuple[list[Told], Collected]:
    """Let four processes write while two collectors are at work here; returns what each of them did."""
    writers = [
        Program(
            *("-m", "tests.processes.write_history", url, SPACE, name),
            *(",".join(other for other in NAMES if other != name), seconds, seed),
            stdout=subprocess.PIPE,
        )
        for name in NAMES
    ]
    try:
        collected = asyncio.run(collect_beside(url, writers, _AT_MOST_S, seed))
        told = [writer.communicate(timeout=60)[0] for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    return [msgspec.json.decode(one, type=Told) for one in told], collected


async def collect_beside(url: str, writers: list[Program], seconds: float, seed: int) -> Collected:
    """Collect as long as somebody writes, and once more: on a busy machine they begin late."""
    collected, end = Collected(), time.monotonic() + seconds

    async def collector(number: int) -> None:
        async with keepstate.open(url) as ks:
            history, dice = ks.space(SPACE).history, Random(f"{seed} collector {number}")
            is_over = False
            while not is_over and time.monotonic() < end:
                is_over = all(writer.poll() is not None for writer in writers)
                await collect_once(history, dice, collected)
                await asyncio.sleep(0.05)

    await asyncio.gather(collector(0), collector(1))
    return collected


async def judged(url: str, told: list[Told]) -> list[str]:
    async with keepstate.open(url) as ks:
        return await judge(ks.space(SPACE).history, told, lambda name: ks.space(name).history)


@pytest.mark.parametrize("story", STORIES)
def test_what_gets_a_name_or_is_written_under_a_collector_is_kept(
    story: Callable[[], Coroutine[None, None, tuple[str, ...]]],
) -> None:
    assert asyncio.run(story()) == ()
