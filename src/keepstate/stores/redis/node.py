"""One server and the connections to it: a bounded pool, the one used last first.

A connection is given back only when all its replies were read. One that is dropped instead, by an interrupt
in whatever place, is closed as garbage, and takes up room no longer: those that there are, are counted, and
not how many were taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable
from weakref import WeakSet

from keepstate._clock import Clock
from keepstate._runner import Runner, Signal
from keepstate.errors import StorageError
from keepstate.stores.redis.wire import Access, Address, Reply, Wire, open_wire

_LOOK_AFTER_S = 1.0
"""How long a connection may have been idle before it is looked at: servers and proxies close what is."""

_LOOK_AGAIN_S = 1.0
"""How often who waits for a connection looks by itself: who should have called may have been interrupted."""


class _Request:
    __slots__ = ("is_called", "signal", "wire")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.wire: Wire | None = None
        self.is_called = False


class Node:
    """A server, spoken to over at most `max_connections` connections, each opened on first use."""

    def __init__(
        self, address: Address, access: Access, *, runner: Runner, clock: Clock, max_connections: int
    ) -> None:
        self.address = address
        self._access, self._runner, self._clock = access, runner, clock
        self._lock = threading.Lock()
        self._idle: list[tuple[Wire, float]] = []
        self._waiting: deque[_Request] = deque()
        self._wires = WeakSet[Wire]()
        self._max_connections = max_connections
        self._is_closed = False
        self.breaks = 0
        """How often a connection was given up: the server may have restarted, and forgotten things, since."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands over a free connection and return the replies, one for each.

        In between it awaits `sent`.

        Raises:
            StoreUnavailableError: The server was not reached; nothing was sent.
            OutcomeUnknownError: It did not answer; whether it ran the commands is not known.
        """
        wire = await self._take()
        try:
            replies = await wire.exchange(packet, count, sent=sent)
        except StorageError:
            await self._discard(wire)
            for idle in self._take_idle():  # which most likely fail as well
                await idle.drop()
            raise
        except BaseException:
            await self._discard(wire)
            raise
        self._give(wire)
        if self._is_closed:
            await self._close_idle()
        return replies

    async def close(self) -> None:
        """Close the idle connections now, and one in use when its answer has come."""
        self._is_closed = True
        await self._close_idle()

    async def _close_idle(self) -> None:
        for wire in self._take_idle():
            await wire.close()

    def _take_idle(self) -> list[Wire]:
        with self._lock:
            idle, self._idle = self._idle, []
            for wire, _ in idle:
                self._wires.discard(wire)
        return [wire for wire, _ in idle]

    async def _discard(self, wire: Wire) -> None:
        """Close a connection that failed or was interrupted, and let who waits first open another."""
        with self._lock:
            self.breaks += 1
            self._wires.discard(wire)
            request = self._next_called(None)
        if request is not None:
            request.signal.set()
        await wire.drop()

    async def _take(self) -> Wire:
        while True:
            request: _Request | None = None
            with self._lock:
                if self._idle:
                    wire, since_s = self._idle.pop()
                elif len(self._wires) < self._max_connections:
                    wire, since_s = open_wire(self._runner.mode, self.address, self._access), None
                    self._wires.add(wire)
                else:
                    wire, since_s = None, None
                    request = _Request(self._runner.signal())
                    self._waiting.append(request)
            if request is not None:
                wire = await self._wait_for(request)
                if wire is None:
                    continue
                return wire
            assert wire is not None
            if since_s is None:
                return await self._connected(wire)
            if self._clock.monotonic_s() - since_s < _LOOK_AFTER_S or not await wire.is_stale():
                return wire
            await self._discard(wire)

    async def _connected(self, wire: Wire) -> Wire:
        try:
            await wire.connect()
        except BaseException:
            await self._discard(wire)
            raise
        return wire

    async def _wait_for(self, request: _Request) -> Wire | None:
        """Return the connection that was handed over, or None where to look again is worth it."""
        try:
            await request.signal.wait(_LOOK_AGAIN_S)
        except BaseException:
            if not self._withdraw(request):
                self._pass_on(request.wire)
            raise
        self._withdraw(request)
        return request.wire

    def _withdraw(self, request: _Request) -> bool:
        """Wait no longer, and return whether that was before it was called."""
        with self._lock:
            if request.is_called:
                return False
            self._waiting.remove(request)
            return True

    def _pass_on(self, wire: Wire | None) -> None:
        if wire is not None:
            self._give(wire)
            return
        with self._lock:
            request = self._next_called(None)
        if request is not None:
            request.signal.set()

    def _give(self, wire: Wire) -> None:
        """Give a connection back, or to who waits for it first."""
        with self._lock:
            request = self._next_called(wire)
            if request is None:
                self._idle.append((wire, self._clock.monotonic_s()))
                return
        request.signal.set()

    def _next_called(self, wire: Wire | None) -> _Request | None:
        """Return who waits first, with a connection or with the room for one; `_lock` is held."""
        if not self._waiting:
            return None
        request = self._waiting.popleft()
        request.wire, request.is_called = wire, True
        return request
