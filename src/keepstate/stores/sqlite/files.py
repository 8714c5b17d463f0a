"""The three files of a database: their identity, their length, and this process's locks on them.

SQLite holds a process's locks per file, and the system drops them all when any code in the process opens and
closes the file by other means. Another program then believes that it holds the last lock, and removes a log
that is still written to. So before a write is acknowledged, the files must be the same and locked. On systems
with locks of an open file (Linux), a failed request for a lock shows that SQLite's locks exist.

SQLite does not notice a truncated file either: it writes beyond the end, and the gap reads as zeros. The
header of the wal-index gives the least length of the log and the database, and the last frame before a write
must be unchanged after it. Format: "WAL-Index Header" of "WAL-mode File Format" of SQLite.

A fourth file, the lock file, is held by one writer of the host for every write and every checkpoint. SQLite's
own write lock is not enough: its waiters sleep up to 100 ms between attempts, so a busy writer starves the
others for seconds, and it does not separate two checkpoints.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import partial
from struct import Struct
from time import sleep  # noqa: TID251  a pause reads no clock
from typing import Final, TypeAlias

from keepstate._clock import SYSTEM_CLOCK
from keepstate._files import FILE_MODE, open_beside, open_own, sync_folder
from keepstate.errors import CorruptError, StoreUnavailableError

Identity: TypeAlias = tuple[int, int]


_ASKED: Final = Struct("hhqqi0q")
"""Type, whence, start, length and process of a lock, as C has them."""
_DATABASE_LOCK: Final = (0x40000002, 510)
_MEMORY_LOCK: Final = (128, 1)
"""The ranges of the read locks that SQLite holds while the files are open: start and length."""
_ASK: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
_INDEX_HEADER: Final = Struct("=12xBBHII8x8s8x")
_INDEX_BYTES: Final = _INDEX_HEADER.size
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_LOOK_S: Final = 0.0001
_STUCK_S: Final = 1.0
_STUCK_LOOK_S: Final = 0.002
"""Pauses between attempts; a waiter tries less often once the holder seems to be stuck.

A wait in `flock` itself could not be given up. With four writing processes it also let some wait longer (54
to 68 ms in eight runs, against 43), and so did attempts that become rarer (320 ms).
"""


def identity(path: str) -> Identity | None:
    """Return the identity of a file, whatever its name, or None if it is absent."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class _Index:
    """A part of the wal-index header, as of the last commit.

    Attributes:
        header: The bytes of one of its two copies.
        frames: The number of frames in the log.
        frame_bytes: The size of a page with the header of its frame.
        log_bytes: The least length of the log.
        database_bytes: The least length of the database.
        salts: Random bytes that change when the log begins again.
    """

    __slots__ = ("database_bytes", "frame_bytes", "frames", "header", "is_made", "log_bytes", "salts")

    def __init__(self, header: bytes) -> None:
        self.header = header
        self.is_made, _, stored_page_bytes, self.frames, pages, self.salts = _INDEX_HEADER.unpack(header)
        page_bytes = 1 << 16 if stored_page_bytes == 1 else stored_page_bytes
        self.frame_bytes = _FRAME_HEADER_BYTES + page_bytes
        self.log_bytes = _LOG_HEADER_BYTES + self.frames * self.frame_bytes if self.frames else 0
        self.database_bytes = pages * page_bytes


class Files:
    """The database, its write-ahead log and its shared memory, as of the construction of this object."""

    def __init__(self, path: str) -> None:
        self._path, self._log_path = path, f"{path}-wal"
        self._opened = [(file, identity(file)) for file in (path, self._log_path, f"{path}-shm")]
        self._size_bytes = os.path.getsize(path)
        self._newest: _Index | None = None
        self._before: tuple[_Index, bytes] | None = None
        self._guards: list[tuple[int, bytes, str]] = []
        self.moved: str | None = None
        """The file that was found to be missing, replaced, or no longer locked."""
        self._how = ""
        self._database = self._guard(path, *_DATABASE_LOCK)
        self._memory = self._guard(f"{path}-shm", *_MEMORY_LOCK)
        self._log = self._guard(self._log_path, 0, 0)

    def _guard(self, file: str, start: int, length: int) -> int:
        """Open a file until `close`; its lock is not checked if `length` is 0."""
        asked = _ASKED.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0) if length else b""
        self._guards.append((os.open(file, os.O_RDWR | os.O_CLOEXEC), asked, file))
        return self._guards[-1][0]

    def close(self) -> None:
        """Close the files, which drops SQLite's locks; call it after its connections were closed."""
        while self._guards:
            os.close(self._guards.pop()[0])

    @property
    def identity(self) -> Identity | None:
        """The database's own identity."""
        return self._opened[0][1]

    def begin(self) -> None:
        """Remember the end of the log before a write, under the lock.

        Raises:
            CorruptError: The log or the database was cut off.
        """
        index = self._index()
        self._before = None if index is None else (index, self._last_frame(index))
        self._check_lengths(index)
        self.require_unchanged()

    def check(self) -> None:
        """Raise `CorruptError` if a write may have been lost."""
        index = self._index()
        self._check_lengths(index)
        if self._before is not None and index is not None and index.salts == self._before[0].salts:
            before, frame = self._before  # the log was appended to
            if index.frames > before.frames and self._last_frame(before) != frame:
                self.moved, self._how = self._log_path, "was cut off while open"
        for file, opened in self._opened:
            if identity(file) != opened:
                self.moved, self._how = file, "was removed or replaced while open"
        if _ASK is not None:
            for descriptor, asked, file in self._guards:
                if asked and _ASKED.unpack(fcntl.fcntl(descriptor, _ASK, asked))[0] != fcntl.F_RDLCK:
                    self.moved, self._how = (
                        file,
                        "was opened and closed by other means, and its locks dropped",
                    )
        self.require_unchanged()

    def _index(self) -> _Index | None:
        """Return the header, or None while another program changes it."""
        both = os.pread(self._memory, 2 * _INDEX_BYTES, 0)
        header = both[:_INDEX_BYTES]
        if len(both) < 2 * _INDEX_BYTES or header != both[_INDEX_BYTES:]:
            return None
        if self._newest is None or self._newest.header != header:
            self._newest = _Index(header)
        return self._newest if self._newest.is_made else None

    def _last_frame(self, index: _Index) -> bytes:
        if not index.frames:
            return b""
        return os.pread(self._log, index.frame_bytes, index.log_bytes - index.frame_bytes)

    def _check_lengths(self, index: _Index | None) -> None:
        if index is None:
            return
        # The end by `lseek`, in a quarter of the time of `fstat`. Nothing else uses the descriptors' offsets.
        if os.lseek(self._log, 0, os.SEEK_END) < index.log_bytes:
            self.moved, self._how = self._log_path, "was cut off while open"
        size_bytes = os.lseek(self._database, 0, os.SEEK_END)
        if size_bytes >= self._size_bytes:
            self._size_bytes = size_bytes
        elif size_bytes < index.database_bytes:
            self.moved, self._how = self._path, "was cut off while open"
        elif index.database_bytes:
            self._size_bytes = size_bytes  # another program has freed pages

    def require_unchanged(self) -> None:
        """Raise `CorruptError` if `check` ever found a fault."""
        if self.moved is not None:
            raise CorruptError(
                f"{self.moved} {self._how}. Writes since then may be lost. Find and close the other "
                "program that opens the database, then open it again, or save what is whole with "
                "`keepstate repair`.",
                place=self.moved,
            )


def lock_path(database: str) -> str:
    """Return the path of a database's lock file."""
    return f"{database}.lock"


class FileLock:
    """An exclusive `flock`, for one thread of the process at a time.

    Closing does not remove the file: removing it while a process holds it would create a second lock.

    Args:
        database: The path of the database.

    Raises:
        InvalidError: The lock file's path is a link.
    """

    def __init__(self, database: str) -> None:
        path = self._path = lock_path(database)
        try:
            self._fd = open_beside(path, database)
        except PermissionError as forbidden:
            try:  # enough to lock it; opening the database reports that it is not writable
                self._fd = open_own(path, os.O_RDONLY)
            except FileNotFoundError:
                raise forbidden from None
        self.release = partial(fcntl.flock, self._fd, fcntl.LOCK_UN)
        """Release the lock, if it is held. It runs in C, where no interrupt can come before it is done."""

    @property
    def descriptor(self) -> int:
        """The descriptor of the lock file."""
        return self._fd

    def precede(self, database: str) -> None:
        """Prepare the lock file if there is no database yet.

        The database gets the same permissions, so other users' are removed. The lock file's name must survive
        a power cut that the database's name survives: `require_log` could not tell the rest from a copy.
        """
        if not os.path.exists(database):
            os.fchmod(self._fd, FILE_MODE)
            with suppress(PermissionError):  # a folder that its owner may not list
                sync_folder(os.path.dirname(database))

    def acquire(self, timeout_s: float) -> None:
        """Acquire the lock.

        Raises:
            StoreUnavailableError: Another process held it for `timeout_s`.
        """
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._look_until_free(timeout_s)

    def _look_until_free(self, timeout_s: float) -> None:
        began_s = SYSTEM_CLOCK.monotonic_s()
        waited_s = 0.0
        while waited_s < timeout_s:
            sleep(_LOOK_S if waited_s < _STUCK_S else _STUCK_LOOK_S)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited_s = SYSTEM_CLOCK.monotonic_s() - began_s
            else:
                return
        raise StoreUnavailableError(
            f"Another process has held {self._path} for {timeout_s:g} s. Nothing was written. Check whether "
            f"that process is stopped."
        )

    def close(self) -> None:
        """Close the file; in a forked child this does not release the parent's lock."""
        os.close(self._fd)
