"""Moves the write-ahead log into the database file, in a section that holds the lock file.

All SQLite versions from 3.7.0 to 3.51.2 can lose commits when two checkpoints meet a commit that starts the
log anew. Here they never meet: nothing checkpoints by itself, and who does holds the lock file, and
SQLite's write lock against other programs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import apsw

from keepstate.errors import StorageError
from keepstate.stores.sqlite.statements import execute_on

CHECKPOINT_BYTES: Final = 4 << 20
"""How large the log may grow before a writer moves it."""


def move_log(checkpointer: apsw.Connection, path: str) -> bool:
    """Move what no reader still needs, and return whether that was all of it."""
    open_log(checkpointer)
    in_log, moved = checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    if in_log < 0 or moved < 0:
        raise StorageError(f"the log of {path} was not moved: SQLite knows of no log")
    return in_log == moved


def empty_log(checkpointer: apsw.Connection) -> None:
    """Move all of the log and empty its file, or as much as other processes' readers allow."""
    open_log(checkpointer)
    checkpointer.set_busy_timeout(0)
    with suppress(apsw.BusyError):
        checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def open_log(checkpointer: apsw.Connection) -> None:
    """Let a connection open the log: one that never read would move nothing, and say so only by -1."""
    execute_on(checkpointer)("SELECT 1 FROM spaces LIMIT 1").fetchall()
