"""Behind a pooler nothing may be left in a session: each transaction may find another one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from keepstate._finish import finish
from keepstate._runner import TaskRunner
from keepstate.stores.postgres import PostgresStore
from keepstate.stores.postgres.connection import Statement
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Put
from keepstate.stores.urls import StoreUrl
from tests.stores.postgres import pgbouncer
from tests.stores.postgres.conftest import Rows, applied, opened, outcome_of, value_of
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.postgres.pooler import Pooler

KEY = b"\x02doc"


POOLERS = ["own number", "the backend's number", *(["PgBouncer"] if pgbouncer.BINARY else [])]


@pytest.fixture(params=POOLERS)
def pooler(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Pooler | PgBouncer]:
    if request.param == "PgBouncer":
        with PgBouncer(postgres_url) as real:
            yield real
    else:
        with Pooler(postgres_url, tells_backend=request.param == "the backend's number") as pooler:
            yield pooler


def test_handles_behind_a_transaction_pooler_lose_no_increment(pooler: Pooler | PgBouncer) -> None:
    stores = [opened(pooler.url) for _ in range(4)]

    def increment(store: PostgresStore) -> None:
        for _ in range(30):
            while True:
                (entry,) = finish(store.read("s", [KEY])).entries
                value = b"%d" % (int(entry.value) + 1 if entry else 1)
                check = Check(KEY, version=entry.version if entry else ABSENT)
                if isinstance(outcome_of(store, "s", Put(KEY, value), checks=(check,)), Applied):
                    break

    threads = [threading.Thread(target=increment, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert value_of(stores[0], "s", KEY) == b"120"
    assert finish(stores[1].read("s", ())).revision == 120
    assert pooler.turns > 240
    for store in stores:
        finish(store.close())


def test_the_asynchronous_mode_works_behind_a_pooler_too(pooler: Pooler | PgBouncer) -> None:
    async def run() -> list[int]:
        store = PostgresStore.from_url(StoreUrl.parse(pooler.url), runner=TaskRunner())
        await store.open()
        outcomes = await asyncio.gather(
            *(store.apply([Batch(f"s{i % 3}", [Put(KEY, b"%d" % i)])]) for i in range(30))
        )
        assert all(isinstance(outcome, Applied) for (outcome,) in outcomes)
        revisions = [(await store.read(f"s{i}", [KEY])).revision for i in range(3)]
        await store.close()
        return revisions

    assert asyncio.run(run()) == [10, 10, 10]


def test_nothing_is_prepared_behind_a_pooler_that_numbers_its_own(postgres_url: str, admin: Rows) -> None:
    with Pooler(postgres_url, sessions=1) as pooler:
        store = opened(pooler.url)
        applied(store, "s", Put(KEY, b"1"))
        session = store._client._pool._idle[0]

        assert session._prepared is None
        finish(store.close())


@pytest.mark.parametrize("word", ["DISCARD ALL", "DEALLOCATE ALL"])
def test_a_session_that_was_cleaned_in_between_works_on(store: PostgresStore, word: str) -> None:
    applied(store, "s", Put(KEY, b"1"))
    assert value_of(store, "s", KEY) == b"1"
    (session,) = store._client._pool._idle
    assert session._prepared
    finish(session.converse(Statement(word.encode())))

    assert applied(store, "s", Put(KEY, b"2")).revision == 2
    assert value_of(store, "s", KEY) == b"2"
    assert not any(connection._prepared for connection in store._client._pool._idle)


def test_a_connection_in_use_when_preparing_ended_prepares_nothing_afterwards(store: PostgresStore) -> None:
    pool = store._client._pool
    first = finish(pool.take())
    assert value_of(store, "s", KEY) is None  # on a second connection
    (second,) = pool.take_idle()
    pool.give_back(first)
    assert value_of(store, "s", KEY) is None  # on the first one: both have prepared the query
    for session in (first, second):
        finish(session.converse(Statement(b"DEALLOCATE ALL")))

    assert value_of(store, "s", KEY) is None  # the first one misses the query, and preparing ends
    assert first.is_closed
    pool.take_idle()
    pool.give_back(second)

    assert value_of(store, "s", KEY) is None
    assert pool._idle == [second]
    finish(second.drop())
