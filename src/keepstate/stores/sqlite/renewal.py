"""Writes a database anew after another program moved its log: plain SQLite gives pages no checksums.

Who is the last to close a database moves its log into the file, also a program that only looked at what a
crash had left. The rows are whole then, and their pages look damaged. It shows by a log that is gone while
the lock file still notes its newest row; only then is a database written anew, and only if all is whole.
"""

from __future__ import annotations

import logging
from typing import Any

import apsw

from keepstate.stores.sqlite import pages, schema
from keepstate.stores.sqlite.statements import Execute, execute_on

_log = logging.getLogger("keepstate.stores")


def renew(path: str) -> None:
    """Gives all pages their checksums, if the tree and every row are what was written; else does nothing.

    Takes as long as reading the whole file, and writing it; the caller holds the lock file.
    """
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=pages.file_system())
    try:
        execute = execute_on(connection)
        if _is_whole(execute):
            return
        execute("PRAGMA checksum_verification = OFF").fetchall()
        if _is_whole(execute):
            _log.warning("another program moved the log of %s: it was checked and is written anew", path)
            execute("VACUUM").fetchall()
    finally:
        connection.close()


def _is_whole(execute: Execute) -> bool:
    """Returns whether SQLite finds nothing wrong with pages and tree, and every row has its seal."""
    try:
        found: Any = execute("PRAGMA integrity_check").fetchall()
        return found == [("ok",)] and _entries_are_whole(execute) and _log_is_whole(execute)
    except apsw.Error:
        return False


def _entries_are_whole(execute: Execute) -> bool:
    rows = execute("SELECT key, value, version, expires_at_ms, seal FROM entries")
    return all(schema.entry_seal(*row) == seal for *row, seal in rows)


def _log_is_whole(execute: Execute) -> bool:
    rows = execute("SELECT id, changes, seal FROM log")
    return all(schema.log_seal(*row) == seal for *row, seal in rows)
