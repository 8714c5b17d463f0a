"""The SQLite files that this process has open: each one once, for all its async and blocking handles.

POSIX locks belong to a process, and so does SQLite's record of them, so a file is opened once, whatever its
name. The first handle opens it, and the last one closes it. A fork waits until no call is under way. The
child then closes its copies of the connections, which does not affect the parent, and opens the file again if
it needs it. It must not use, close or forget the parent's connections while one of them is in use.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

import apsw

from keepstate._clock import Clock
from keepstate.errors import ClosedError, InvalidError, UnsupportedError
from keepstate.stores.hints import Handles
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite import failures
from keepstate.stores.sqlite.connection import Execute, connect
from keepstate.stores.sqlite.files import Identity, identity
from keepstate.stores.sqlite.flush import Flush
from keepstate.stores.sqlite.readers import Poller, Readers
from keepstate.stores.sqlite.writer import Writer

T = TypeVar("T")
R = TypeVar("R")

_OPTIONS: Final = {Durability.POWER: "full", Durability.PROCESS: "normal"}
"""The value of the option `durability` for each."""
FORK_WAIT_S = 5.0
"""Seconds for which a fork waits for threads that use a database."""
_lock = threading.Lock()
_busy_at_fork: set[Identity] = set()
_has_fork_hooks = False


class Database:
    """The writer, readers and listeners of one file, which the constructor opens.

    Args:
        path: Absolute, without symbolic links.
        durability: The failures that an acknowledged write survives.
        wait_s: Seconds to wait for other processes' locks.
    """

    def __init__(self, path: str, durability: Durability, wait_s: float) -> None:
        self.path, self.durability, self._wait_s = path, durability, wait_s
        self.users = 0
        self.handles = Handles()
        self._joining = threading.Lock()
        self._is_closed = False
        try:
            self._writer = Writer(path, durability, wait_s)
        except apsw.Error as error:
            raise failures.storage_error(error, path) from error
        self.latest_ms, self.second_clock = self._writer.latest_ms, self._writer.second_clock
        self._files = self._writer.files
        self._readers = Readers(self._reader, wait_s)
        self._pollers: list[Poller] = []

    def _reader(self) -> apsw.Connection:
        return connect(self.path, self.durability, self._wait_s, only_reads=True)

    @property
    def identity(self) -> Identity | None:
        """Return the identity of the file, which is independent of its name."""
        return self._files.identity

    def write(self, work: Callable[[Flush], T], clock: Clock) -> T:
        """Run `work`, and return its result after the commit; raises the errors of `Writer.write`."""
        return self._writer.write(work, clock)

    def scrub(self) -> bool:
        """Rewrite the file without deleted data, and return whether the log could be emptied too."""
        return self._writer.scrub()

    def read(self, work: Callable[[Execute], T]) -> T:
        """Run `work` on one snapshot, and return its result.

        Raises:
            CorruptError: The file is damaged, or was replaced while it was open.
        """
        return self._read_by(self._readers.read, work)

    def try_read(self, work: Callable[[Execute], T]) -> T | None:
        """Run `work` as `read` does; None if it would have to open a connection, or to wait for a lock."""
        return self._read_by(self._readers.try_read, work)

    def _read_by(self, read: Callable[[Callable[[Execute], T]], R], work: Callable[[Execute], T]) -> R:
        if self._is_closed:
            raise ClosedError(f"{self.path} is closed. Open the store again.")
        if self._files.moved is not None:
            self._files.require_unchanged()
        try:
            return read(work)
        except apsw.Error as error:
            raise failures.storage_error(error, self.path) from error

    def poller(self) -> Poller:
        """Return a new poller; the caller closes it with `close_poller`."""
        with self._joining:
            try:
                poller = Poller(self._reader(), self.path)
            except apsw.Error as error:
                raise failures.storage_error(error, self.path) from error
            self._pollers.append(poller)
            return poller

    def close_poller(self, poller: Poller) -> None:
        """Close a poller."""
        with self._joining:
            self._pollers.remove(poller)
            poller.close()

    def close(self, *, moves_log: bool = True) -> None:
        """Close the file, after moving its write-ahead log into it unless another process reads it."""
        self._is_closed = True
        self._readers.close()
        self._writer.close(moves_log=moves_log)

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Block all calls until `resume`, and return whether none is under way."""
        self._joining.acquire()
        held = [part.pause(timeout_s) for part in self._parts()]
        return all(held)

    def resume(self) -> None:
        """Undo `pause`."""
        for part in self._parts():
            part.resume()
        self._joining.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Release, in a forked child, the parent's resources; return the connections."""
        self._is_closed = True
        return [connection for part in self._parts() for connection in part.leave_to_parent()]

    def _parts(self) -> list[Writer | Readers | Poller]:
        return [self._writer, self._readers, *self._pollers]


_open: dict[Identity, Database] = {}
_forgotten: deque[Database] = deque()
_held_for_fork: list[tuple[Database, bool]] = []


def acquire(path: str, durability: Durability, wait_s: float) -> Database:
    """Return the database at an absolute path, opening it if necessary; the caller releases it.

    Raises:
        InvalidError: The database is open with another durability.
        UnsupportedError: The process was forked while its parent used the file.
    """
    path = os.path.realpath(path)
    with _lock:
        _register_fork_hooks()
        _close_forgotten()
        file = identity(path)
        if file in _busy_at_fork:
            raise UnsupportedError(
                f"{path} was in use when this process was forked, so SQLite cannot open it here. "
                "Start processes with spawn, or fork before opening the store."
            )
        database = None if file is None else _open.get(file)
        if database is None:
            database = Database(path, durability, wait_s)
            assert database.identity is not None
            _open[database.identity] = database
        elif database.durability is not durability:
            raise InvalidError(
                f"{path} is open in this process with durability={_OPTIONS[database.durability]}. A file "
                "has one writer. Pass the same durability= to all handles."
            )
        database.users += 1
        return database


def release(database: Database) -> None:
    """Release a database; the last release closes it."""
    with _lock:
        if _is_last(database):
            database.close()


def forget(database: Database) -> None:
    """Release a database whose handle was garbage-collected, which may happen inside any call.

    So this function never waits: neither for a lock, which this thread may hold, nor for moving the log,
    which the next process that opens the file does. If the registry is locked, the next `acquire` or
    `release` closes the database.
    """
    _forgotten.append(database)
    if _lock.acquire(blocking=False):
        try:
            _close_forgotten()
        finally:
            _lock.release()


def _close_forgotten() -> None:
    while _forgotten:
        database = _forgotten.popleft()
        if _is_last(database):
            database.close(moves_log=False)


def _is_last(database: Database) -> bool:
    """Count one handle less, and return whether it was the last."""
    file = database.identity
    if file is None or _open.get(file) is not database:  # a forked child dropped its parent's
        return False
    database.users -= 1
    if database.users == 0:
        del _open[file]
    return database.users == 0


def _register_fork_hooks() -> None:
    global _has_fork_hooks
    if not _has_fork_hooks and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
        _has_fork_hooks = True


def _before_fork() -> None:
    _lock.acquire()
    _held_for_fork.extend((database, database.pause(FORK_WAIT_S)) for database in _open.values())


def _in_parent() -> None:
    for database, _ in _held_for_fork:
        database.resume()
    _held_for_fork.clear()
    _lock.release()


def _in_child() -> None:
    """Close copies of idle connections, which without a transaction changes no file and frees no lock."""
    for database, is_idle in _held_for_fork:
        for connection in database.leave_to_parent():
            if is_idle:
                connection.close()
            else:
                # A thread that does not exist here may own its mutex, so closing it, even as garbage, would
                # hang.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        if not is_idle and database.identity is not None:
            _busy_at_fork.add(database.identity)
    _held_for_fork.clear()
    _open.clear()
    _lock.release()
