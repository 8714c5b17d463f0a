"""Random histories of subjects by processes that are killed: in the end, `find` equals a walk."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

import keepstate
from keepstate import KeyRing
from keepstate.engine.index.carrier import new_row
from keepstate.engine.space.keepstate import Keepstate
from tests.engine.conftest import url_of
from tests.processes import Program
from tests.processes.write_subjects import KEY

ROUNDS = 3
KINDS = ("sqlite", "file", "redis", "postgres")


async def listed(ks: Keepstate) -> set[tuple[Any, ...]]:
    """Return what `find` lists, page by page."""
    found, after = list[Any](), None
    while True:
        page = await ks.find(after=after, limit=7)
        found += page
        if (after := page.next) is None:
            break
    rows = [(each.space, each.kind, each.id, each.state, each.owner, each.title) for each in found]
    assert len(rows) == len(set(rows))
    return set(rows)


async def walked(ks: Keepstate) -> set[tuple[Any, ...]]:
    """Return what the spaces hold, whatever the index says."""
    carrier, found = await ks.index.carrier(None), set[tuple[Any, ...]]()
    async for space in ks.spaces():
        for subject in {each async for each in carrier.subjects_in(space)}:
            row, _ = new_row((space, subject), await carrier.read((space, subject)))
            if row is not None:
                found.add((space, row.kind, row.id, row.state, row.owner, row.title))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_encrypted"),
    [
        *((kind, "no") for kind in KINDS),
        *(pytest.param(kind, "yes", marks=[pytest.mark.deep] * (kind != "sqlite")) for kind in KINDS),
    ],
)
async def test_find_equals_a_walk_after_the_last_delivery(
    kind: str, is_encrypted: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, random = url_of(kind, request, tmp_path), Random(kind + is_encrypted)
    options: dict[str, Any] = {"encryption": KeyRing(KEY)} if is_encrypted == "yes" else {}
    async with keepstate.open(url, **options) as ks:
        await ks.space("pool").queue.put("x")
        await ks.find()
    for number in range(ROUNDS):
        at_once = 1 if kind == "file" else 2
        programs = [
            Program(
                *("-m", "tests.processes.write_subjects", url, f"{number} {each}", is_encrypted),
                stdout=subprocess.PIPE,
            )
            for each in range(at_once)
        ]
        for program in programs:
            assert program.stdout is not None
            for _ in range(random.randrange(10, 40)):
                assert program.stdout.readline()
        for program in programs:
            program.kill()
            program.wait(60)
            program.stdout.close()

        async with keepstate.open(url, **options) as ks:
            await ks.deliver()
            assert await listed(ks) == await walked(ks)
            assert [what async for what in ks.index.findings(None)] == []
            for each in await ks.find(kind="queue"):
                assert each in await ks.find(kind="queue", state=each.state)
