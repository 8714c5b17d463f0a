"""Edit histories against a plain model, in which every moment is a deep copy.

`KEEPSTATE_SEED=n` begins with history n; `KEEPSTATE_HISTORY=n` follows history n and no other.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest

import keepstate
from tests.engine.conftest import EVERYWHERE, url_of
from tests.engine.history.conftest import history_of
from tests.engine.history.following import Follower
from tests.tally import Tally, first_seed

TURNS = 25
CHUNK = 250
ALONE = os.environ.get("KEEPSTATE_HISTORY")
SHOWN = {"memory": "Memory", "file": "File", "sqlite": "SQLite", "redis": "Redis", "postgres": "PostgreSQL"}
DEEP = [pytest.mark.deep, pytest.mark.timeout(900)]
WAYS = (
    "edit", "append", "replace", "merge", "race", "rollback", "revert", "squash", "branch", "tag",
    "drop_name", "patch", "prune", "look", "conflicts", "pruned", "blamed",
)  # fmt: skip
"""What a long run must have done, each many times."""


def seeds(first: int, count: int) -> range:
    return (
        range(int(ALONE), int(ALONE) + 1)
        if ALONE
        else range(first_seed() + first, first_seed() + first + count)
    )


async def follow_all(url: str, wanted: range) -> tuple[int, Counter[str]]:
    """Follow histories, each in a space of its own; returns the count of commits, and what was done."""
    commits, done = 0, Counter[str]()
    async with keepstate.open(url) as ks:
        for seed in wanted:
            space = ks.space(f"history/{seed}")
            follower = Follower(history_of(space), history_of(space), seed)
            try:
                await follower.follow(TURNS)
            except Exception as error:
                error.add_note(
                    f"history {seed}, after {follower.done}: KEEPSTATE_HISTORY={seed} follows it alone"
                )
                raise
            commits += len(follower.model.moments)
            done += follower.done
    return commits, done


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [
        *(
            pytest.param(kind, 0, 40 if kind == "memory" else 4, id=f"{kind}-short", marks=pytest.mark.slow)
            for kind in EVERYWHERE
        ),
        *(
            pytest.param("memory", n, CHUNK, id=f"memory-from-{n}", marks=DEEP)
            for n in range(0, 3_000, CHUNK)
        ),
        *(
            pytest.param(kind, 0, 100, id=f"{kind}-long", marks=DEEP)
            for kind in EVERYWHERE
            if kind != "memory"
        ),
    ],
)
def test_every_moment_of_an_edit_history_is_that_of_a_plain_model(
    kind: str, first: int, count: int, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    wanted = seeds(first, count)

    commits, done = asyncio.run(follow_all(url_of(kind, request, tmp_path), wanted))

    print(f"{kind}: {commits} commits of {len(wanted)} histories, {dict(done)}")
    assert commits > len(wanted) * TURNS // 2
    assert len(wanted) < 100 or [way for way in WAYS if done[way] < len(wanted) // 10] == []
    tally(f"{SHOWN[kind]}: histories", histories=len(wanted), commits=commits, lost=0, corrupt=0)
