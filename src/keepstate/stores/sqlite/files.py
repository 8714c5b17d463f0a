"""The three files of a database, and whether they and our locks on them are still what was opened.

SQLite keeps a process's locks by file, and the system drops them all when anybody in the process opens and
closes the file by other means. Another program then takes the last lock for its own, and removes a log that
is still written to. So before a write is acknowledged the files must be the same, and locked: where the
system has locks of an opened file (Linux), asking for one in vain shows that SQLite's are there.
"""

from __future__ import annotations

import fcntl
import os
from struct import Struct
from typing import Final, TypeAlias

from keepstate.errors import CorruptError

Identity: TypeAlias = tuple[int, int]


def identity(path: str) -> Identity | None:
    """Returns what tells a file from all others, whatever its name; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


_ASKED: Final = Struct("hhqqi0q")
"""Type, whence, start, length and process of a lock, as C has them."""
_DATABASE_LOCK: Final = (0x40000002, 510)
_MEMORY_LOCK: Final = (128, 1)
"""Where SQLite locks the files, for reading, as long as they are open: start and length."""
_ASK: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)


class Files:
    """The database, its write-ahead log and its shared memory, as they were when this was made."""

    def __init__(self, path: str) -> None:
        self._opened = [(file, identity(file)) for file in (path, f"{path}-wal", f"{path}-shm")]
        self._guards: list[tuple[int, bytes, str]] = []
        self.moved: str | None = None
        """The file that was found to be gone, another one, or no longer locked."""
        self._how = ""
        if _ASK is not None:
            self._guard(path, *_DATABASE_LOCK)
            self._guard(f"{path}-shm", *_MEMORY_LOCK)

    def _guard(self, file: str, start: int, length: int) -> None:
        asked = _ASKED.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        self._guards.append((os.open(file, os.O_RDWR | os.O_CLOEXEC), asked, file))

    def close(self) -> None:
        """Lets go of the files, which drops SQLite's locks: after its connections were closed."""
        while self._guards:
            os.close(self._guards.pop()[0])

    @property
    def identity(self) -> Identity | None:
        """Returns the database's own identity."""
        return self._opened[0][1]

    def check(self) -> None:
        """Raises `CorruptError` if what was written may have gone nowhere."""
        for file, opened in self._opened:
            if identity(file) != opened:
                self.moved, self._how = file, "was removed or replaced while open"
        if _ASK is not None:
            for descriptor, asked, file in self._guards:
                if _ASKED.unpack(fcntl.fcntl(descriptor, _ASK, asked))[0] != fcntl.F_RDLCK:
                    self.moved, self._how = (
                        file,
                        "was opened and closed by other means, and its locks dropped",
                    )
        self.refuse_moved()

    def refuse_moved(self) -> None:
        """Raises `CorruptError` if `check` ever found something."""
        if self.moved is not None:
            raise CorruptError(
                f"{self.moved} {self._how}; what was written since then may be lost: find what else opens "
                "the database in this process, and open it again",
                place=self.moved,
            )
