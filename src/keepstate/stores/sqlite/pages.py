"""Pages with checksums, so that damage to the file or its log is an error and never a wrong result.

The seal of a row shows that the row is as written, but not that a row is missing because the tree above it
was
damaged. SQLite's checksum extension covers every page: it sits between SQLite and the file, writes eight
bytes at each page's end, and compares them on every read. Pages in the write-ahead log do not have them: the
log has its own checksums, which SQLite compares when it first reads the log after a crash; see
`durable_mark`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import apsw
from apsw import sqlite_extra

from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.sqlite.statements import Execute

EXTENSION: Final = "cksumvfs"
"""SQLite's name of the extension."""
_FILE_SYSTEM: Final = "cksmvfs"
_CHECKSUM_BYTES: Final = 8


@cache
def file_system() -> str:
    """Load the extension, once per process, and return the name of its file system.

    Raises:
        UnsupportedError: This build of apsw does not include SQLite's extensions.
    """
    default = apsw.vfs_names()[0]
    connection = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(connection, EXTENSION)
    except (LookupError, sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as error:
        raise UnsupportedError(
            f"This apsw does not include {EXTENSION}, without which damage to a file may go unnoticed "
            f"({error}). Install apsw from its wheel: pip install --force-reinstall --only-binary=apsw apsw"
        ) from error
    finally:
        connection.close()
    apsw.set_default_vfs(default)  # the extension had replaced it for the whole process
    return _FILE_SYSTEM


def reserve(connection: apsw.Connection) -> None:
    """Reserve room for a checksum in each page of an empty file."""
    connection.reserve_bytes(reserve=_CHECKSUM_BYTES)


def require_checksums(execute: Execute, path: str) -> None:
    """Raise `CorruptError` if the file's first page declares pages without checksums."""
    execute("SELECT count(*) FROM sqlite_schema").fetchall()
    is_checked: Any = execute("PRAGMA checksum_verification").get
    if not int(is_checked or 0):
        raise CorruptError(
            f"{path} declares pages without checksums, but keepstate's pages all have them. "
            "Restore it from a backup.",
            place=path,
        )
