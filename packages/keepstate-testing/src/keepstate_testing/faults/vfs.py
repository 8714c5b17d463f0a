"""A disk beneath SQLite: an apsw file system that lies below the store's checksums and above the system's.

What SQLite writes is seen with its checksums, as it reaches the file.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw
from apsw import sqlite_extra

from keepstate.stores.sqlite import connection as connections
from keepstate_testing.faults.disk import (
    Call,
    Cut,
    Disk,
    Event,
    FolderSynced,
    Opened,
    Removed,
    Synced,
    Wrote,
)

_BELOW: Final = "unix"
_NAME: Final = "keepstate-faults"
_CHECKSUMS: Final = "cksmvfs"
_CHECKED: Final = "cksmdis"
"""What the extension is called, and its copy, in as many letters."""
_SYNCS_ITS_NAME: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
_FAILED: Final[dict[Call, int]] = {
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "remove": apsw.SQLITE_IOERR_DELETE,
    "sync_folder": apsw.SQLITE_IOERR_DIR_FSYNC,
}
_installed: list[_System] = []


@contextmanager
def beneath_sqlite(disk: Disk) -> Generator[None]:
    """Put a disk below every store that is opened while this lasts; afterwards it does nothing to them."""
    system = _install()
    before, connections.file_system = connections.file_system, _file_system  # type: ignore[assignment]  # a hook
    system.disk = disk
    try:
        yield
    finally:
        connections.file_system, system.disk = before, None


def _file_system() -> str:
    return _CHECKED


def _install() -> _System:
    """Stack the system's files, the disk and the checksums, once per process: SQLite releases none."""
    if not _installed:
        default = apsw.vfs_names()[0]
        _installed.append(_System())
        _load_checksums()
        apsw.set_default_vfs(default)
    return _installed[0]


def _load_checksums() -> None:
    """Load the checksum extension above the disk: a copy, by another name, for it is loaded only once."""
    library = Path(sqlite_extra.path("cksumvfs"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, library.name)
        copy.write_bytes(library.read_bytes().replace(_CHECKSUMS.encode(), _CHECKED.encode()))
        connection = apsw.Connection(":memory:", vfs=_BELOW)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
        connection.load_extension(str(copy))
        connection.close()


class _System(apsw.VFS):
    def __init__(self) -> None:
        super().__init__(_NAME, _BELOW, makedefault=True)
        self.disk: Disk | None = None

    def ask(self, call: Call, path: str, size_bytes: int = 0, at: int = 0) -> int:
        if self.disk is None:
            return size_bytes
        try:
            return self.disk.asked(call, path, size_bytes, at)
        except OSError as error:
            raise _as_sqlite_says(call, error) from error

    def tell(self, event: Event) -> None:
        if self.disk is not None:
            self.disk.did(event)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        self.ask("remove", filename)
        super().xDelete(filename, syncdir)
        self.tell(Removed(filename))
        if syncdir:
            self.tell(FolderSynced(os.path.dirname(filename)))


class _File(apsw.VFSFile):
    def __init__(self, system: _System, name: Any, flags: list[int]) -> None:
        self._system = system
        self._path: str = "" if name is None else name.filename() if hasattr(name, "filename") else name
        # SQLite makes the name of a journal durable with the journal's first sync.
        self._is_name_unsynced = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _SYNCS_ITS_NAME)
        self._ask("open")
        is_new = not os.path.exists(self._path)
        super().__init__(_BELOW, name, flags)
        self._tell(Opened(self._path, is_new))

    def _ask(self, call: Call, size_bytes: int = 0, at: int = 0) -> int:
        return self._system.ask(call, self._path, size_bytes, at) if self._path else size_bytes

    def _tell(self, event: Event) -> None:
        if self._path:
            self._system.tell(event)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        taken = self._ask("write", len(data), offset)
        super().xWrite(data[:taken], offset)  # pyright: ignore[reportUnknownMemberType]
        self._tell(Wrote(self._path, offset, bytes(data[:taken])))
        if taken < len(data):
            raise apsw.FullError(f"{self._path} took {taken} of {len(data)} bytes")

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._ask("sync")
        super().xSync(flags)
        self._tell(Synced(self._path))
        if self._is_name_unsynced:
            self._is_name_unsynced = False
            self._tell(FolderSynced(os.path.dirname(self._path)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._ask("truncate")
        super().xTruncate(newsize)
        self._tell(Cut(self._path, newsize))


def _as_sqlite_says(call: Call, error: OSError) -> apsw.Error:
    if call == "open":
        return apsw.CantOpenError(str(error))
    if call == "write" and error.errno == errno.ENOSPC:
        return apsw.FullError(str(error))
    failure = apsw.IOError(str(error))
    setattr(failure, "extendedresult", _FAILED[call])  # noqa: B010  apsw reads it and does not declare it
    return failure
