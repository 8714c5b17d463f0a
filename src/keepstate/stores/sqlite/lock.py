"""The lock file next to a database, which one writer of the host holds at a time.

It is held for every write and every checkpoint. SQLite's own write lock is not enough: its waiters sleep up
to 100 ms between attempts, so a busy writer starves the others for seconds, and it does not separate two
checkpoints.
"""

from __future__ import annotations

import fcntl
import os
from functools import partial
from time import sleep  # noqa: TID251  a pause reads no clock
from typing import Final

from keepstate._clock import SYSTEM_CLOCK
from keepstate._files import FILE_MODE, open_beside, open_own
from keepstate.errors import StoreUnavailableError

_LOOK_S: Final = 0.0001
_STUCK_S: Final = 1.0
_STUCK_LOOK_S: Final = 0.002
"""Pauses between attempts; a waiter tries less often once the holder seems to be stuck.

A wait in `flock` itself could not be given up. With four writing processes it also let some wait longer (54
to 68 ms in eight runs, against 43), and so did attempts that become rarer (320 ms).
"""


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

    def keep_private(self, database: str) -> None:
        """Remove other users' permissions if there is no database yet, because that gets the same ones."""
        if not os.path.exists(database):
            os.fchmod(self._fd, FILE_MODE)

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
