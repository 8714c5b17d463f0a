"""The connections that a store's calls share: opened when needed, last used first, bounded.

A connection takes its place in the pool with it: one that an interrupt drops, in whatever place, hangs up as
garbage, and its place is free.
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
"""How long after an answer a connection is held for alive; to ask its socket each time makes reads slower."""

_LOOK_AGAIN_S = 1.0
"""How often who waits for a connection looks by itself: who should have called may have been interrupted."""


class _Place:
    """The right to one connection, for as long as anything holds it."""

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
        """Return how many connections there are."""
        return len(self._places)

    def take_free(self) -> Connection | None:
        """Return a connection that is free and not hung up, if there is one; `give_back` it."""
        with self._lock:
            return self._pop_free()

    def _pop_free(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if self._clock.monotonic_s() - connection.used_s < _TRUSTED_S or connection.is_alive():
                return connection
            self._free(connection)  # the server was restarted, or a pooler let go
        return None

    async def take(self) -> Connection:
        """Return a connection that has not been hung up, a new one if need be; `give_back` it."""
        while True:
            found = self._free_or_turn()
            if isinstance(found, Connection):
                return found
            if isinstance(found, _Place):
                return await self._opened(found)
            await self._wait(found)

    def _free_or_turn(self) -> Connection | _Place | Signal:
        """Return a connection, or the place for a new one, or what tells that there is one."""
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
                    self._call_next()  # it was this one's turn: it is the next one's now
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
        """Take a connection back, and forget one that was closed, or interrupted in a conversation."""
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
        """Hang up what nobody uses now; calls then connect anew."""
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                self._free(connection)
                connection.close()

    def close(self) -> None:
        """Hang up: at once where nobody speaks, else when the conversation is over."""
        self._is_closed = True
        self.forget()
