"""Pages that end with a checksum, so that damage to the file or its log is an error and never another answer.

A seal tells whether a row is what was written, but not that a row is missing because the tree above it was
damaged. SQLite's checksum extension sees to every page: it stands between SQLite and the file, writes eight
bytes at each page's end, and compares them whenever a page is read. Pages in the write-ahead log have none:
the log has its own, which SQLite compares when it first reads the log after a crash (see `newest`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import apsw
from apsw import sqlite_extra

from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.sqlite.statements import Execute

EXTENSION: Final = "cksumvfs"
"""What SQLite calls the extension."""
_FILE_SYSTEM: Final = "cksmvfs"
_CHECKSUM_BYTES: Final = 8


@cache
def file_system() -> str:
    """Return the name under which SQLite knows files with checksums; loads it, once a process.

    Raises:
        UnsupportedError: This build of apsw came without SQLite's extensions.
    """
    default = apsw.vfs_names()[0]
    connection = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(connection, EXTENSION)
    except (LookupError, sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as error:
        raise UnsupportedError(
            f"this apsw has no {EXTENSION}, without which damage to a file may go unseen ({error}): "
            "install apsw from its wheel: pip install --force-reinstall --only-binary=apsw apsw"
        ) from error
    finally:
        connection.close()
    apsw.set_default_vfs(default)  # the extension took its place, for everybody in the process
    return _FILE_SYSTEM


def reserve(connection: apsw.Connection) -> None:
    """Give each page of an empty file room for its checksum."""
    connection.reserve_bytes(reserve=_CHECKSUM_BYTES)


def require_checksums(execute: Execute, path: str) -> None:
    """Raise `CorruptError` if the file's first page says that there are no checksums."""
    execute("SELECT count(*) FROM sqlite_schema").fetchall()
    is_checked: Any = execute("PRAGMA checksum_verification").get
    if not int(is_checked or 0):
        raise CorruptError(
            f"{path} says that its pages have no checksums, and keepstate's all have: "
            "restore it from a backup",
            place=path,
        )
