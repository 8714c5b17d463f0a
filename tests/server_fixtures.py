"""Real servers for tests, one of each kind a session (with xdist a worker), started on demand.

They run without durability, because these tests ask about semantics; who kills a server starts one of its
own. A test takes `postgres_url`, `redis_url`, `valkey_url` or `redis_cluster_url` and finds nothing there.

`tests/selection.py` knows which tests need one; a test that it selected as one without a server fails here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest
from keepstate_testing.servers import Postgres, Redis, RedisCluster, Valkey

from keepstate.errors import MissingExtraError

S = TypeVar("S", bound=Postgres | Redis | RedisCluster)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    yield from running(request, Postgres(durable=False, settings={"max_connections": "200"}))


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    yield from running(request, Redis())


@pytest.fixture(scope="session")
def valkey_server(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    yield from running(request, Valkey())


@pytest.fixture(scope="session")
def redis_cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    yield from running(request, RedisCluster())


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


def running(request: pytest.FixtureRequest, server: S) -> Iterator[S]:
    """Yield the started server; skips the test, which fails it in CI, where its binary is not installed."""
    if request.config.getoption("--quick") or request.config.getoption("--serverless"):
        pytest.fail("a test that was selected as one without a server asks for one: mark it with `server`")
    try:
        server.start()
    except MissingExtraError as error:
        pytest.skip(str(error))
    with server:
        yield server
