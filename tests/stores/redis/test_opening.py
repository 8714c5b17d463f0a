"""What an opened store offers, and what it refuses to be opened on."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time

import pytest
from keepstate_testing.servers import Redis, RedisCluster

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import InvalidError, StorageError, StoreUnavailableError
from keepstate.stores.protocol import Batch, Durability, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import applied, value_of
from tests.server_fixtures import running
from tests.stores.redis.stage import DOC, RedisStage


class TestOpening(RedisStage):
    async def test_a_server_that_evicts_is_refused_by_its_setting(self, redis_server: Redis) -> None:
        redis_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            with pytest.raises(InvalidError, match="maxmemory-policy allkeys-lru") as caught:
                await self.open(redis_server.url)
            store = await self.open(redis_server.url + "?unsafe_policy=1")
            await store.close()
        finally:
            redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")

        assert "unsafe_policy=1" in str(caught.value)

    async def test_the_durability_is_what_the_server_s_settings_give(self, own_server: Redis) -> None:
        found = []
        for appendonly, fsync in (("yes", "always"), ("yes", "everysec"), ("no", "always")):
            own_server.command("CONFIG", "SET", "appendfsync", fsync)
            own_server.command("CONFIG", "SET", "appendonly", appendonly)
            store = await self.open(own_server.url)
            found.append(store.capabilities.durability)
            await store.close()

        assert found == [Durability.POWER, Durability.PROCESS, Durability.NONE]

    async def test_a_store_whose_server_was_down_is_opened_when_it_is_up(
        self, own_server: Redis, space: str
    ) -> None:
        store = self.make(own_server.url)
        own_server.kill()
        with pytest.raises(StoreUnavailableError):
            await store.open()
        own_server.start()

        await store.open()
        await applied(store, space, Put(DOC, b"1"))
        connected = int(own_server.info()["total_connections_received"])

        assert [await value_of(store, space, DOC) for _ in range(5)] == [b"1"] * 5
        assert int(own_server.info()["total_connections_received"]) <= connected + 1  # the one that asks
        await store.close()

    async def test_a_server_that_is_down_is_named_at_once(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(
            StoreUnavailableError, match=f"redis://u@127.0.0.1:{port}/3.*Check that the server is up"
        ) as caught:
            await self.open(f"redis://u:secret@127.0.0.1:{port}/3")

        assert "secret" not in str(caught.value) + repr(caught.value.__cause__)

    async def test_a_server_that_does_not_answer_is_given_up_after_the_timeout(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"redis://127.0.0.1:{silent.getsockname()[1]}?timeout_s=0.2"
            with pytest.raises(StoreUnavailableError, match="was not reached"):
                await self.open(url)

    async def test_a_wrong_password_is_invalid_and_not_shown(self, redis_server: Redis) -> None:
        url = redis_server.url.replace("redis://", "redis://someone:secret@")

        with pytest.raises(InvalidError, match="rejects user and password") as caught:
            await self.open(url)

        assert "secret" not in str(caught.value)

    async def test_a_login_that_is_missing_and_a_database_that_is_not_there_are_invalid(
        self, own_server: Redis
    ) -> None:
        with pytest.raises(InvalidError, match=r"no such database at .*: DB index is out of range. Use"):
            await self.open(own_server.url.rpartition("/")[0] + "/99")
        own_server.command("CONFIG", "SET", "requirepass", "secret")
        with pytest.raises(InvalidError, match=r"rejects user and password at .*required. Correct") as caught:
            await self.open(own_server.url)

        assert not caught.value.retryable

    async def test_a_login_refused_while_it_is_open_may_be_given_back(self, own_server: Redis) -> None:
        rights = ("on", "~*", "&*", "+@all")
        own_server.command("ACL", "SETUSER", "ann", *rights, ">old")
        url = own_server.url.replace("redis://", "redis://ann:old@")
        store = await self.open(f"{url}?retry_for_s=0")
        await applied(store, "s", Put(DOC, b"1"))

        own_server.command("ACL", "SETUSER", "ann", "resetpass", ">new")
        own_server.command("CLIENT", "KILL", "USER", "ann")
        [refused] = await store.apply([Batch("s", [Put(DOC, b"2")])])
        own_server.command("ACL", "SETUSER", "ann", ">old")
        await applied(store, "s", Put(DOC, b"3"))

        assert isinstance(refused, StoreUnavailableError)
        await store.close()

    async def test_a_node_of_a_cluster_is_no_single_server(self, redis_cluster: RedisCluster) -> None:
        with pytest.raises(InvalidError, match=r"redis\+cluster://"):
            await self.open(redis_cluster.nodes[0].url)

    async def test_a_single_server_is_no_cluster(self, redis_server: Redis) -> None:
        url = f"redis+cluster://127.0.0.1:{redis_server.port}"

        with pytest.raises(StoreUnavailableError, match=r"No node of redis\+cluster"):
            await self.open(url)

    async def test_a_replica_is_refused_and_names_its_master(
        self, own_server: Redis, redis_server: Redis
    ) -> None:
        own_server.command("REPLICAOF", "127.0.0.1", str(redis_server.port))

        with pytest.raises(InvalidError, match=f"Open its master, 127.0.0.1:{redis_server.port}"):
            await self.open(own_server.url)

    async def test_a_user_who_may_not_write_all_is_refused_before_the_first_batch(
        self, redis_server: Redis
    ) -> None:
        redis_server.command("ACL", "SETUSER", "half", "on", ">p", "~*", "&*", "+@all", "-zadd")
        try:
            with pytest.raises(StorageError, match="forbids its user ZADD"):
                await self.open(redis_server.url.replace("redis://", "redis://half:p@"))
        finally:
            redis_server.command("ACL", "DELUSER", "half")

    async def test_a_user_who_may_not_publish_writes_and_hears_by_polling(
        self, redis_server: Redis, space: str
    ) -> None:
        redis_server.command("ACL", "SETUSER", "quiet", "on", ">p", "~*", "resetchannels", "+@all")
        try:
            store = await self.open(redis_server.url.replace("redis://", "redis://quiet:p@"))
            other = await self.open(redis_server.url)
            listener = store.listen([space])
            await listener.wait(1)
            await applied(store, space, Put(DOC, b"1"))
            await listener.wait(1)

            await applied(other, space, Put(DOC, b"2"))
            await listener.wait(3600)  # without a hint it waits until the test is timed out

            assert await value_of(store, space, DOC) == b"2"
            listener.close()
            await other.close()
            await store.close()
        finally:
            redis_server.command("ACL", "DELUSER", "quiet")

    async def test_two_prefixes_on_one_server_are_two_stores(self, redis_url: str, space: str) -> None:
        one, two = await self.open(redis_url), await self.open(redis_url + "?prefix=other")

        await applied(one, space, Put(DOC, b"1"))

        assert await value_of(two, space, DOC) is None
        assert await two.spaces() == []
        await one.close()
        await two.close()

    async def test_a_twin_of_another_mode_is_on_the_same_spaces(self, redis_url: str, space: str) -> None:
        store = await self.open(redis_url + "?prefix=other")
        await applied(store, space, Put(DOC, b"1"))

        twin = store.twin(ThreadRunner())

        finish(twin.open())
        assert finish(value_of(twin, space, DOC)) == b"1"
        finish(twin.close())
        await store.close()

    async def test_two_databases_of_one_server_are_two_stores(self, redis_server: Redis, space: str) -> None:
        one = await self.open(f"redis://127.0.0.1:{redis_server.port}")
        two = await self.open(f"redis://127.0.0.1:{redis_server.port}/1")

        await applied(one, space, Put(DOC, b"1"))

        assert await value_of(two, space, DOC) is None
        await one.close()
        await two.close()

    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("redis://", "does not name a server"),
            ("redis://h:x", "redis://… has no valid host and port"),
            ("redis://h:0", "does not name a server in 'h:0'"),
            ("redis://a,b", "Only redis.cluster:// has more than one"),
            ("redis://h/db", "does not name a database in 'db'"),
            ("redis+cluster://h/1", "A cluster has only 0"),
            (
                "redis://h?colour=1",
                "does not have an option 'colour'. Its options: max_connections, prefix, retry_for_s",
            ),
            ("redis://h?timeout_s=0", "timeout_s"),
            ("redis://h?prefix=a{b", "prefix"),
            ("redis://h?max_connections=0", "max_connections"),
        ],
    )
    def test_a_url_that_cannot_be_meant_is_invalid(self, url: str, says: str) -> None:
        with pytest.raises(InvalidError, match=says):
            self.make(url)

    async def test_an_unsafe_policy_is_logged(
        self, redis_server: Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        redis_server.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        try:
            with caplog.at_level(logging.WARNING, "keepstate"):
                await (await self.open(redis_server.url + "?unsafe_policy=1")).close()
        finally:
            redis_server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")

        assert any("maxmemory-policy volatile-ttl" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("package", ["redis", "hiredis"])
def test_without_its_driver_the_scheme_names_the_command_that_installs_it(package: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
from keepstate.opening import store_class
store_class("redis")
"""

    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert (
        "MissingExtraError: redis:// needs redis and hiredis: pip install 'keepstate[redis]'" in done.stderr
    )


def test_a_server_with_replicas_says_that_it_fails_over(request: pytest.FixtureRequest) -> None:
    for master in running(request, Redis()):
        with Redis(settings={"replicaof": f"127.0.0.1 {master.port}"}) as replica:
            while replica.info()["master_link_status"] != "up":
                time.sleep(0.02)
            store = finish(RedisStore(StoreUrl.parse(master.url), runner=ThreadRunner()).open())

            assert store.capabilities.fails_over
            finish(store.close())
