"""Rewrites a database after another program moved its log, because plain SQLite writes no checksums.

The last program that closes a database moves its log into the file, even a program that only looked at what a
crash had left. The rows are whole then, but their pages look damaged. The sign is a missing log while the
lock file still notes its newest row. Only then is a database rewritten, and only if all of it is whole.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Literal

import apsw

from keepstate.stores.sqlite import connection, schema
from keepstate.stores.sqlite.connection import Execute, execute_on
from keepstate.stores.sqlite.durable_mark import Newest, require_whole_file

_log = logging.getLogger("keepstate.stores")


@contextmanager
def opening_guard(path: str, newest: Newest, wait_s: float) -> Generator[None]:
    """Check a database before it is opened. During the check, no other program can close it as the last one.

    The caller holds the lock file. It takes long only if another program moved the log.

    Raises:
        CorruptError: An acknowledged write is missing.
    """
    if require_whole_file(path):
        newest.note(0)
        yield
        return
    held = _open_held(path, wait_s)
    try:
        if newest.has_lost_log():
            _renew(held, path)
        newest.check(execute_on(held))
        yield
    finally:
        held.close()


def _open_held(path: str, wait_s: float) -> apsw.Connection:
    held = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=connection.file_system())
    try:
        held.set_busy_timeout(int(wait_s * 1000))
        held.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        execute = execute_on(held)
        _verify(execute, "OFF")
        execute("SELECT count(*) FROM sqlite_schema").fetchall()
        _verify(execute, "ON")
    except BaseException:
        held.close()
        raise
    return held


def _verify(execute: Execute, switch: Literal["ON", "OFF"]) -> None:
    execute(f"PRAGMA checksum_verification = {switch}").fetchall()


def _renew(held: apsw.Connection, path: str) -> None:
    """Rewrite all pages with checksums, if the tree and every row are as written; otherwise do nothing."""
    execute = execute_on(held)
    if _is_whole(execute):
        return
    _verify(execute, "OFF")
    if _is_whole(execute):
        _log.warning("Another program moved the log of %s. The database was checked and is rewritten.", path)
        execute("VACUUM").fetchall()
    _verify(execute, "ON")


def _is_whole(execute: Execute) -> bool:
    """Return whether SQLite finds pages and tree whole, and every row matches its seal."""
    try:
        found: Any = execute("PRAGMA integrity_check").fetchall()
        return found == [("ok",)] and _entries_are_whole(execute) and _log_is_whole(execute)
    except apsw.Error:
        return False


def _entries_are_whole(execute: Execute) -> bool:
    rows = execute("SELECT key, value, version, expires_at_ms, seal FROM entries")
    return all(schema.entry_seal(*row) == seal for *row, seal in rows)


def _log_is_whole(execute: Execute) -> bool:
    rows = execute("SELECT id, nonce, changes, seal FROM log")
    return all(schema.log_seal(*row) == seal for *row, seal in rows)
