"""One server and the connections to it: a bounded pool, the one used last first."""

from __future__ import annotations

import threading
from collections import deque

from keepstate._clock import Clock
from keepstate._runner import Promise, Runner
from keepstate.stores.redis.wire import Access, Address, Reply, Wire, open_wire

_LOOK_AFTER_S = 1.0
"""How long a connection may have been idle before it is looked at: servers and proxies close what is."""


class _Request:
    __slots__ = ("is_served", "promise", "wire")

    def __init__(self, promise: Promise[None]) -> None:
        self.promise = promise
        self.wire: Wire | None = None
        self.is_served = False


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
        self._room = max_connections
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    async def exchange(self, packet: bytes, count: int) -> list[Reply]:
        """Sends packed commands over a free connection and returns the replies, one for each.

        Raises:
            StoreUnavailableError: The server was not reached; nothing was sent.
            OutcomeUnknownError: It did not answer; whether it ran the commands is not known.
        """
        wire = await self._take()
        try:
            replies = await wire.exchange(packet, count)
        except BaseException:
            self._give(None)
            await self._discard(wire)
            raise
        self._give(wire)
        if self._is_closed:
            await self._close_idle()
        return replies

    async def close(self) -> None:
        """Closes the idle connections now, and one in use when its answer has come."""
        self._is_closed = True
        await self._close_idle()

    async def _close_idle(self) -> None:
        for wire in self._take_idle():
            await wire.close()

    def _take_idle(self) -> list[Wire]:
        with self._lock:
            idle, self._idle = self._idle, []
            self._room += len(idle)
        return [wire for wire, _ in idle]

    async def _discard(self, wire: Wire) -> None:
        """Closes a connection that failed, and the idle ones, which most likely fail as well."""
        await wire.drop()
        for idle in self._take_idle():
            await idle.drop()

    async def _take(self) -> Wire:
        wire = await self._take_any()
        try:
            if wire is not None:
                return wire
            wire = open_wire(self._runner.colour, self.address, self._access)
            await wire.connect()
        except BaseException:
            self._give(None)
            if wire is not None:
                await wire.drop()
            raise
        return wire

    async def _take_any(self) -> Wire | None:
        """Returns an idle connection, or None with the room for a new one."""
        while True:
            with self._lock:
                if self._idle:
                    wire, since_s = self._idle.pop()
                    request = None
                elif self._room > 0:
                    self._room -= 1
                    return None
                else:
                    wire, since_s = None, 0.0
                    request = _Request(self._runner.promise())
                    self._waiting.append(request)
            if request is not None:
                return await self._wait_for(request)
            assert wire is not None
            if self._clock.monotonic_s() - since_s < _LOOK_AFTER_S or not await wire.is_stale():
                return wire
            self._give(None)
            await wire.drop()

    async def _wait_for(self, request: _Request) -> Wire | None:
        try:
            await request.promise.wait()
        except BaseException:
            with self._lock:
                if not request.is_served:
                    self._waiting.remove(request)
            if request.is_served:
                self._give(request.wire)
            raise
        return request.wire

    def _give(self, wire: Wire | None) -> None:
        """Gives a connection back, or the room for one, to who waits for it first."""
        with self._lock:
            if not self._waiting:
                if wire is None:
                    self._room += 1
                else:
                    self._idle.append((wire, self._clock.monotonic_s()))
                return
            request = self._waiting.popleft()
            request.wire, request.is_served = wire, True
        request.promise.give(None)
