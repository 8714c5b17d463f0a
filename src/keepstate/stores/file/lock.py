"""The lock of a journal: one process holds the lock file next to it while the journal is open.

It is a `flock`, which belongs to the open file. The lock ends with its holder, however that ends. Closing a
forked child's copy of the descriptor does not release it.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from keepstate._files import open_beside
from keepstate.errors import StoreUnavailableError

HOLDER_BYTES: Final = 32
"""Bytes for the holder's process id; the bytes after them persist from one holder to the next."""


class ProcessLock:
    """The lock of one journal, acquired by the constructor.

    Raises:
        StoreUnavailableError: Another process holds the lock; the message has its process id.
        InvalidError: The lock file's path is a link.
    """

    def __init__(self, journal: str) -> None:
        path = f"{journal}.lock"
        self.descriptor: int | None = open_beside(path, journal)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(self.descriptor, HOLDER_BYTES, 0).decode(errors="replace")
            holder = said.strip("\0 \n") or "(unknown id)"
            self.leave()
            raise StoreUnavailableError(
                f"{journal} is open in process {holder}. Only one process at a time can open a journal. "
                "Close it there, or use sqlite:// to share a store between processes."
            ) from None
        except BaseException:
            self.leave()
            raise
        os.pwrite(self.descriptor, (b"%d" % os.getpid()).ljust(HOLDER_BYTES - 1) + b"\n", 0)

    def release(self) -> None:
        """Release the lock, even if a forked child still has a copy of the descriptor."""
        if self.descriptor is not None:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            self.leave()

    def leave(self) -> None:
        """Close this process's descriptor without releasing the lock, as a forked child must."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)
