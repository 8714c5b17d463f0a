"""The connections that a store's calls share: opened when needed, last used first, bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable

from keepstate._clock import Clock
from keepstate._runner import Promise, Runner
from keepstate.stores.postgres.connection import Connection

_TRUSTED_S = 0.05
"""How long after an answer a connection is held for alive; to ask its socket each time makes reads slower."""


class Pool:
    """Up to `size` connections; a call that finds none free waits for one."""

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], *, size: int, runner: Runner, clock: Clock
    ) -> None:
        self._connect, self._size, self._runner, self._clock = connect, size, runner, clock
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._waiting: deque[Promise[None]] = deque()
        self._count = 0
        self._is_closed = False

    @property
    def count(self) -> int:
        """Returns how many connections there are."""
        return self._count

    async def take(self) -> Connection:
        """Returns a connection that has not been hung up, a new one if need be; `give_back` it."""
        while True:
            with self._lock:
                while self._idle:
                    connection = self._idle.pop()
                    if self._clock.monotonic_s() - connection.used_s < _TRUSTED_S or connection.is_alive():
                        return connection
                    self._count -= 1  # the server was restarted, or a pooler let go
                if self._count < self._size:
                    self._count += 1
                    break
                turn: Promise[None] = self._runner.promise()
                self._waiting.append(turn)
            await self._wait(turn)
        try:
            return await self._connect()
        except BaseException:
            with self._lock:
                self._count -= 1
                self._call_next()
            raise

    async def _wait(self, turn: Promise[None]) -> None:
        try:
            await turn.wait()
        except BaseException:
            with self._lock:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:
                    self._call_next()  # it was this one's turn: it is the next one's now
            raise

    def _call_next(self) -> None:
        if self._waiting:
            self._waiting.popleft().give(None)

    def give_back(self, connection: Connection) -> None:
        """Takes a connection back, and forgets it if it was closed."""
        with self._lock:
            if self._is_closed:
                connection.close()
            if connection.is_closed:
                self._count -= 1
            else:
                connection.used_s = self._clock.monotonic_s()
                self._idle.append(connection)
            self._call_next()

    def forget(self) -> None:
        """Hangs up what nobody uses now; calls then connect anew."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()
                self._count -= 1

    def close(self) -> None:
        """Hangs up: at once where nobody speaks, else when the conversation is over."""
        self._is_closed = True
        self.forget()
