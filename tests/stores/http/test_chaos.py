"""Workers, their server and the database behind it are killed, and nothing is lost, torn or disordered."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from keepstate_testing.chaos import Crash, Plan, run
from keepstate_testing.servers import Postgres

from tests.stores.http.serving import StoreServer, sqlite_url
from tests.tally import Tally, first_seed

LONG = [pytest.mark.deep, pytest.mark.timeout(600)]


@contextmanager
def arena(kind: str, folder: Path) -> Iterator[tuple[tuple[str, ...], Crash]]:
    """Yield the URLs for the workers, and what kills a server and starts it again."""
    if kind == "SQLite":
        with StoreServer(sqlite_url(folder)) as server:
            yield hasty(server), lambda dice: kill(server)
        return
    with Postgres() as behind, StoreServer(behind.url) as server:
        yield hasty(server), lambda dice: kill(behind if dice.random() < 0.5 else server)


def hasty(server: StoreServer) -> tuple[str, str]:
    """Return the URL of patient workers, and of others that soon take a lost answer for unknown."""
    return server.url(), server.url(retry_for_s=0.1, timeout_s=1)


def kill(server: StoreServer | Postgres) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        pytest.param("SQLite", 1.5, marks=pytest.mark.slow),
        pytest.param("PostgreSQL", 1.5, marks=pytest.mark.slow),
        pytest.param("SQLite", 60.0, marks=LONG),
        pytest.param("PostgreSQL", 60.0, marks=LONG),
    ],
)
def test_kills_in_front_and_behind_lose_nothing(
    kind: str, seconds: float, tmp_path: Path, tally: Tally
) -> None:
    histories, seed = tmp_path / "histories", first_seed()
    histories.mkdir()
    with arena(kind, tmp_path) as (urls, crash):
        report = run(Plan(urls=urls, folder=histories, seconds=seconds, seed=seed, crash=crash))

    print(f"{kind}, seed {seed}: {report}")
    assert report.faults == []
    assert report.findings.found == []
    assert report.history_lost == 0
    assert report.worker_kills and report.server_crashes
    tally(
        f"{kind} over HTTP: chaos",
        operations=report.findings.operations,
        worker_kills=report.worker_kills,
        server_crashes=report.server_crashes,
        **report.findings.counts(),
    )
    shutil.rmtree(histories)
