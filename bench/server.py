"""The server: a read of a document against a route that answers a constant, the store over HTTP, and streams.

Both servers run alike, each in a process of its own, and are asked in turns. `python -m bench.server
--streams 10000` opens streams on several server processes, and reports their memory and the delay of events.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from keepstate_testing.servers import Postgres
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import keepstate
from bench.harness import Table
from keepstate.server import Key, Keys, Limits, create_app
from keepstate.server.keys import rights_of
from keepstate.server.running import RunningServer, bind

DOCUMENT = b'{"key":"plan","value":{"step":1},"version":"AAAAAAAAAAAA","expires_at":null,"size_bytes":12}'
CONNECTIONS = 8
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass
class Served:
    """A server in a process of its own."""

    process: multiprocessing.process.BaseProcess
    port: int
    secret: str

    def cpu_s(self) -> float:
        """Return the seconds of the processor that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Return the memory that the process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def get(self, path: str) -> bytes:
        """Return a request."""
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.secret}\r\n\r\n"
        return head.encode()


def start(run: Callable[..., None], *given: Any) -> Served:
    """Start a server in a process, which tells its port and a secret once it answers."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=run, args=(theirs, *given), daemon=True)
    process.start()
    theirs.close()
    port, secret = ours.recv()
    return Served(process, port, secret)


def run_constant(told: Connection) -> None:
    """Serve a route that answers a constant."""

    async def answer(request: Request) -> Response:
        return Response(DOCUMENT, 200, {}, "application/json")

    async def run() -> None:
        app = Starlette(routes=[Route("/v1/document", answer)])
        config = uvicorn.Config(app, log_level="error", access_log=False, http="h11", lifespan="off")
        with bind("127.0.0.1", 0) as listener:
            told.send((listener.getsockname()[1], "none"))
            await uvicorn.Server(config).serve([listener])

    asyncio.run(run())


def run_keepstate(told: Connection, url: str, name: str) -> None:
    """Serve a store."""

    async def run() -> None:
        async with keepstate.open(url, values="builtin") as ks:
            keys = Keys(ks)
            secret = await keys.add(Key(name, rights_of(["read", "write", "store"])))
            await ks.space("run/1").documents.put("plan", {"step": 1})
            app = create_app(ks, keys=keys, limits=Limits(streams=100_000))
            with bind("127.0.0.1", 0) as listener:
                port = listener.getsockname()[1]
                server = RunningServer(app, drain_s=0, on_start=lambda: told.send((port, secret)))
                await server.serve([listener])

    asyncio.run(run())


class _Caller(asyncio.Protocol):
    """A connection that sends a request again as soon as it is answered."""

    def __init__(self, request: bytes, count: int, done: asyncio.Future[None], times: list[float]) -> None:
        self._request, self._left, self._done, self._times = request, count, done, times
        self._got, self._began_s = b"", 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport: Any = transport
        self._send()

    def _send(self) -> None:
        self._got, self._began_s = b"", time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count a response once it is complete."""
        self._got += data
        head, found, body = self._got.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length: ")[2].split()[0]):
            return
        assert b" 200 " in head[:20], self._got
        self._times.append(time.perf_counter() - self._began_s)
        self._left -= 1
        if self._left:
            self._send()
        else:
            self._transport.close()
            self._done.set_result(None)


async def ask(served: Served, path: str, count: int) -> list[float]:
    """Return the seconds of each of `count` requests on each of some connections at once."""
    loop, times = asyncio.get_running_loop(), list[float]()
    waits: list[asyncio.Future[None]] = []
    for _ in range(CONNECTIONS):
        waits.append(done := loop.create_future())
        request = served.get(path)
        await loop.create_connection(
            lambda done=done, request=request: _Caller(request, count, done, times), "127.0.0.1", served.port
        )
    await asyncio.gather(*waits)
    return times


def server(table: Table) -> None:
    """Add the cost of a read against a constant answer, and calls of the store over HTTP to a round trip."""
    with tempfile.TemporaryDirectory() as folder:
        _reads(table, "memory://", "memory")
        _reads(table, f"sqlite:///{folder}/bench.db", "SQLite")
    asyncio.run(_stores(table))


def _reads(table: Table, url: str, name: str) -> None:
    with ExitStack() as stack:
        both = [start(run_constant), start(run_keepstate, url, "bench")]
        for each in both:
            stack.callback(each.process.terminate)
        shares: list[float] = []
        slowest: list[float] = []
        count = table.scaled(300, least=30)
        for _ in range(table.scaled(9, least=3)):
            used: list[float] = []
            for each in both:
                before_s = each.cpu_s()
                times = sorted(asyncio.run(ask(each, "/v1/document?space=run%2F1&key=plan", count)))
                used.append(each.cpu_s() - before_s)
            slowest.append(times[int(len(times) * 0.99)] * 1e3)
            shares.append(used[1] / max(used[0], 0.01))
    table.limit(f"GET of a document on {name}: times a constant answer", 1 / 0.6, "x", shares)
    table.limit(f"the same: p99 of {CONNECTIONS} connections", 100, "ms", slowest)


async def _stores(table: Table) -> None:
    served = start(run_keepstate, "memory://", "bench")
    try:
        url = f"http://127.0.0.1:{served.port}?key={served.secret}"
        async with keepstate.open(url) as ks, httpx.AsyncClient() as client:
            documents = ks.space("run/1").documents

            async def round_trip() -> None:
                (await client.get(f"http://127.0.0.1:{served.port}/healthz")).raise_for_status()

            count = table.scaled(200, least=20)
            gets: list[float] = []
            puts: list[float] = []
            for _ in range(table.scaled(9, least=3)):
                bare = await _each_s(round_trip, count)
                get = await _each_s(lambda: documents.get("plan"), count)
                put = await _each_s(lambda: documents.put("plan", {"step": 2}), count)
                gets.append(get / bare)
                puts.append(put / get)
        table.limit("store over HTTP: get, times a round trip of its client", 1.6, "x", gets)
        table.limit("store over HTTP: put, times a get", 2, "x", puts)
    finally:
        served.process.terminate()


async def _each_s(call: Callable[[], Awaitable[object]], count: int) -> float:
    """Return the median seconds of a call."""
    times: list[float] = []
    for _ in range(count):
        began_s = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


# ---- open streams


class _Reader(asyncio.Protocol):
    """A stream that is open, and takes note of when an event came."""

    def __init__(self, request: bytes, delays: list[float]) -> None:
        self._request, self._delays = request, delays
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        self.transport: Any = transport
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take note of the delay of each event, whose data is the time at which it was appended."""
        now_ns = time.monotonic_ns()
        self.is_open = self.is_open or b"retry: " in data
        for part in data.split(b'"data":')[1:]:
            digits = part.partition(b",")[0].strip(b'"')
            if digits.isdigit():
                self._delays.append((now_ns - int(digits)) / 1e6)


async def open_streams(number: int, spaces: int, processes: int, events: int) -> None:
    """Print the memory of each stream, and the delay of events on some of the spaces."""
    with Postgres() as postgres:
        servers = [start(run_keepstate, postgres.url, f"bench-{n}") for n in range(processes)]
        try:
            await asyncio.sleep(1)
            before = [each.memory_bytes() for each in servers]
            delays: list[float] = []
            readers = await _open_readers(servers, number, spaces, delays)
            grown = [each.memory_bytes() - was for each, was in zip(servers, before, strict=True)]
            print(f"{number:,} streams of {spaces:,} spaces on {processes} processes: "
                  f"{sum(grown) / number / 1024:.1f} KiB each")  # fmt: skip
            await _append_events(postgres.url, number, spaces, events, delays)
            expected = sum(len(range(n % spaces, number, spaces)) for n in range(events))
            print(f"{len(delays):,} of {expected:,} events came; median {statistics.median(delays):.1f} ms, "
                  f"p99 {sorted(delays)[int(len(delays) * 0.99)]:.1f} ms")  # fmt: skip
            for reader in readers:
                reader.transport.abort()
        finally:
            for each in servers:
                each.process.terminate()


async def _open_readers(
    servers: Sequence[Served], number: int, spaces: int, delays: list[float]
) -> list[_Reader]:
    """Open streams, and return their readers when each has begun."""
    readers: list[_Reader] = []
    loop = asyncio.get_running_loop()
    for n in range(number):
        served = servers[n % len(servers)]
        reader = _Reader(served.get(f"/v1/events/follow?space=talk%2F{n % spaces}"), delays)
        host = f"127.0.0.{1 + n // 20_000}"  # one address has too few ports for all
        await loop.create_connection(lambda reader=reader: reader, host, served.port)
        readers.append(reader)
        if n % 200 == 199:
            await asyncio.sleep(0.05)
    async with asyncio.timeout(300):
        while not all(reader.is_open for reader in readers):
            await asyncio.sleep(0.2)
    return readers


async def _append_events(url: str, number: int, spaces: int, events: int, delays: list[float]) -> None:
    """Append events, and wait until their delays are known."""
    async with keepstate.open(url) as ks:
        # Until each stream has told an event, it may still be reading the past.
        for n in range(spaces):
            await ks.space(f"talk/{n}").events.append("0")
        async with asyncio.timeout(300):
            while len(delays) < number:
                await asyncio.sleep(0.2)
        delays.clear()
        for n in range(events):
            await ks.space(f"talk/{n % spaces}").events.append(str(time.monotonic_ns()))
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)


def main() -> None:
    """Open streams, as many as the options say."""
    parser = argparse.ArgumentParser(description="Opens streams on several servers of one PostgreSQL.")
    parser.add_argument("--streams", type=int, default=10_000, help="number of streams")
    parser.add_argument("--spaces", type=int, default=1_000, help="number of spaces that they follow")
    parser.add_argument("--processes", type=int, default=4, help="number of server processes")
    parser.add_argument("--events", type=int, default=100, help="number of events to append")
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(open_streams(given.streams, given.spaces, given.processes, given.events))


if __name__ == "__main__":
    main()
