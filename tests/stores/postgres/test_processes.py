"""Many processes, many watches: counts are exact, and a watch costs one connection however many there are."""

from __future__ import annotations

import subprocess
import threading
import time

import pytest

from keepstate._finish import finish
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.protocol import Put
from keepstate.testing.store_contract.company import COUNTER
from tests.processes import Program
from tests.stores.postgres.conftest import Rows, applied, opened, value_of
from tests.stores.postgres.pooler import Pooler

KEY = b"\x02doc"
INCREMENTER = "keepstate.testing.store_contract.incrementer"
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'keepstate'"


def number(admin: Rows, query: str) -> int:
    row = admin.execute(query).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.deep
def test_four_processes_lose_none_of_2000_increments(store: PostgresStore) -> None:
    command = ("-m", INCREMENTER, store.url, "s", "500")
    workers = [Program(*command, stderr=subprocess.PIPE) for _ in range(4)]

    for worker in workers:
        _, complaint = worker.communicate(timeout=100)
        assert worker.returncode == 0, complaint

    assert value_of(store, "s", COUNTER) == b"2000"
    assert finish(store.read("s", ())).revision == 2000


def test_500_watches_take_one_more_connection(store: PostgresStore, postgres_url: str, admin: Rows) -> None:
    other = opened(postgres_url)
    applied(other, "s42", Put(KEY, b"0"))
    before = number(admin, SESSIONS)
    listeners = [store.listen([f"s{i}"]) for i in range(500)]
    for listener in listeners:
        finish(listener.wait(1.0))  # the first hint, that there may have been changes before

    applied(other, "s42", Put(KEY, b"1"))
    finish(listeners[42].wait(3600.0))  # without a hint it waits until the test is timed out

    assert number(admin, SESSIONS) == before + 1
    for listener in listeners:
        listener.close()
    finish(other.close())


def test_threads_share_no_more_than_the_allowed_connections(postgres_url: str, admin: Rows) -> None:
    others = number(admin, SESSIONS)  # what other tests have left to be collected
    store = opened(f"{postgres_url}?max_connections=2")
    applied(store, "s", Put(KEY, b"1"))

    def read() -> None:
        for _ in range(20):
            assert value_of(store, "s", KEY) == b"1"

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 1 <= store.connections <= 2
    assert number(admin, SESSIONS) <= others + 2
    finish(store.close())


@pytest.mark.timed
def test_an_idle_watch_asks_seldom(postgres_url: str) -> None:
    with Pooler(postgres_url) as pooler:
        store = opened(pooler.url)
        listener = store.listen(["s"])
        time.sleep(1.0)  # it slows down in a third of a second
        turns, started = pooler.turns, time.monotonic()
        time.sleep(1.0)

        assert pooler.turns - turns <= 30 * (time.monotonic() - started) + 1
        listener.close()
        finish(store.close())
