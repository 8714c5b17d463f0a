"""A disk that fails when a test says so: SQLite's own files, between SQLite and the real ones."""

from __future__ import annotations

from typing import Any

import apsw

REAL = "unix"
NAME = "failing"


class Disk(apsw.VFS):
    """Takes the place of the file system for every connection opened after it.

    No file may have more than `room_bytes`; `broken` names whose syncs fail, the log's or the database's.
    """

    def __init__(self) -> None:
        super().__init__(NAME, REAL, makedefault=True)
        self.room_bytes: int | None = None
        self.broken = ""

    def restore(self) -> None:
        apsw.set_default_vfs(REAL)
        self.unregister()

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        super().__init__(REAL, name, flags)
        self._disk = disk
        is_log = flags[0] & apsw.SQLITE_OPEN_WAL
        self._kind = "log" if is_log else "database"

    def xWrite(self, data: Any, offset: int) -> None:
        room_bytes = self._disk.room_bytes
        if room_bytes is not None and offset + len(data) > room_bytes:
            raise apsw.FullError("no room")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        if self._disk.broken == self._kind:
            raise apsw.IOError("the disk is broken")
        super().xSync(flags)
