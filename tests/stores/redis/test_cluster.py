"""Three masters: spaces on all of them, nodes that restart, slots that move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from keepstate_testing.servers import Redis, RedisCluster

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import StoreUnavailableError
from keepstate.stores.protocol import Applied, Batch, Check, Put
from keepstate.stores.redis import RedisStore, client
from keepstate.stores.redis.encoding import REGISTRY_SHARDS, keys_of, registry_key
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import applied, changed, value_of
from tests.server_fixtures import running
from tests.stores.redis.stage import DOC, A, RedisStage

SPACES = [f"s{number}" for number in range(24)]


@pytest.fixture(scope="module")
def own_cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """A cluster of this module's own, whose nodes keep what they have when they are killed."""
    yield from running(request, RedisCluster(appendonly=True))


class TestCluster(RedisStage):
    @pytest.fixture(autouse=True)
    def emptied(self, own_cluster: RedisCluster) -> None:
        own_cluster.flush()

    async def test_one_call_reaches_spaces_on_all_nodes(self, own_cluster: RedisCluster) -> None:
        store = await self.open(own_cluster.url)

        outcomes = await store.apply([Batch(space, [Put(A, space.encode())]) for space in SPACES * 3])

        assert [type(outcome) for outcome in outcomes] == [Applied] * len(outcomes)
        assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [
            1 + number // len(SPACES) for number in range(len(outcomes))
        ]
        assert len({own_cluster.master_of(f"{{{space}}}") for space in SPACES}) == 3
        assert await store.spaces("s", limit=1000) == sorted(SPACES)
        await store.close()

    async def test_names_of_all_nodes_come_in_order_and_in_pages(self, own_cluster: RedisCluster) -> None:
        store = await self.open(own_cluster.url)
        await store.apply([Batch(space, [Put(A, b"1")]) for space in SPACES])
        await store.drop("s1")
        await store.drop("s20")

        found: list[str] = []
        while page := await store.spaces("s", after=found[-1] if found else None, limit=5):
            found += page

        assert found == sorted(set(SPACES) - {"s1", "s20"})
        await store.close()

    async def test_any_node_of_the_url_is_enough_to_find_the_others(self, own_cluster: RedisCluster) -> None:
        port = own_cluster.nodes[2].port

        store = await self.open(f"redis+cluster://127.0.0.1:1,127.0.0.1:{port}")

        outcomes = await store.apply([Batch(space, [Put(A, b"1")]) for space in SPACES])
        assert all(isinstance(outcome, Applied) for outcome in outcomes)
        await store.close()

    @pytest.mark.parametrize("found", ["in a call", "while idle"])
    async def test_spaces_are_listed_anew_once_the_node_with_their_names_was_replaced(
        self, own_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, found: str
    ) -> None:
        if found == "while idle":
            monkeypatch.setattr(client, "_TRUSTED_S", 0.0)
        store = await self.open(own_cluster.url)
        await store.apply([Batch(space, [Put(A, b"1")]) for space in SPACES])
        names = [registry_key("keepstate", shard) for shard in range(REGISTRY_SHARDS)]
        node = own_cluster.master_of(names[0].decode())
        lost = [name.decode() for name in names if own_cluster.master_of(name.decode()) is node]
        kept = [space for space in SPACES if own_cluster.master_of(f"{{{space}}}") is not node]
        for name in lost:
            node.command("DEL", name)
        node.command("CLIENT", "KILL", "TYPE", "normal")  # as by a failover that lost the names alone

        await store.apply([Batch(space, [Put(A, b"2")]) for space in SPACES])
        await store.apply([Batch(space, [Put(A, b"3")]) for space in kept])

        assert set(kept) <= set(await store.spaces("s", limit=1000))
        await store.close()

    async def test_a_node_that_restarts_is_found_again_with_all_that_it_had(
        self, own_cluster: RedisCluster
    ) -> None:
        store = await self.open(own_cluster.url)
        await store.apply([Batch(space, [Put(A, b"1")]) for space in SPACES])

        for node in own_cluster.nodes:
            node.kill()
            node.start()
            own_cluster.wait_until_ok()

        outcomes = await store.apply([Batch(space, [Put(DOC, b"2")], [Check(A, 1)]) for space in SPACES])
        assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [2] * len(SPACES)
        await store.close()

    async def test_a_node_that_is_away_stops_only_its_own_spaces(self, own_cluster: RedisCluster) -> None:
        for node in own_cluster.nodes:
            node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        store = await self.open(own_cluster.url + "?retry_for_s=0.2")
        await store.apply([Batch(space, [Put(A, b"1")]) for space in SPACES])
        away = own_cluster.nodes[1]
        gone = {space for space in SPACES if own_cluster.master_of(f"{{{space}}}") is away}
        away.kill()

        outcomes = await store.apply([Batch(space, [Put(A, b"2")]) for space in SPACES])

        failed = {
            space for space, outcome in zip(SPACES, outcomes, strict=True) if not isinstance(outcome, Applied)
        }
        assert failed == gone
        assert all(isinstance(o, Applied | StoreUnavailableError) for o in outcomes)
        away.start()
        own_cluster.wait_until_ok()
        await store.close()

    async def test_a_space_whose_slot_is_moving_is_read_on_and_written_when_it_has_moved(
        self, own_cluster: RedisCluster, space: str
    ) -> None:
        store = await self.open(own_cluster.url + "?retry_for_s=0.2")
        await applied(store, space, Put(A, b"1"), Put(DOC, b"1"))
        move = Move(own_cluster, space)

        for step in (move.begin, move.carry):
            step()
            assert await value_of(store, space, A) == b"1"
            assert [change.revision for change in await changed(store, space)] == [1, 1]
            (outcome,) = await store.apply([Batch(space, [Put(A, b"2")])])
            assert isinstance(outcome, StoreUnavailableError)
            with pytest.raises(StoreUnavailableError):
                await store.drop(space)
        move.end()

        assert (await applied(store, space, Put(A, b"2"), checks=[Check(A, 1)])).revision == 2
        assert own_cluster.master_of(f"{{{move.tag}}}") is move.target
        assert [change.revision for change in await changed(store, space)] == [1, 1, 2]
        await store.close()

    async def test_a_space_whose_keys_are_on_both_nodes_waits_until_they_are_together(
        self, own_cluster: RedisCluster, space: str
    ) -> None:
        store = await self.open(own_cluster.url + "?retry_for_s=0.2")
        await applied(store, space, Put(A, b"1"))
        move = Move(own_cluster, space)
        move.begin()
        move.carry(only="log")

        (outcome,) = await store.apply([Batch(space, [Put(A, b"2")])])
        with pytest.raises(StoreUnavailableError):
            await store.changes(space, 0)

        assert isinstance(outcome, StoreUnavailableError)
        assert "TRYAGAIN" in str(outcome)
        move.carry()
        move.end()
        assert await value_of(store, space, A) == b"1"
        assert (await applied(store, space, Put(A, b"2"))).revision == 2
        await store.close()

    def test_writers_wait_while_a_slot_moves_and_lose_nothing(
        self, own_cluster: RedisCluster, space: str
    ) -> None:
        done: list[int] = []
        ended = threading.Event()

        def write() -> None:
            store = finish(RedisStore(StoreUrl.parse(own_cluster.url), runner=ThreadRunner()).open())
            while not ended.is_set():
                done.append(
                    finish(
                        applied(store, space, Put(b"\x02log/", b"", stamp=True), Put(DOC, b"x", ttl_ms=1))
                    ).revision
                )
            finish(store.close())

        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        for number in range(1, 6):
            while len(done) < 15 * number and all(writer.is_alive() for writer in writers):
                time.sleep(0.01)
            move = Move(own_cluster, space)
            for step in (move.begin, move.carry, move.end) if number < 5 else ():
                step()
                time.sleep(0.03)
        ended.set()
        for writer in writers:
            writer.join()

        store = finish(RedisStore(StoreUrl.parse(own_cluster.url), runner=ThreadRunner()).open())
        page = finish(store.scan(space, b"\x02log/", limit=1000))
        assert len(done) > 50
        assert sorted(done)[: len(page.entries)] == [entry.version for entry in page.entries]
        finish(store.close())


class Move:
    """Carries the slot of a space to another node, as an operator's tool does."""

    def __init__(self, cluster: RedisCluster, space: str) -> None:
        where = keys_of("keepstate", space)
        self.tag = space.replace("%", "%25").replace("}", "%7D")
        self.slot = str(where.slot)
        self.source = cluster.master_of(f"{{{self.tag}}}")
        self.target = next(node for node in cluster.nodes if node is not self.source)
        self.nodes = cluster.nodes

    def begin(self) -> None:
        self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", name_of(self.source))
        self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", name_of(self.target))

    def carry(self, only: str = "") -> None:
        here = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, "100")
        assert isinstance(here, list)
        for key in map(str, here):
            if key.endswith(only):
                self.source.command("MIGRATE", "127.0.0.1", str(self.target.port), key, "0", "5000")

    def end(self) -> None:
        for node in (self.target, self.source, *self.nodes):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", name_of(self.target))


def name_of(node: Redis) -> str:
    return str(node.command("CLUSTER", "MYID"))
