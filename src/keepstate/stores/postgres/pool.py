"""The bounded pool of connections that a store's calls share: opened on demand, last used first.

A connection holds its slot in the pool. If an interrupt drops a connection, it is closed as garbage, and its
slot is free.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from weakref import WeakSet

from keepstate._clock import Clock
from keepstate._runner import Runner, Signal
from keepstate.stores.postgres.connection import Connection

_TRUSTED_S = 0.05
"""Seconds after an answer in which a connection is assumed alive; checking its socket slows reads."""

_LOOK_AGAIN_S = 1.0
"""Interval in which a waiter checks the pool itself, because its notifier may have been interrupted."""


class _Place:
    """The right to one connection, held for as long as the object lives."""

    __slots__ = ("__weakref__",)


class Pool:
    """Up to `size` connections; a call that finds none free waits for one."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], *, size: int, runner: Runner, clock: Clock
    ) -> None:
        self._connect, self._size, self._runner, self._clock = connect, size, runner, clock
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._waiting: deque[Signal] = deque()
        self._places = WeakSet[_Place]()
        self._is_closed = False

    @property
    def count(self) -> int:
        """Return the number of connections."""
        return len(self._places)

    def take_free(self) -> Connection | None:
        """Return a free, open connection, or None; return it with `give_back`."""
        with self._lock:
            return self._pop_free()

    def _pop_free(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if self._clock.monotonic_s() - connection.used_s < _TRUSTED_S or connection.is_alive():
                return connection
            self._free(connection)  # the server was restarted, or a pooler closed it
        return None

    async def take(self) -> Connection:
        """Return an open connection, a new one if necessary; return it with `give_back`."""
        while True:
            found = self._free_or_turn()
            if isinstance(found, Connection):
                return found
            if isinstance(found, _Place):
                return await self._opened(found)
            await self._wait(found)

    def _free_or_turn(self) -> Connection | _Place | Signal:
        """Return a connection, or the slot for a new one, or a signal to wait for."""
        with self._lock:
            if (connection := self._pop_free()) is not None:
                return connection
            if len(self._places) < self._size:
                place = _Place()
                self._places.add(place)
                return place
            turn = self._runner.signal()
            self._waiting.append(turn)
            return turn

    async def _opened(self, place: _Place) -> Connection:
        try:
            connection = await self._connect()
            connection.place = place
        except BaseException:
            with self._lock:
                self._places.discard(place)
                self._call_next()
            raise
        return connection

    async def _wait(self, turn: Signal) -> None:
        try:
            await turn.wait(_LOOK_AGAIN_S)
        except BaseException:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._call_next()  # this waiter had been notified, so the next one is notified instead
            raise
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _call_next(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()

    def _free(self, connection: Connection) -> None:
        if isinstance(connection.place, _Place):
            self._places.discard(connection.place)

    def give_back(self, connection: Connection) -> None:
        """Take a connection back, and drop one that is closed or was interrupted during a call."""
        with self._lock:
            if self._is_closed or connection.is_amid:
                connection.close()
            if connection.is_closed:
                self._free(connection)
            else:
                connection.used_s = self._clock.monotonic_s()
                self._idle.append(connection)
            self._call_next()

    def forget(self) -> None:
        """Close unused connections; later calls connect again."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                self._free(connection)
                connection.close()

    def close(self) -> None:
        """Close idle connections now, and the others after their calls."""
        self._is_closed = True
        self.forget()
