"""A node that has not heard of a failover sends to the former master: that passes, and says so."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from keepstate_testing.servers import RedisCluster

from keepstate.errors import StoreUnavailableError
from tests.server_fixtures import running
from tests.stores.redis.stage import RedisStage


@pytest.fixture(scope="module")
def replicated(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """A master and its replica."""
    yield from running(request, RedisCluster(masters=1, replicas=1))


@contextmanager
def outdated_node(master: int) -> Iterator[int]:
    """Yield the port of a node that takes the one at this port for the master of all slots."""
    told = f"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{master}\r\n".encode()

    class Node(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for count in self.rfile:  # *2, and then each word behind a line with its length
                lines = [self.rfile.readline() for _ in range(2 * int(count[1:]))]
                self.wfile.write(told if b"SLOTS\r\n" in lines else b"+OK\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Node) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class TestOutdatedMap(RedisStage):
    async def test_who_opens_during_a_failover_is_told_to_try_again(self, replicated: RedisCluster) -> None:
        master, replica = replicated.nodes

        with outdated_node(replica.port) as port, pytest.raises(StoreUnavailableError) as told:
            await self.open(f"redis+cluster://127.0.0.1:{port}")

        assert f"just become a replica of 127.0.0.1:{master.port}" in str(told.value)
        assert told.value.retryable
