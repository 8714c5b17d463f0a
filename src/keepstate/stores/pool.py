"""The bounded pool of connections to one server: opened on demand, the one used last first.

A connection holds its slot in the pool. If an interrupt drops a connection anywhere, it is closed as garbage,
and its slot is free: the pool counts the slots that exist, not how many connections were taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from keepstate._clock import Clock
from keepstate._runner import Runner, Signal

_LOOK_AGAIN_S: Final = 1.0
"""Interval in which a waiter checks the pool itself, because its notifier may have been interrupted."""


class Slot:
    """The right to one connection, held for as long as the object lives."""

    __slots__ = ("__weakref__",)


class Pooled(Protocol):
    """A connection that a pool can hold.

    Attributes:
        slot: Its slot, set by the pool.
        used_s: When it was given back last, on the monotonic clock.
    """

    slot: Slot | None
    used_s: float

    async def is_alive(self) -> bool:
        """Return whether an idle connection is still open, with nothing left to read."""
        ...

    async def drop(self) -> None:
        """Close the connection without waiting, also while the caller is being cancelled."""
        ...


C = TypeVar("C", bound=Pooled)


class _Request(Generic[C]):
    """A caller that waits for a connection, or for the slot of a new one."""

    __slots__ = ("connection", "signal")

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.connection: C | None = None


class Pool(Generic[C]):
    """Up to `size` connections; a call that finds none free waits for its turn.

    Args:
        connect: Opens a connection.
        size: Number of connections.
        trusted_s: Seconds after its last use in which a connection is assumed to be alive.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[C]],
        *,
        size: int,
        trusted_s: float,
        runner: Runner,
        clock: Clock,
    ) -> None:
        self._connect, self._size, self._trusted_s = connect, size, trusted_s
        self._runner, self._clock = runner, clock
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._waiting: deque[_Request[C]] = deque()
        self._slots = WeakSet[Slot]()
        self.breaks = 0
        """Number of connections that could not be opened, failed, or were found closed."""

    @property
    def count(self) -> int:
        """Return the number of connections."""
        return len(self._slots)

    def take_free(self) -> C | None:
        """Return a connection that was used just now, or None; return it with `give_back` or `discard`."""
        with self._lock:
            if self._idle and self._clock.monotonic_s() - self._idle[-1].used_s < self._trusted_s:
                return self._idle.pop()
        return None

    async def take(self) -> C:
        """Return an open connection, a new one if necessary; return it with `give_back` or `discard`."""
        while True:
            found = self._find()
            if isinstance(found, Slot):
                return await self._open(found)
            if isinstance(found, _Request):
                connection = await self._wait_for(found)
                if connection is not None:
                    return connection
            elif self._clock.monotonic_s() - found.used_s < self._trusted_s or await found.is_alive():
                return found
            else:  # the server was restarted, or a proxy closed it
                self.discard(found)
                await found.drop()

    def _find(self) -> C | Slot | _Request[C]:
        """Return a connection, or the slot for a new one, or a request to wait for."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if len(self._slots) < self._size:
                slot = Slot()
                self._slots.add(slot)
                return slot
            request = _Request[C](self._runner.signal())
            self._waiting.append(request)
            return request

    async def _open(self, slot: Slot) -> C:
        try:
            connection = await self._connect()
            connection.slot = slot
        except BaseException:
            self._free(slot)
            raise
        return connection

    async def _wait_for(self, request: _Request[C]) -> C | None:
        """Return the connection that was handed over, or None if it is worth looking again."""
        try:
            await request.signal.wait(_LOOK_AGAIN_S)
        except BaseException:
            if not self._withdraw(request):
                self._pass_on(request.connection)
            raise
        self._withdraw(request)
        return request.connection

    def _withdraw(self, request: _Request[C]) -> bool:
        """Stop waiting, and return whether that was before the request was called."""
        with self._lock:
            if request not in self._waiting:
                return False
            self._waiting.remove(request)
            return True

    def _pass_on(self, connection: C | None) -> None:
        if connection is not None:
            self.give_back(connection)
        else:
            self._free(None)

    def give_back(self, connection: C) -> None:
        """Take a connection back whose replies were all read, and hand it to the first waiter if any."""
        with self._lock:
            connection.used_s = self._clock.monotonic_s()
            request = self._call_next(connection)
            if request is None:
                self._idle.append(connection)
                return
        request.signal.set()

    def discard(self, connection: C) -> None:
        """Remove a connection that failed or was interrupted, and let the first waiter open another one."""
        self._free(connection.slot)

    def _free(self, slot: Slot | None) -> None:
        with self._lock:
            if slot is not None:
                self._slots.discard(slot)
                self.breaks += 1
            request = self._call_next(None)
        if request is not None:
            request.signal.set()

    def _call_next(self, connection: C | None) -> _Request[C] | None:
        """Return the first waiter, with a connection or with the room for one. The caller holds `_lock`."""
        if not self._waiting:
            return None
        request = self._waiting.popleft()
        request.connection = connection
        return request

    def take_idle(self) -> list[C]:
        """Remove the idle connections, which the caller closes; later calls connect again."""
        with self._lock:
            idle, self._idle = self._idle, []
            for connection in idle:
                if connection.slot is not None:
                    self._slots.discard(connection.slot)
        return idle
