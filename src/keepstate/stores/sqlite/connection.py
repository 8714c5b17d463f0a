"""Connections with the same settings: a write-ahead log without automatic checkpoints."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import apsw

from keepstate.errors import StorageError
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite import pages, schema
from keepstate.stores.sqlite.lock import lock_path
from keepstate.stores.sqlite.statements import Execute, execute_on

CACHE_KIB: Final = 8 << 10
"""The page cache of a connection."""


def connect(
    path: str, durability: Durability, wait_s: float, *, creates: bool = False, only_reads: bool = False
) -> apsw.Connection:
    """Open a connection; the caller closes it."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    name = path
    if creates:  # SQLite's files get the permissions of the lock file
        flags |= apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        name = f"file:{quote(path)}?modeof={quote(lock_path(path))}"
    connection = apsw.Connection(name, flags=flags, vfs=pages.file_system())
    try:
        connection.set_busy_timeout(int(wait_s * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        execute = execute_on(connection)
        for setting in (
            "wal_autocheckpoint = 0",
            "mmap_size = 0",
            f"cache_size = -{CACHE_KIB}",
            "temp_store = MEMORY",
            f"synchronous = {'FULL' if durability is Durability.POWER else 'NORMAL'}",
            f"query_only = {'ON' if only_reads else 'OFF'}",
        ):
            execute(f"PRAGMA {setting}").fetchall()
        if not creates:
            pages.require_checksums(execute, path)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: apsw.Connection, path: str) -> None:
    """Create the tables of an empty file; the caller holds the lock file, so no other process does it too.

    Raises:
        CorruptError: The file is a database of another program.
        StorageError: The file cannot be written to.
    """
    if connection.readonly("main"):
        raise StorageError(
            f"{path} cannot be written to, and even reads write files next to it. Make the file and its "
            f"folder writable."
        )
    execute = execute_on(connection)
    is_made = schema.is_made(execute, path)
    if is_made:
        pages.require_checksums(execute, path)
    else:
        pages.reserve(connection)
    _enable_write_ahead_log(execute, path)
    if is_made:
        return
    execute("BEGIN IMMEDIATE")
    try:
        schema.make(execute)
    except BaseException:
        execute("ROLLBACK")
        raise
    execute("COMMIT")


def _enable_write_ahead_log(execute: Execute, path: str) -> None:
    # Setting the present mode again would need an exclusive lock, which other processes may hold.
    if execute("PRAGMA journal_mode").get == "wal":
        return
    mode = execute("PRAGMA journal_mode = WAL").get
    if mode != "wal":
        raise StorageError(
            f"{path} cannot have a write-ahead log: it stays in mode {mode}. Use another disk."
        )
