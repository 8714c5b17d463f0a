"""A private cluster: every slot is served, a failover survives a node's death, and a restart keeps all."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from keepstate_testing.servers import Redis, RedisCluster, Valkey

from keepstate.errors import InvalidError, StorageError

pytestmark = pytest.mark.slow

# One key of each third of the slots.
KEYS = ("b", "c", "a")


@pytest.fixture(scope="module", params=[Redis, Valkey])
def whole_cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    with RedisCluster(replicas=1, server=request.param, appendonly=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: RedisCluster) -> RedisCluster:
    whole_cluster.start()
    whole_cluster.flush()
    return whole_cluster


def test_each_master_serves_a_third_of_the_slots(cluster: RedisCluster) -> None:
    for key in KEYS:
        cluster.master_of(key).command("SET", key, "value")

    assert len({cluster.master_of(key).port for key in KEYS}) == 3


def test_the_url_names_every_node(cluster: RedisCluster) -> None:
    hosts = cluster.url.removeprefix("redis+cluster://").split(",")

    assert hosts == [f"127.0.0.1:{node.port}" for node in cluster.nodes]


def test_flush_removes_the_data_of_all_masters(cluster: RedisCluster) -> None:
    for key in KEYS:
        cluster.master_of(key).command("SET", key, "value")

    cluster.flush()

    assert [cluster.master_of(key).command("GET", key) for key in KEYS] == [None] * 3


def test_a_replica_takes_over_from_a_killed_master(cluster: RedisCluster) -> None:
    killed = cluster.master_of("a")
    assert killed.commands(("SET", "a", "value"), ("WAIT", "1", "5000")) == ["OK", 1]

    killed.kill()
    successor = cluster.master_of("a")
    cluster.wait_until_ok()

    assert successor is not killed
    assert successor.command("GET", "a") == "value"


def test_a_killed_master_comes_back_as_a_replica_in_sync(cluster: RedisCluster) -> None:
    killed = cluster.master_of("a")
    killed.kill()
    cluster.master_of("a").command("SET", "a", "value")

    cluster.start()

    assert killed.info()["role"] == "slave"
    assert killed.info()["master_link_status"] == "up"


def test_a_forgetful_failover_loses_what_its_block_wrote_and_nothing_else(cluster: RedisCluster) -> None:
    cluster.master_of("a").command("SET", "a", "before")

    with cluster.forgetful_failover("a") as killed:
        killed.commands(("SET", "a", "lost"), ("GET", "a"))
    successor = cluster.master_of("a")

    assert successor is not killed
    assert successor.command("GET", "a") == "before"
    assert not killed.is_running


def test_after_a_forgetful_failover_the_next_one_goes_back(cluster: RedisCluster) -> None:
    with cluster.forgetful_failover("a") as first:
        pass
    cluster.master_of("a").command("SET", "a", "kept")
    cluster.start()

    with cluster.forgetful_failover("a") as second:
        second.command("SET", "a", "lost")

    assert second is not first
    assert cluster.master_of("a") is first
    assert first.command("GET", "a") == "kept"


def test_a_cluster_killed_whole_comes_back_with_its_data(cluster: RedisCluster) -> None:
    for key in KEYS:
        cluster.master_of(key).command("SET", key, "value")

    cluster.kill()
    cluster.restart()

    assert [value_of(cluster, key) for key in KEYS] == ["value"] * 3


def value_of(cluster: RedisCluster, key: str) -> object:
    """Return a value, once no node is taken for failed because it answered late."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return cluster.master_of(key).command("GET", key)
        except StorageError:
            if time.monotonic() > until_s:
                raise
        time.sleep(0.05)


def test_without_replicas_all_nodes_are_masters() -> None:
    with RedisCluster() as cluster:
        assert [node.info()["role"] for node in cluster.nodes] == ["master"] * 3


def test_a_cluster_without_masters_is_refused() -> None:
    with pytest.raises(InvalidError, match="at least one master"):
        RedisCluster(masters=0)
