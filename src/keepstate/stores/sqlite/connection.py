"""Connections with the same settings, whose pages have checksums, and the function that executes on one.

Damage to the file or its log is an error and never a wrong result. The seal of a row shows that the row is as
written, but not that a row is missing because the tree above it was damaged. SQLite's checksum extension
covers every page: it sits between SQLite and the file, writes eight bytes at each page's end, and compares
them on every read. Pages in the write-ahead log do not have them: the log has its own checksums, which SQLite
compares when it first reads the log after a crash; see `durable_mark`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeAlias, cast
from urllib.parse import quote

import apsw
from apsw import sqlite_extra

from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite.files import lock_path

Binding: TypeAlias = bytes | int | None


EXTENSION: Final = "cksumvfs"
"""SQLite's name of the extension."""
_FILE_SYSTEM: Final = "cksmvfs"
_CHECKSUM_BYTES: Final = 8
_MENDED: Final = (3, 51, 3)
"""The first release without the fault. 3.7.0 and later have it, except 3.44.6 and 3.50.7."""
_MENDED_EARLIER: Final = ((3, 44, 6), (3, 50, 7))
CACHE_KIB: Final = 8 << 10
"""The page cache of a connection."""


class Rows(Protocol):
    """The result of a statement, valid until the next statement on the same connection."""

    @property
    def get(self) -> Any:
        """The only row, or its only column, or None; the statement has then ended."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Execute(Protocol):
    """A function that executes a statement with its bindings."""

    def __call__(self, statement: str, bindings: Sequence[Binding] = (), /) -> Rows:
        """Execute the statement and return its result."""
        ...


def execute_on(connection: apsw.Connection) -> Execute:
    """Return the function that executes on this connection."""
    return cast("Execute", connection.cursor().execute)  # pyright: ignore[reportUnknownMemberType]


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


def library_version() -> str:
    """Return the version of the SQLite library that the stores use."""
    return apsw.sqlite_lib_version()


def is_safe() -> bool:
    """Return whether that version is free of the fault; stores checkpoint around it otherwise."""
    found = tuple(int(part) for part in library_version().split("."))
    return found >= _MENDED or any(found[:2] == line[:2] and found >= line for line in _MENDED_EARLIER)


def connect(
    path: str, durability: Durability, wait_s: float, *, creates: bool = False, only_reads: bool = False
) -> apsw.Connection:
    """Open a connection; the caller closes it."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    name = path
    if creates:  # SQLite's files get the permissions of the lock file
        flags |= apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
        name = f"file:{quote(path)}?modeof={quote(lock_path(path))}"
    connection = apsw.Connection(name, flags=flags, vfs=file_system())
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
            require_checksums(execute, path)
    except BaseException:
        connection.close()
        raise
    return connection
