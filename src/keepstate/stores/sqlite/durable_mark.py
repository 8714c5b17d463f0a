"""The newest revision, noted outside the database and its log: a damaged log must not pass for a short one.

After a crash SQLite reads its log up to the first frame that is not whole, and takes the rest as never
written: a flipped bit there would take back all that was acknowledged after it. The note, a line in the lock
file that each commit overwrites, says which row must be there. A close that leaves nothing in the log takes
it back, so that a database at rest may be replaced by a backup.

Nobody waits until a note is on the disk: it is exact after a crash of processes. One from before the machine
last started may be any older one, and counts only if its row was made durable before it was noted; then the
space, if it is still there, has come as far.
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
from keepstate.stores.machine import UNKNOWN_START, machine_start
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.statements import Execute

_NOTE: Final = b"newest %016x %s %s"
_NOTED: Final = re.compile(rb"newest ([0-9a-f]{16}) (power  |process) ([0-9a-f-]{36}) ([0-9a-f]{8})\n")
_NONE: Final = bytes(78)
_BARE_HEADER_BYTES: Final = 108


class Newest:
    """The note of one database; who calls holds the lock.

    Args:
        descriptor: The lock file's.
        path: The database.
        durability: What a commit has survived by the time it is noted.
    """

    def __init__(self, descriptor: int, path: str, durability: Durability) -> None:
        self._descriptor, self._path = descriptor, path
        self._durability = durability.value.encode().ljust(7)
        self._start = machine_start()

    def note(self, row: int) -> None:
        """Note a row of the log that has been committed; 0 if it is not known which is the newest."""
        line = _NONE
        if row:
            line = _NOTE % (row, self._durability, self._start)
            line += b" %08x\n" % crc32(line)
        with suppress(OSError):  # it stays with an older one, whose row is there too
            os.pwrite(self._descriptor, line, 0)

    def check(self, execute: Execute) -> None:
        """Compare the note with what SQLite found, before anything is written.

        Raises:
            CorruptError: The row is not there, so the log was not read to its end.
        """
        if not self._has_noted_row(execute):
            log = f"{self._path}-wal"
            raise CorruptError(
                f"{log} is damaged or was removed: what was acknowledged last is not in it; nothing was "
                f"touched: salvage what is whole; where {self._path} is a backup put in place, remove {log} "
                f"and {self._path}.lock while nobody has it open",
                place=log,
            )

    def take_back(self) -> None:
        """Note nothing any more, if the log is empty."""
        if not _size(f"{self._path}-wal"):
            self.note(0)

    def has_lost_log(self) -> bool:
        """Return whether something is noted, and somebody else removed the log."""
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
        except apsw.SQLError:  # not even the table is there
            return False


def certain_row(lock_path: str) -> int:
    """Return a row of the log that must be there, by the note in a lock file; 0 if none is told."""
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
    """Return whether there is no database yet.

    Raises:
        CorruptError: SQLite would take what is left of one for a new one, and remove its log.
    """
    size, log_size = _size(path), _size(f"{path}-wal")
    if size == 1 or (size == 0 and log_size):
        raise CorruptError(
            f"{path} was cut off or removed, and its log {path}-wal has {log_size} bytes; nothing was "
            "touched: restore a backup, or remove both to begin anew",
            place=path,
        )
    return size == 0


def require_log(path: str) -> None:
    """Refuse a database whose tables were still in its log, and that was copied without it.

    A process that was killed while it made the database leaves the same bytes, and a lock file beside them.
    Called before the lock file is opened, in a process that has not opened the database.

    Raises:
        CorruptError: What the log held is not here.
    """
    if _is_bare(path) and not _size(f"{path}-wal") and not os.path.exists(f"{path}.lock"):
        raise CorruptError(
            f"{path} holds none of its tables, which were in its log {path}-wal: it was copied without that "
            "file; copy both while nobody has the store open, or use `keepstate repair`; to begin again, "
            f"remove {path}",
            place=path,
        )


def _is_bare(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return is_bare(file.read(_BARE_HEADER_BYTES))
    except OSError:
        return False  # not there yet, or what opens it says why it cannot


def is_bare(first_page: bytes) -> bool:
    """Return whether a database begins as one does whose tables keepstate has written to the log only."""
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
