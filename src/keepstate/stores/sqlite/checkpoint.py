"""Checkpoints: moving the write-ahead log into the database file while holding the lock file.

All SQLite versions from 3.7.0 to 3.51.2 can lose commits when two checkpoints run concurrently with a commit
that restarts the log. Here they never overlap: SQLite's automatic checkpoints are off, and a checkpoint holds
the lock file, and SQLite's write lock against other programs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import apsw

from keepstate.errors import StorageError
from keepstate.stores.sqlite.statements import execute_on

CHECKPOINT_BYTES: Final = 4 << 20
"""Size of the log at which a writer checkpoints."""


def move_log(checkpointer: apsw.Connection, path: str) -> bool:
    """Move the part of the log that no reader needs, and return whether that was all of it."""
    open_log(checkpointer)
    in_log, moved = checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    if in_log < 0 or moved < 0:
        raise StorageError(f"The log of {path} was not moved: SQLite did not find a log.")
    return in_log == moved


def empty_log(checkpointer: apsw.Connection) -> None:
    """Move the whole log and empty its file, or as much as other processes' readers allow."""
    open_log(checkpointer)
    checkpointer.set_busy_timeout(0)
    with suppress(apsw.BusyError):
        checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def open_log(checkpointer: apsw.Connection) -> None:
    """Make a connection open the log; without a read it would move nothing and only report -1."""
    execute_on(checkpointer)("SELECT 1 FROM spaces LIMIT 1").fetchall()
