"""Several nodes are asked at once, also by a thread: none is sent to only when another has answered."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from keepstate._clock import SYSTEM_CLOCK
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.redis.client import Client, Unit
from keepstate.stores.redis.encoding import SLOTS
from keepstate.stores.redis.wire import Access, Address

ACCESS = Access(
    url="redis+cluster://nodes",
    user=None,
    password=None,
    database=0,
    timeout_s=3.0,
    tls=False,
    tls_ca=None,
    tls_cert=None,
    tls_key=None,
)


class SlowNode:
    """Answers a command only once as many nodes as there are have been sent one."""

    def __init__(self, all_asked: threading.Barrier) -> None:
        self._all_asked = all_asked
        self.slots = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while head := lines.readline():
                words = [lines.read(int(lines.readline()[1:]) + 2)[:-2] for _ in range(int(head[1:]))]
                if words[0] == b"CLUSTER":
                    connection.sendall(self.slots)
                elif words[0] == b"PING":
                    try:
                        self._all_asked.wait(60)
                    except threading.BrokenBarrierError:
                        return
                    connection.sendall(b"+%s\r\n" % words[1])
                else:
                    connection.sendall(b"+OK\r\n")


@pytest.fixture
def nodes() -> Iterator[list[SlowNode]]:
    """Three nodes, with a third of the slots each."""
    all_asked = threading.Barrier(3)
    with ExitStack() as stack:
        nodes = [SlowNode(all_asked) for _ in range(3)]
        for node in nodes:
            stack.callback(node.close)
        third = SLOTS // 3
        ranges = [(0, third), (third + 1, 2 * third), (2 * third + 1, SLOTS - 1)]
        told = b"".join(
            b"*3\r\n:%d\r\n:%d\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % (*slots, node.port)
            for slots, node in zip(ranges, nodes, strict=True)
        )
        for node in nodes:
            node.slots = b"*3\r\n" + told
        yield nodes


def test_a_blocking_flush_is_sent_to_every_node_before_any_answer_is_read(nodes: list[SlowNode]) -> None:
    client = Client(
        [Address("127.0.0.1", node.port) for node in nodes],
        ACCESS,
        is_cluster=True,
        runner=ThreadRunner(),
        clock=SYSTEM_CLOCK,
        max_connections=1,
    )
    slots = (SLOTS - 1, 0, SLOTS // 2)

    answers = finish(client.run([Unit(slot, [(b"PING", b"%d" % slot)]) for slot in slots]))

    assert answers == [[b"%d" % slot] for slot in slots]
    finish(client.close())
