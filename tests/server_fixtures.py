"""Real servers for tests, one of each kind a session (with xdist a worker), started on demand.

They run without durability, because these tests ask about semantics; who kills a server starts one of its
own. A test takes `postgres_url`, `redis_url`, `valkey_url` or `redis_cluster_url` and finds nothing there.

`--quick` selects the tests that need no server. A test needs one if it takes one of these fixtures, if a
parameter names a kind of server, if its folder or a mark says so; a selected test that still asks for a
server fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from keepstate_testing.servers import Postgres, Redis, RedisCluster, Valkey

from keepstate.errors import MissingExtraError

S = TypeVar("S", bound=Postgres | Redis | RedisCluster)

SERVER_FIXTURES = frozenset(
    f"{kind}_{part}"
    for kind in ("postgres", "redis", "valkey", "redis_cluster")
    for part in ("server", "url")
) | {"redis_cluster"}
SERVER_PARAMETER = re.compile(r"(?<![a-z])(redis|valkey|cluster|postgres|postgresql|rediss)(?![a-z])")
SERVER_FOLDERS = tuple(
    Path(__file__).parent / folder
    for folder in (
        *("architecture", "bench", "crashes", "docs", "tools"),
        *(
            "stores/postgres",
            "stores/redis",
            "testing/chaos",
            "testing/servers",
        ),
    )
)
"""Folders that start servers of their own, or whose tests last long and say little about a Python."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="select the tests that need no server")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    slow = [item for item in items if needs_server(item)]
    if slow:
        items[:] = [item for item in items if not needs_server(item)]
        config.hook.pytest_deselected(items=slow)


def needs_server(item: pytest.Item) -> bool:
    """Whether a test is part of `make test` only, because it starts a server or its folder does."""
    names = set(getattr(item, "fixturenames", ()))
    _, _, parameters = item.name.partition("[")
    return bool(
        item.get_closest_marker("server")
        or names & SERVER_FIXTURES
        or SERVER_PARAMETER.search(parameters)
        or any(item.path.is_relative_to(folder) for folder in SERVER_FOLDERS)
    )


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
    if request.config.getoption("--quick"):
        pytest.fail("a test that `--quick` selected asks for a server: mark it with pytest.mark.server")
    try:
        server.start()
    except MissingExtraError as error:
        pytest.skip(str(error))
    with server:
        yield server
