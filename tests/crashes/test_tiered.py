"""Two processes read and write at random through memory, a cache and PostgreSQL while the cache is killed.

No read is stale, and no write is lost: a checker proves that the revisions that they were told are an order
of all operations, in which what ended before another began stands before it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.proof import load, read_end, settle, witness
from keepstate.testing.servers import Valkey
from tests.crashes.tiered_worker import SPACES
from tests.server_fixtures import running
from tests.tally import first_seed

SHORT = pytest.param(1_000, 3, id="2,000 operations")
WHOLE = pytest.param(5_000, 12, marks=[pytest.mark.deep, pytest.mark.timeout(300)], id="10,000 operations")


@pytest.fixture
def cache() -> Iterator[Valkey]:
    yield from running(Valkey())


@pytest.mark.parametrize(("operations", "kills"), [SHORT, WHOLE])
def test_no_read_is_stale_and_no_write_lost_while_the_cache_is_killed(
    postgres_url: str, cache: Valkey, tmp_path: Path, operations: int, kills: int
) -> None:
    worker = Path(__file__).with_name("tiered_worker.py")
    files = [tmp_path / f"{number}.records" for number in (1, 2)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), postgres_url, cache.url, str(file), str(launch),
             str(first_seed() + launch), str(operations)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for launch, file in enumerate(files, 1)
    ]  # fmt: skip
    killed = 0
    while any(process.poll() is None for process in processes):
        time.sleep(0.3)
        if killed < kills:
            cache.kill()
            killed += 1
            time.sleep(0.1)
            cache.start()
    for process in processes:
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 0, complaint

    histories = load(files)
    assert killed == kills
    assert sum(history.operations for history in histories.values()) >= 2 * operations
    store = finish(PostgresStore.from_url(StoreUrl.parse(postgres_url), runner=ThreadRunner()).open())
    for space in SPACES:
        finish(settle(store, histories[space].attempts))
        findings = witness(histories[space], finish(read_end(store, space)))
        assert not findings.found, findings
    finish(store.close())
