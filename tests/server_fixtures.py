"""Real servers for tests, one of each kind a session (with xdist a worker), started on demand.

They run without durability, because these tests ask about semantics; who kills a server starts one of its
own. A test takes `postgres_url`, `redis_url`, `valkey_url` or `redis_cluster_url` and finds nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from keepstate.errors import MissingExtraError
from keepstate.testing.servers import Postgres, Redis, RedisCluster, Valkey

S = TypeVar("S", bound=Postgres | Redis | RedisCluster)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    yield from running(Postgres(durable=False, settings={"max_connections": "200"}))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    yield from running(Redis())


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[Valkey]:
    yield from running(Valkey())


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    yield from running(RedisCluster())


@pytest.fixture
def postgres_url(postgres_server: Postgres) -> str:
    postgres_server.flush()
    return postgres_server.url


@pytest.fixture
def redis_url(redis_server: Redis) -> str:
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def valkey_url(valkey_server: Valkey) -> str:
    valkey_server.flush()
    return valkey_server.url


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> str:
    redis_cluster.flush()
    return redis_cluster.url


def running(server: S) -> Iterator[S]:
    """Yields the started server; skips the test, which fails it in CI, where its binary is not installed."""
    try:
        server.start()
    except MissingExtraError as error:
        pytest.skip(str(error))
    with server:
        yield server
