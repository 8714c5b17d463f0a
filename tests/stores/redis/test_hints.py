"""Hints: timely, over one connection a server, and back after a server was away."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable

import pytest
from keepstate_testing.servers import Redis, RedisCluster

from keepstate.stores.protocol import Put
from keepstate.stores.redis import RedisStore
from keepstate.testing.store_contract.stage import applied, changed
from tests.processes import Program
from tests.stores.redis.stage import A, RedisStage

SOON_S = 0.1
"""On an idle machine a hint takes 1 ms; this one is shared, and the next round of polling is far beyond."""

WRITER = """
import sys, time
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl

url, space, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
store = finish(RedisStore(StoreUrl.parse(url), runner=ThreadRunner()).open())
until = time.monotonic() + seconds
count = 0
while time.monotonic() < until:
    finish(store.apply([Batch(space, [Put(b"\\x01a", repr(time.time()).encode())])]))
    count += 1
    time.sleep(0.01)
finish(store.close())
print(count)
"""


class TestHints(RedisStage):
    async def heard_after_s(self, writer: RedisStore, space: str, wait: Callable[[], object]) -> float:
        """Return how long after a write of another handle a listener hears of it."""
        began_s = 0.0

        async def write() -> None:
            nonlocal began_s
            await self.rest(0.05)
            began_s = time.monotonic()
            await applied(writer, space, Put(A, b"1"))

        async def hear() -> float:
            while not began_s:  # a wait may end early, on a busy machine also by a hint of what came before
                await wait()  # type: ignore[misc]
            return time.monotonic()

        _, heard_s = await self.together(write(), hear())  # type: ignore[list-item]
        assert isinstance(heard_s, float)
        return heard_s - began_s

    async def rest(self, seconds: float) -> None:
        if self.mode_name == "async":
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    @pytest.mark.timed
    @pytest.mark.parametrize("kind", ["single", "cluster"])
    async def test_a_space_added_while_a_wait_is_under_way_is_heard_at_once(
        self, redis_server: Redis, redis_cluster: RedisCluster, kind: str, space: str
    ) -> None:
        url = redis_server.url if kind == "single" else redis_cluster.url
        reader, writer = await self.open(url), await self.open(url)
        listeners, late_s = [], list[float]()
        for number in range(6):
            added = f"{space}/{number}"
            listener = reader.listen([added])
            listeners.append(listener)
            while await self.is_hinted(listener.wait):
                pass  # the first hints only say that from now on there will be some

            late_s.append(await self.heard_after_s(writer, added, lambda heard=listener: heard.wait(5)))
        for listener in listeners:
            listener.close()
        await reader.close()
        await writer.close()

        assert min(late_s) >= 0
        assert max(late_s) < SOON_S

    async def test_five_hundred_listeners_take_one_more_connection(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        await applied(store, space, Put(A, b"1"))

        listeners = [store.listen([f"{space}/{number}"]) for number in range(500)]
        for listener in listeners:
            await listener.wait(5)
        await applied(store, space, Put(A, b"2"))

        assert subscribers(redis_server) == 1
        for listener in listeners:
            listener.close()
        await store.close()

    async def test_the_last_listener_takes_the_connection_with_it(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        await applied(store, space, Put(A, b"1"))
        for _ in range(2):
            listener = store.listen([space])
            await listener.wait(1)
            await self.rest(0.05)
            assert subscribers(redis_server) == 1

            listener.close()

            until_s = time.monotonic() + 60
            while subscribers(redis_server):
                assert time.monotonic() < until_s
                await self.rest(0.02)
        await store.close()

    @pytest.mark.timed
    async def test_hints_come_back_when_the_server_does(self, own_server: Redis, space: str) -> None:
        reader, writer = await self.open(own_server.url), await self.open(own_server.url)
        listener = reader.listen([space])
        await listener.wait(1)
        own_server.restart()
        await applied(writer, space, Put(A, b"1"))
        heard: list[float] = []
        for _ in range(10):
            while await self.is_hinted(listener.wait):
                pass

            heard.append(await self.heard_after_s(writer, space, lambda: listener.wait(5)))

        listener.close()
        await reader.close()
        await writer.close()

        assert sorted(heard)[5] < SOON_S

    async def is_hinted(self, wait: Callable[[float], object]) -> bool:
        """Whether a hint is there already."""
        began_s = time.monotonic()
        await wait(0.02)  # type: ignore[misc]
        return time.monotonic() - began_s < 0.02

    async def test_a_follower_of_another_process_misses_nothing_for_seconds(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        listener = store.listen([space])
        worker = Program("-c", WRITER, store.url, space, "3.5", stdout=subprocess.PIPE)
        upto = 0
        while worker.poll() is None:
            await listener.wait(1)
            changes = await store.changes(space, upto)
            assert [change.revision for change in changes.items] == list(range(upto + 1, changes.upto + 1))
            upto = changes.upto
        written, _ = worker.communicate()

        assert (await store.changes(space, 0)).upto == int(written)
        assert len(await changed(store, space)) == int(written) > 50
        listener.close()
        await store.close()


def subscribers(server: Redis) -> int:
    """Return how many connections hear hints of the server."""
    return len(str(server.command("CLIENT", "LIST", "TYPE", "PUBSUB")).splitlines())
