"""The proxy does to each request what it is told, and to the others nothing."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from keepstate_testing.faults import (
    CutReply,
    CutRequest,
    Delay,
    HalfClose,
    Late,
    Plan,
    Proxy,
    Silence,
    having,
)

from keepstate.errors import InvalidError


class Echo(socketserver.ThreadingTCPServer):
    """Answers each line with itself in capitals, and keeps what it has got."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.got: list[bytes] = []
        self.ended = threading.Semaphore(0)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Answering(socketserver.StreamRequestHandler):
    server: Echo

    def handle(self) -> None:
        while line := self.rfile.readline():
            self.server.got.append(line)
            if line.endswith(b"\n"):
                self.wfile.write(line.upper())
        self.server.ended.release()


@contextmanager
def serving() -> Generator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    with serving() as server:
        yield server


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with connected(proxy) as client:
        yield client


def connected(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port))
    client.settimeout(5.0)
    return client


def said(client: socket.socket, request: bytes) -> bytes:
    """Return the answer to a request, as much of it as came; a line that was taken away answers nothing."""
    answer = b""
    try:
        client.sendall(request)
        while not answer.endswith(b"\n") and (more := client.recv(1 << 16)):
            answer += more
    except ConnectionError:
        pass
    return answer


def test_what_nobody_spoils_gets_through_whole(proxy: Proxy, client: socket.socket) -> None:
    large = b"x" * 5_000_000 + b"\n"

    answers = [said(client, b"one\n"), said(client, large)]

    assert answers == [b"ONE\n", large.upper()]
    assert (proxy.requests, proxy.happened.total()) == (2, 0)


@pytest.mark.parametrize("after", [0, 2])
def test_a_cut_request_reaches_the_server_in_part(
    proxy: Proxy, client: socket.socket, echo: Echo, after: int
) -> None:
    proxy.spoil(CutRequest(after))

    answer = said(client, b"word\n")

    assert echo.ended.acquire(timeout=60)
    assert (answer, b"".join(echo.got)) == (b"", b"word\n"[:after])


@pytest.mark.parametrize("after", [0, 2])
def test_a_cut_reply_reaches_the_client_in_part_and_the_request_the_server_whole(
    proxy: Proxy, client: socket.socket, echo: Echo, after: int
) -> None:
    proxy.spoil(CutReply(after))

    answer = said(client, b"word\n")

    assert (answer, echo.got) == (b"WORD\n"[:after], [b"word\n"])
    assert proxy.happened == {CutReply: 1}


def test_only_the_next_request_is_spoilt(proxy: Proxy, client: socket.socket) -> None:
    proxy.spoil(CutReply())

    lost = said(client, b"one\n")
    with connected(proxy) as other:
        answers = [said(other, b"two\n"), said(other, b"three\n")]

    assert (lost, answers) == (b"", [b"TWO\n", b"THREE\n"])


def test_a_mishap_waits_for_a_request_that_it_is_meant_for(proxy: Proxy, client: socket.socket) -> None:
    proxy.spoil(CutReply(), chosen=having(b"write"))

    answers = [said(client, b"read\n"), said(client, b"write\n")]

    assert answers == [b"READ\n", b""]
    assert proxy.ordered == 0


def test_a_delay_holds_up_request_and_reply_and_changes_neither(proxy: Proxy, client: socket.socket) -> None:
    proxy.spoil(Delay(request_s=0.05, reply_s=0.05))
    since_s = time.monotonic()

    answer = said(client, b"word\n")

    assert answer == b"WORD\n"
    assert time.monotonic() - since_s >= 0.1


def test_behind_a_half_close_the_client_hears_the_end_and_can_still_send(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.spoil(HalfClose())

    answer = said(client, b"one\n")
    client.sendall(b"two\n")
    client.close()

    assert echo.ended.acquire(timeout=60)
    assert (answer, echo.got) == (b"", [b"one\n", b"two\n"])


def test_behind_silence_the_server_works_on_and_the_client_hears_nothing(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.spoil(Silence())
    client.settimeout(0.1)

    for request in (b"one\n", b"two\n"):
        with pytest.raises(TimeoutError):
            said(client, request)

    assert echo.got == [b"one\n", b"two\n"]


def test_a_late_request_arrives_when_it_is_released_after_the_ones_that_followed(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.spoil(Late())

    lost = said(client, b"first\n")
    with connected(proxy) as other:
        answer = said(other, b"second\n")
    before = list(echo.got)
    released = proxy.release()

    assert (lost, answer, before) == (b"", b"SECOND\n", [b"second\n"])
    assert (released, echo.got) == (1, [b"second\n", b"first\n"])
    assert proxy.release() == 0


def test_cut_takes_every_line_away(proxy: Proxy, client: socket.socket) -> None:
    said(client, b"one\n")

    proxy.cut()

    assert said(client, b"two\n") == b""


def test_it_can_be_led_to_another_server(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    said(client, b"one\n")

    with serving() as successor:
        proxy.lead_to(successor.port)
        with connected(proxy) as later:
            answers = [said(later, b"two\n"), said(client, b"three\n")]

    assert answers == [b"TWO\n", b"THREE\n"]
    assert (echo.got, successor.got) == ([b"one\n", b"three\n"], [b"two\n"])


def test_where_nobody_listens_the_client_is_hung_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]

    with Proxy(port) as proxy, connected(proxy) as client:
        assert said(client, b"one\n") == b""


def test_the_same_seed_spoils_the_same_requests() -> None:
    plans = [Plan(seed, share=0.2, chosen=having(b"write")) for seed in (7, 7, 8)]

    mishaps = [[plan.mishap(b"write %d" % number) for number in range(500)] for plan in plans]

    assert mishaps[0] == mishaps[1] != mishaps[2]
    assert 60 < sum(mishap is not None for mishap in mishaps[0]) < 140
    assert not any(plan.mishap(b"read") for plan in plans for _ in range(100))


def test_a_plan_is_asked_for_what_nobody_ordered(echo: Echo) -> None:
    with Proxy(echo.port, plan=Plan(1, share=1.0, draws=[lambda random: CutReply(1)])) as proxy:
        proxy.spoil(CutRequest())
        answers: list[bytes] = []
        for _ in range(3):
            with connected(proxy) as client:
                answers.append(said(client, b"word\n"))

    assert answers == [b"", b"W", b"W"]
    assert proxy.happened == {CutRequest: 1, CutReply: 2}


def test_a_url_leads_through_the_proxy(proxy: Proxy, echo: Echo) -> None:
    assert proxy.url(f"redis://127.0.0.1:{echo.port}/0") == f"redis://127.0.0.1:{proxy.port}/0"
    with pytest.raises(InvalidError, match="does not name"):
        proxy.url("redis://127.0.0.1:1/0")


def test_it_is_a_context_manager_in_an_event_loop_too_and_has_no_port_outside(echo: Echo) -> None:
    async def answer() -> bytes:
        async with Proxy(echo.port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"word\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line

    assert asyncio.run(answer()) == b"WORD\n"
    with pytest.raises(InvalidError, match="enter it first"):
        _ = Proxy(echo.port).port
