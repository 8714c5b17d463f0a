"""What the tests of the Redis store share: a line that loses what it carries, and servers to be broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from keepstate_testing.faults import Proxy
from keepstate_testing.servers import Redis

from tests.server_fixtures import running


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Redis]:
    """A server of the test's own, to be killed: every write is on the disk before its answer."""
    yield from running(request, Redis(appendonly=True, appendfsync="always"))


@pytest.fixture
def line(redis_server: Redis) -> Iterator[Proxy]:
    """A line to the shared server, emptied."""
    redis_server.flush()
    with Proxy(redis_server.port) as line:
        yield line
