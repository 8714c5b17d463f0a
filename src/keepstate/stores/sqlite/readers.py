"""The reading connections of a process, and the connections that poll for commits.

A reading connection serves one thread at a time. Reading SQLite's counter of other connections' commits takes
2 us. A read of one entry takes 8 us, and its way to a thread and back 120 us. So an event loop reads by
itself, as long as such reads do not make it wait.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from time import sleep  # noqa: TID251  a pause reads no clock
from typing import Final, TypeAlias, TypeVar
from weakref import WeakSet

import apsw

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.stores.sqlite import failures
from keepstate.stores.sqlite.connection import Execute, execute_on
from keepstate.stores.sqlite.queries import revision_of

T = TypeVar("T")

_Reader: TypeAlias = tuple[apsw.Connection, Execute]

_KEPT: Final = 8
"""Number of idle connections that are kept open; more are closed after use."""
_LOOK_S: Final = 0.001
_SHORT_S: Final = 0.001
"""A wait that is no longer costs an event loop nothing that counts."""
_SAVED_S: Final = 0.1
_SHARE: Final = 0.05
_OF_THREAD: Final[int | None] = getattr(resource, "RUSAGE_THREAD", None)


class LoopBudget:
    """Seconds for which an event loop may wait in reads that it does by itself: a bucket that refills slowly.

    A read of entries in SQLite's cache, or in that of the system, takes microseconds and waits for no writer.
    A slow disk makes it wait: then threads read, and the loop loses at most 5 % of its time. Time that other
    processes had the processor is not counted, where the system tells it apart.
    """

    __slots__ = ("_began_s", "_clock", "_filled_s", "_left_s", "_waits")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock, self._left_s = clock, _SAVED_S
        self._filled_s = self._began_s = 0.0
        self._waits = 0

    def begin(self) -> bool:
        """Return whether the loop may read now, and take note of when it began."""
        self._began_s, self._waits = self._clock.monotonic_s(), _waits_of_thread()
        if self._left_s <= 0:
            self._refill()
        return self._left_s > 0

    def end(self) -> None:
        """Count the read that has begun."""
        took_s = self._clock.monotonic_s() - self._began_s
        if took_s > _SHORT_S and (_OF_THREAD is None or _waits_of_thread() > self._waits):
            self._refill()
            self._left_s -= took_s

    def _refill(self) -> None:
        self._left_s = min(_SAVED_S, self._left_s + (self._began_s - self._filled_s) * _SHARE)
        self._filled_s = self._began_s


def _waits_of_thread() -> int:
    """Return how often this thread has given up the processor by itself, to wait for something."""
    return 0 if _OF_THREAD is None else resource.getrusage(_OF_THREAD).ru_nvcsw


class Readers:
    """A pool of connections; each read takes one, or opens another.

    Args:
        connect: Opens a connection.
        wait_s: Seconds for which a read waits for a lock.
    """

    def __init__(self, connect: Callable[[], apsw.Connection], wait_s: float) -> None:
        self._connect, self._wait_ms = connect, int(wait_s * 1000)
        self._changing = threading.Lock()
        self._idle: list[_Reader] = []
        self._made = WeakSet[
            apsw.Connection
        ]()  # weak, so that a connection dropped by an interrupt is not counted
        self._is_closed = False

    def read(self, work: Callable[[Execute], T]) -> T:
        """Run `work` on one snapshot, and return its result."""
        try:
            reader = self._idle.pop()
        except IndexError:
            reader = self._another()
        return self._read_on(reader, work, self._wait_ms)

    def try_read(self, work: Callable[[Execute], T]) -> T | None:
        """Run `work` as `read` does; None if it would have to open a connection, or to wait for a lock."""
        try:
            reader = self._idle.pop()
        except IndexError:
            return None
        try:
            return self._read_on(reader, work, 0)
        except apsw.BusyError:
            return None

    def _read_on(self, reader: _Reader, work: Callable[[Execute], T], wait_ms: int) -> T:
        connection, execute = reader
        connection.set_busy_timeout(wait_ms)
        try:
            execute("BEGIN")
            answer = work(execute)
            execute("COMMIT")
        except BaseException:
            with self._changing:
                connection.close(True)  # rolls the transaction back, whatever its state
                self._made.discard(connection)
            raise
        self._idle.append(reader)
        if len(self._idle) > _KEPT or self._is_closed:
            self._shrink()
        return answer

    def _another(self) -> _Reader:
        with self._changing:
            connection = self._connect()
            self._made.add(connection)
        return connection, execute_on(connection)

    def _shrink(self) -> None:
        with self._changing:
            while self._idle and (len(self._idle) > _KEPT or self._is_closed):
                connection, _ = self._idle.pop()
                connection.close()
                self._made.discard(connection)

    def close(self) -> None:
        """Close idle connections now, and the others after their reads."""
        self._is_closed = True
        self._shrink()

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Take all connections until `resume`, and return whether none is in use."""
        self._changing.acquire()
        deadline_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
        self._held: list[_Reader] = []
        while len(self._held) < len(self._made):
            try:
                self._held.append(self._idle.pop())
            except IndexError:
                if SYSTEM_CLOCK.monotonic_s() > deadline_s:
                    return False
                sleep(_LOOK_S)
        return True

    def resume(self) -> None:
        """Undo `pause`."""
        self._idle += self._held
        self._held = []
        self._changing.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Return, in a forked child, the idle connections."""
        self._is_closed = True
        return [connection for connection, _ in self._held]


class Poller:
    """A connection that compares the present state with that of its last poll."""

    def __init__(self, connection: apsw.Connection, path: str) -> None:
        self._connection, self._path = connection, path
        self._execute = execute_on(connection)
        self._lock = threading.Lock()
        self._version = -1
        self._revisions: dict[str, int] = {}

    def has_moved(self) -> bool:
        """Return whether any connection committed since the last call; True the first time."""
        with self._looking():
            version: int = self._execute("PRAGMA data_version").get
            moved, self._version = version != self._version, version
        return moved

    def changed(self, spaces: Collection[str]) -> list[str]:
        """Return the spaces with a new revision since the last call, and those not passed then."""
        with self._looking():
            self._execute("BEGIN")
            now = {space: revision_of(self._execute, space) for space in spaces}
            self._execute("COMMIT")
            before, self._revisions = self._revisions, now
        return [space for space, revision in now.items() if before.get(space) != revision]

    @contextmanager
    def _looking(self) -> Generator[None]:
        with self._lock:
            try:
                yield
            except apsw.Error as error:
                if self._connection.in_transaction:
                    self._execute("ROLLBACK")
                raise failures.storage_error(error, self._path) from error

    def close(self) -> None:
        """Close the connection after the poll under way."""
        with self._lock:
            self._connection.close()

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Block polls until `resume`, and return whether none is under way."""
        self._is_held = self._lock.acquire(timeout=timeout_s)
        return self._is_held

    def resume(self) -> None:
        """Undo `pause`."""
        if self._is_held:
            self._lock.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Return the connection, in a forked child."""
        return [self._connection]
