"""The databases that this process has open: one a file, whatever its name, however many handles.

POSIX locks belong to a process, and SQLite's own knowledge of them too, so a file is opened once, and a
forked child must not use, close or forget the parent's connections while one of them is at work.
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
"""What a user writes for each."""
FORK_WAIT_S = 5.0
"""How long a fork waits for the threads that are at work on a database."""

_lock = threading.Lock()
_open: dict[Identity, Database] = {}
_forgotten: deque[Database] = deque()
_busy_at_fork: set[Identity] = set()
_held_for_fork: list[tuple[Database, bool]] = []
_has_fork_hooks = False


def acquire(path: str, durability: Durability, wait_s: float) -> Database:
    """Return the database at an absolute path, opened if nobody has it open; to be released.

    Raises:
        InvalidError: It is open with another durability.
        UnsupportedError: The process was forked while its parent was at work on the file.
    """
    path = os.path.realpath(path)
    with _lock:
        _register_fork_hooks()
        _close_forgotten()
        file = identity(path)
        if file in _busy_at_fork:
            raise UnsupportedError(
                f"{path} was in use when this process was forked, and SQLite cannot open it here: "
                "start processes by spawn, or fork before opening"
            )
        database = None if file is None else _open.get(file)
        if database is None:
            database = Database(path, durability, wait_s)
            assert database.identity is not None
            _open[database.identity] = database
        elif database.durability is not durability:
            raise InvalidError(
                f"{path} is open in this process with durability={_OPTIONS[database.durability]}, and a file "
                "has one writer: give all handles the same"
            )
        database.users += 1
        return database


def release(database: Database) -> None:
    """Give a database back; the last one closes it."""
    with _lock:
        if _is_last(database):
            database.close()


def forget(database: Database) -> None:
    """Give back a database whose handle has become garbage, in whatever place of whatever call.

    So it waits for nothing: neither for a lock, which this thread may hold, nor to move the log, which who
    opens the file next does. Where the databases are being changed, the next that is opened or given back
    is closed with it.
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
    """Count one handle less, and return whether nobody has the database any more."""
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
    """Close copies of idle connections: without a transaction that touches no file and frees no lock."""
    for database, is_idle in _held_for_fork:
        for connection in database.leave_to_parent():
            if is_idle:
                connection.close()
            else:
                # A thread that is not here may own its mutex: closing it, at the latest as garbage, would
                # hang.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        if not is_idle and database.identity is not None:
            _busy_at_fork.add(database.identity)
    _held_for_fork.clear()
    _open.clear()
    _lock.release()
