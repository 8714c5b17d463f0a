"""Calls share a few connections; one that is given up or broken off takes nothing from the others."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate._finish import finish
from keepstate._runner import TaskRunner
from keepstate.stores.postgres import PostgresStore, wire
from keepstate.stores.postgres.connection import Statement
from keepstate.stores.protocol import Batch, Put, Reading
from keepstate.stores.urls import StoreUrl
from tests.stores.postgres.conftest import Rows, applied, opened

KEY = b"\x02doc"
NUMBERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=20)
ITEMS = st.lists(st.none() | st.binary(max_size=20), max_size=20)


async def started(store: PostgresStore, count: int) -> list[asyncio.Task[Reading]]:
    """Return reads that were begun one after the other."""
    tasks: list[asyncio.Task[Reading]] = []
    for _ in range(count):
        tasks.append(asyncio.create_task(store.read("s", [KEY])))
        await asyncio.sleep(0.05)
    return tasks


async def cancelled_at(url: str, place: int) -> list[asyncio.Task[Reading]]:
    """Return three reads over one connection, one cancelled while the server kept the first waiting."""
    store = PostgresStore.from_url(StoreUrl.parse(f"{url}?max_connections=1"), runner=TaskRunner())
    await store.open()
    await store.apply([Batch("s", [Put(KEY, b"1")])])
    async with await psycopg.AsyncConnection.connect(url) as holder:
        await holder.execute("LOCK TABLE keepstate.space IN ACCESS EXCLUSIVE MODE")
        tasks = await started(store, 3)
        tasks[place].cancel()
        await asyncio.sleep(0.05)
        assert store.connections == 1
    await asyncio.wait(tasks, timeout=60)
    await store.close()
    return tasks


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_cancelled_call_gives_its_turn_to_the_next(postgres_url: str, place: int) -> None:
    tasks = asyncio.run(cancelled_at(postgres_url, place))

    assert [task.cancelled() for task in tasks] == [i == place for i in range(3)]
    for task in tasks:
        if not task.cancelled():
            assert [entry.value for entry in task.result().entries if entry] == [b"1"]


def test_arrays_come_back_from_the_server_as_they_were_sent(postgres_url: str) -> None:
    store = opened(postgres_url)
    connection = finish(store._client.connect())

    @given(NUMBERS, ITEMS)
    def echo(numbers: list[int | None], items: list[bytes | None]) -> None:
        echoed = Statement(
            b"SELECT $1::bigint[], $2::bytea[], ROW($1::bigint[], $2::bytea[])",
            [wire.int8s(numbers), wire.byteas(items)],
        )
        (answer,) = finish(connection.converse(echoed))
        row = wire.from_record(answer.get_value(0, 2))

        assert wire.from_expiries(answer.get_value(0, 0)) == wire.from_expiries(row[0]) == numbers
        assert wire.from_array(answer.get_value(0, 1)) == wire.from_array(row[1]) == items

    echo()
    connection.close()
    finish(store.close())


def test_answers_larger_than_the_socket_s_buffers_come_whole(store: PostgresStore, admin: Rows) -> None:
    values = [bytes([i]) * (1 << 20) for i in range(7)]
    writes = [Put(b"\x00%d" % i, value) for i, value in enumerate(values)]

    applied(store, "s", *writes)

    reading = finish(store.read("s", [write.key for write in writes]))
    assert [entry.value for entry in reading.entries if entry] == values
    assert admin.execute("SELECT count(*) FROM keepstate.log").fetchone() == (1,)


async def opened_after_each_break(url: str, admin: Rows) -> list[int]:
    """Return what handles read that were opened after the server broke the connection of the one before."""
    revisions: list[int] = []
    stores: list[PostgresStore] = []
    for _ in range(3):
        # To open a store is not tried again.
        place = StoreUrl.parse(f"{url}?application_name=broken")
        stores.append(await PostgresStore.from_url(place, runner=TaskRunner()).open())
        revisions.append((await stores[-1].read("s", [KEY])).revision)
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'broken'"
        )
        await asyncio.sleep(0.05)  # the loop hears of it, while nobody asks
    for store in stores:
        await store.close()
    return revisions


def test_a_connection_that_the_server_broke_does_not_stand_in_the_way_of_the_next(
    postgres_url: str, admin: Rows
) -> None:
    """The system gives the next socket the number at which the event loop listened to the last."""
    assert asyncio.run(opened_after_each_break(postgres_url, admin)) == [0, 0, 0]
