"""The lock file beside a database, which one writer of the host holds at a time.

Held for every write and every checkpoint. SQLite's own write lock lets waiters sleep up to 100 ms between
looks, so that a busy writer starves the others for seconds, and does not keep two checkpoints apart.
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
"""Who waits looks often, and less often once nobody seems to write.

Sleeping in `flock` itself could not be given up. With four writing processes it also let some wait longer
(54 to 68 ms in eight runs, against 43), as did looks that grow rarer (320 ms).
"""


def lock_path(database: str) -> str:
    """Return the path of a database's lock file."""
    return f"{database}.lock"


class FileLock:
    """An exclusive `flock`, for one thread of the process at a time.

    The file stays when it is closed: who removes it while somebody holds it makes two locks of one.

    Args:
        database: The path of the database.

    Raises:
        InvalidError: A link stands where the lock file belongs.
    """

    def __init__(self, database: str) -> None:
        path = self._path = lock_path(database)
        try:
            self._fd = open_beside(path, database)
        except PermissionError as forbidden:
            try:  # enough to lock it; that nothing can be written shows at the database
                self._fd = open_own(path, os.O_RDONLY)
            except FileNotFoundError:
                raise forbidden from None
        self.release = partial(fcntl.flock, self._fd, fcntl.LOCK_UN)
        """Lets the next one have it, if it is held: in C, where no interrupt can come before it is done."""

    @property
    def descriptor(self) -> int:
        """The opened file's."""
        return self._fd

    def keep_private(self, database: str) -> None:
        """Take other users' permissions from the file where no database is yet: that one gets the same."""
        if not os.path.exists(database):
            os.fchmod(self._fd, FILE_MODE)

    def acquire(self, timeout_s: float) -> None:
        """Return when the lock is held.

        Raises:
            StoreUnavailableError: Another process kept it for `timeout_s`.
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
            f"another process has held {self._path} for {timeout_s:g} s; nothing was written: is it stopped?"
        )

    def close(self) -> None:
        """Close the file; a forked child may do so without taking the lock from its parent."""
        os.close(self._fd)
