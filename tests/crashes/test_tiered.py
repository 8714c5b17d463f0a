"""Two processes read and write at random through memory, a cache and PostgreSQL while the cache is killed.

No read is stale, and no write is lost: a checker proves that the revisions that they were told are an order
of all operations, in which what ended before another began stands before it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keepstate_testing.proof import Findings, load, read_end, settle, witness
from keepstate_testing.servers import Valkey

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.urls import StoreUrl
from tests.processes import PROCESSES, Program
from tests.processes.work_through_tiers import SPACES
from tests.server_fixtures import running
from tests.tally import first_seed

SHORT = pytest.param(1_000, 3, id="2,000 operations")
WHOLE = pytest.param(5_000, 12, marks=[pytest.mark.deep, pytest.mark.timeout(300)], id="10,000 operations")


@pytest.fixture
def cache(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    yield from running(request, Valkey())


def findings(
    tiers: str, url: str, cache: Valkey, folder: Path, operations: int, kills: int
) -> tuple[int, list[Findings]]:
    """Let two processes work while the cache is killed; returns what they did, and what is wrong with it."""
    worker = PROCESSES / "work_through_tiers.py"
    files, enough = [folder / f"{number}.records" for number in (1, 2)], folder / "enough"
    processes = [
        Program(
            *(worker, tiers, url, cache.url, file, enough, launch, first_seed() + launch, operations),
            stderr=subprocess.PIPE,
        )
        for launch, file in enumerate(files, 1)
    ]
    for _ in range(kills):
        time.sleep(0.3)
        cache.kill()
        time.sleep(0.1)
        cache.start()
    enough.touch()
    for process in processes:
        _, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint

    histories = load(files)
    store = finish(PostgresStore.from_url(StoreUrl.parse(url), runner=ThreadRunner()).open())
    found: list[Findings] = []
    for space in SPACES:
        finish(settle(store, histories[space].attempts))
        found.append(witness(histories[space], finish(read_end(store, space))))
    finish(store.close())
    return sum(history.operations for history in histories.values()), found


@pytest.mark.parametrize(("operations", "kills"), [SHORT, WHOLE])
def test_no_read_is_stale_and_no_write_lost_while_the_cache_is_killed(
    postgres_url: str, cache: Valkey, tmp_path: Path, operations: int, kills: int
) -> None:
    done, found = findings("right", postgres_url, cache, tmp_path, operations, kills)

    assert done >= 2 * operations
    assert [each for each in found if each.found] == []


@pytest.mark.parametrize("tiers", ["deaf", "late"])
def test_tiers_that_read_what_is_stale_are_caught(
    tiers: str, postgres_url: str, cache: Valkey, tmp_path: Path
) -> None:
    _, found = findings(tiers, postgres_url, cache, tmp_path, operations=1_500, kills=0)

    assert any(each.found for each in found)
