"""The newest revision, noted outside the database, so that a damaged log is not taken for a short one.

After a crash SQLite reads its log up to the first frame that is not whole, and treats the rest as never
written. A flipped bit there would undo every later acknowledged write. The note, a line in the lock file that
each commit overwrites, names a row that must exist. A close that empties the log removes the note, so that a
database at rest may be replaced by a backup.

A note is not synced: it is exact after a crash of processes. A note from before the machine's last start may
be any older one. It counts only if its row was durable before it was noted; then the space, if it still
exists, must have reached that row.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import apsw

from keepstate.errors import CorruptError
from keepstate.stores.local_files import UNKNOWN_START, machine_start
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.connection import Execute

_NOTE: Final = b"newest %016x %s %s"
_NOTED: Final = re.compile(rb"newest ([0-9a-f]{16}) (power  |process) ([0-9a-f-]{36}) ([0-9a-f]{8})\n")
_NONE: Final = bytes(78)
_BARE_HEADER_BYTES: Final = 108


class Newest:
    """The note of one database; the caller holds the lock.

    Args:
        descriptor: The descriptor of the lock file.
        path: The database.
        durability: The failures that a commit survives by the time it is noted.
    """

    def __init__(self, descriptor: int, path: str, durability: Durability) -> None:
        self._descriptor, self._path = descriptor, path
        self._durability = durability.value.encode().ljust(7)
        self._start = machine_start()

    def note(self, row: int) -> None:
        """Note a committed row of the log, or 0 if the newest is unknown."""
        line = _NONE
        if row:
            line = _NOTE % (row, self._durability, self._start)
            line += b" %08x\n" % crc32(line)
        with suppress(OSError):  # the older note stays, whose row exists too
            os.pwrite(self._descriptor, line, 0)

    def check(self, execute: Execute) -> None:
        """Compare the note with the rows that SQLite found, before any write.

        Raises:
            CorruptError: The noted row is missing, so the log was not read to its end.
        """
        if not self._has_noted_row(execute):
            log = f"{self._path}-wal"
            raise CorruptError(
                f"{log} is damaged or was removed: the last acknowledged writes are not in it. Nothing was "
                f"changed. Salvage what is whole with `keepstate repair`. If {self._path} is a restored "
                f"backup, remove {log} and {self._path}.lock while no process has the store open.",
                place=log,
            )

    def take_back(self) -> None:
        """Remove the note, if the log is empty."""
        if not _size(f"{self._path}-wal"):
            self.note(0)

    def has_lost_log(self) -> bool:
        """Return whether there is a note, and another program removed the log."""
        return self._noted() is not None and not _size(f"{self._path}-wal")

    def _noted(self) -> re.Match[bytes] | None:
        return _read_note(os.pread(self._descriptor, len(_NONE), 0))

    def _has_noted_row(self, execute: Execute) -> bool:
        found = self._noted()
        if found is None:
            return True
        row = int(found[1], 16)
        try:
            if found[3] == self._start != UNKNOWN_START:
                return bool(execute("SELECT count(*) FROM log WHERE id = ?", (row,)).get)
            return found[2].strip() != Durability.POWER.encode() or _has_reached(execute, row)
        except apsw.SQLError:  # even the table is missing
            return False


def certain_row(lock_path: str) -> int:
    """Return the row of the log that must exist by the note in a lock file; 0 if there is none."""
    try:
        found = _read_note(Path(lock_path).read_bytes())
    except OSError:
        return 0
    is_certain = found is not None and (
        found[3] == machine_start() != UNKNOWN_START or found[2].strip() == Durability.POWER.encode()
    )
    return int(found[1], 16) if found is not None and is_certain else 0


def _read_note(line: bytes) -> re.Match[bytes] | None:
    found = _NOTED.match(line)
    return found if found is not None and crc32(found[0][:-10]) == int(found[4], 16) else None


def require_whole_file(path: str) -> bool:
    """Return whether the database does not exist yet.

    Raises:
        CorruptError: The database was cut off or removed. SQLite would create a new one and remove the log.
    """
    size, log_size = _size(path), _size(f"{path}-wal")
    if size == 1 or (size == 0 and log_size):
        raise CorruptError(
            f"{path} was cut off or removed, and its log {path}-wal has {log_size} bytes. Nothing was "
            "changed. Restore a backup, or remove both files to begin with an empty store.",
            place=path,
        )
    return size == 0


def require_log(path: str) -> None:
    """Reject a database that was copied without its log while its tables were still in the log.

    A process that was killed while it created the database leaves the same bytes, but also a lock file, whose
    name is synced before the database exists. Call this before the lock file is opened, in a process that has
    not opened the database.

    Raises:
        CorruptError: The log with the tables is missing.
    """
    if _is_bare(path) and not _size(f"{path}-wal") and not os.path.exists(f"{path}.lock"):
        raise CorruptError(
            f"{path} does not hold its tables, which were in its log {path}-wal: it was copied without "
            "that file. Copy both while no process has the store open, or use `keepstate repair`. To "
            f"begin with an empty store, remove {path}.",
            place=path,
        )


def _is_bare(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return is_bare(file.read(_BARE_HEADER_BYTES))
    except OSError:
        return False  # absent so far, or opening it reports the reason


def is_bare(first_page: bytes) -> bool:
    """Return whether a database's first page shows that its tables are still in the log only."""
    return (
        len(first_page) >= _BARE_HEADER_BYTES
        and first_page.startswith(b"SQLite format 3\0")
        and first_page[18:21] == b"\2\2\x08"  # it has a log, and room for checksums
        and not any(first_page[60:64] + first_page[68:72] + first_page[103:105])  # no layout, owner or table
    )


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _has_reached(execute: Execute, row: int) -> bool:
    number = row >> schema.REVISION_BITS
    is_there: Any = execute("SELECT name IS NOT NULL FROM spaces WHERE id = ?", (number,)).get
    newest: Any = execute("SELECT max(id) FROM log WHERE id BETWEEN ? AND ?", schema.log_range(number)).get
    return not is_there or (newest is not None and newest >= row)
