"""Who may write a journal: one process, which holds the lock file beside it for as long as it is open.

The lock is `flock`'s, which belongs to the opened file: it ends with its holder however that ends, and to
close a forked child's copy of it does not release it.
"""

from __future__ import annotations

import fcntl
import os
from typing import Final

from keepstate._files import open_beside
from keepstate.errors import StoreUnavailableError

HOLDER_BYTES: Final = 32
"""The holder's process id; what is behind it stays from one holder to the next."""


class ProcessLock:
    """The lock of one journal, taken when made.

    Raises:
        StoreUnavailableError: Another process holds it; the message says which.
        InvalidError: A link stands where the lock file belongs.
    """

    def __init__(self, journal: str) -> None:
        path = f"{journal}.lock"
        self.descriptor: int | None = open_beside(path, journal)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(self.descriptor, HOLDER_BYTES, 0).decode(errors="replace")
            holder = said.strip("\0 \n") or "that does not say who"
            self.leave()
            raise StoreUnavailableError(
                f"{journal} is open in process {holder}, and a journal has one process at a time: "
                "close it there, or keep what processes share in sqlite://"
            ) from None
        except BaseException:
            self.leave()
            raise
        os.pwrite(self.descriptor, (b"%d" % os.getpid()).ljust(HOLDER_BYTES - 1) + b"\n", 0)

    def release(self) -> None:
        """Let another process in, also where a forked child still has a copy of the descriptor."""
        if self.descriptor is not None:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            self.leave()

    def leave(self) -> None:
        """Close this process's descriptor and nothing else: what a forked child may do."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)
