"""The pool of a server: bounded, and whole after its users were cancelled or a call broke."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from keepstate_testing.servers import Redis

from keepstate.errors import StoreUnavailableError
from keepstate.stores.protocol import Put
from keepstate.testing.store_contract.stage import applied, only_async, value_of
from tests.stores.redis.stage import A, RedisStage

OTHER = b"\x01other"


class TestNode(RedisStage):
    async def test_no_more_connections_than_allowed_are_opened(self, own_server: Redis, space: str) -> None:
        store = await self.open(own_server.url + "?max_connections=2")
        await applied(store, space, Put(A, b"1"))

        found = await self.together(*(value_of(store, space, A) for _ in range(40)))

        assert found == [b"1"] * 40
        assert int(own_server.info()["connected_clients"]) <= 2 + 1  # and the one that asks
        await store.close()

    async def test_closing_closes_all_connections(self, own_server: Redis, space: str) -> None:
        store = await self.open(own_server.url)
        await self.together(*(value_of(store, space, A) for _ in range(8)))

        await store.close()

        if self.mode_name == "async":
            await asyncio.sleep(0)  # the event loop closes sockets in its next round
        assert int(own_server.info()["connected_clients"]) == 1

    @only_async
    async def test_who_is_cancelled_while_waiting_takes_no_connection_away(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url + "?max_connections=1")
        await applied(store, space, Put(A, b"1"))
        own_server.command("CLIENT", "PAUSE", "200", "ALL")
        readers = [asyncio.create_task(value_of(store, space, A)) for _ in range(6)]
        await asyncio.sleep(0.05)
        for reader in readers[1:4]:
            reader.cancel()

        found = await asyncio.gather(*readers, return_exceptions=True)

        assert [one for one in found if isinstance(one, bytes)] == [b"1"] * 3
        assert await value_of(store, space, A) == b"1"
        await store.close()

    @only_async
    async def test_who_is_cancelled_in_a_call_leaves_no_answer_to_the_next(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url + "?max_connections=1")
        await applied(store, space, Put(A, b"1"), Put(OTHER, b"2"))
        own_server.command("CLIENT", "PAUSE", "200", "ALL")
        reader = asyncio.create_task(value_of(store, space, A))
        await asyncio.sleep(0.05)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

        assert await value_of(store, space, OTHER) == b"2"
        await store.close()

    async def test_a_server_that_hangs_is_given_up_after_the_timeout_and_asked_again(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url + "?timeout_s=0.2")
        await applied(store, space, Put(A, b"1"))
        own_server.command("CLIENT", "PAUSE", "500", "ALL")

        done = await applied(store, space, Put(OTHER, b"2"))

        assert done.revision == 2
        assert await value_of(store, space, OTHER) == b"2"
        await store.close()

    @only_async
    async def test_each_call_on_a_connection_has_the_whole_timeout_for_itself(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url + "?timeout_s=2&max_connections=1&retry_for_s=0")
        await applied(store, space, Put(A, b"1"))
        await asyncio.sleep(1.5)
        own_server.command("CLIENT", "PAUSE", "1000", "ALL")

        found = await value_of(store, space, A)  # answered 2.5 s after the first call began

        assert found == b"1"
        await store.close()

    @only_async
    async def test_a_timeout_of_a_call_cancels_nothing_else_in_its_task(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url + "?timeout_s=0.2&retry_for_s=0")
        await applied(store, space, Put(A, b"1"))
        own_server.command("CLIENT", "PAUSE", "300", "ALL")

        with pytest.raises(StoreUnavailableError):
            await value_of(store, space, A)

        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        async with asyncio.timeout(60):
            while True:
                with suppress(StoreUnavailableError):
                    assert await value_of(store, space, A) == b"1"
                    break
        await store.close()
