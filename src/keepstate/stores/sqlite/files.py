"""The three files of a database, and whether they are still the ones that were opened.

SQLite keeps a process's locks by file, and the system drops them all when anybody in the process opens and
closes the file by other means. Another program then takes the last lock for its own, and removes a log that
is still written to.
"""

from __future__ import annotations

import os
from typing import TypeAlias

from keepstate.errors import CorruptError

Identity: TypeAlias = tuple[int, int]


def identity(path: str) -> Identity | None:
    """Returns what tells a file from all others, whatever its name; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


class Files:
    """The database, its write-ahead log and its shared memory, as they were when this was made."""

    def __init__(self, path: str) -> None:
        self._opened = [(file, identity(file)) for file in (path, f"{path}-wal", f"{path}-shm")]
        self.moved: str | None = None
        """The file that was found to be gone or another one."""

    @property
    def identity(self) -> Identity | None:
        """Returns the database's own identity."""
        return self._opened[0][1]

    def check(self) -> None:
        """Raises `CorruptError` if one of them was removed or replaced: what was written went nowhere."""
        for file, opened in self._opened:
            if identity(file) != opened:
                self.moved = file
                self.refuse_moved()

    def refuse_moved(self) -> None:
        """Raises `CorruptError` if `check` ever found one of them moved."""
        if self.moved is not None:
            raise CorruptError(
                f"{self.moved} was removed or replaced while open; what was written since then may be lost: "
                "find what else opens the database in this process, and open it again",
                place=self.moved,
            )
