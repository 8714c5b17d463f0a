"""The open databases of this process: one per file, whatever its name, however many handles use it.

POSIX locks belong to a process, and so does SQLite's record of them, so a file is opened once. A forked child
must not use, close or forget the parent's connections while one of them is in use.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from typing import Final

from keepstate.errors import InvalidError, UnsupportedError
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite.database import Database
from keepstate.stores.sqlite.files import Identity, identity

_OPTIONS: Final = {Durability.POWER: "full", Durability.PROCESS: "normal"}
"""The value of the option `durability` for each."""
FORK_WAIT_S = 5.0
"""Seconds for which a fork waits for threads that use a database."""

_lock = threading.Lock()
_open: dict[Identity, Database] = {}
_forgotten: deque[Database] = deque()
_busy_at_fork: set[Identity] = set()
_held_for_fork: list[tuple[Database, bool]] = []
_has_fork_hooks = False


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
    which
    the next process that opens the file does. If the registry is locked, the next `acquire` or `release`
    closes the database.
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
