"""The journal's calls to the operating system: its files, its lock, and the errors of both as keepstate's.

`Files` is one class, so that tests can make its calls fail. The lock is a `flock` on the lock file next to
the journal, which one process holds while the journal is open. It belongs to the open file and ends with its
holder, however that ends. Closing a forked child's copy of the descriptor does not release it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import Final

from keepstate._files import FILE_MODE, open_beside, sync_folder
from keepstate.errors import StorageError, StoreFullError, StoreUnavailableError
from keepstate.stores.local_files import is_forbidden

_READ_BYTES = 1 << 20
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
HOLDER_BYTES: Final = 32
"""Bytes for the holder's process id; the bytes after them persist from one holder to the next."""


class Files:
    """File operations by descriptor and absolute path; each raises `OSError`."""

    def open(self, path: str, flags: int, mode: int = FILE_MODE) -> int:
        """Open a file that is not a link; child processes do not inherit it."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def read(self, descriptor: int) -> bytes:
        """Return the whole file."""
        parts: list[bytes] = []
        at = 0
        while part := os.pread(descriptor, _READ_BYTES, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def read_at(self, descriptor: int, at: int, size_bytes: int) -> bytes:
        """Return bytes at an offset, fewer at the end of the file."""
        return os.pread(descriptor, size_bytes, at)

    def size_bytes(self, descriptor: int) -> int:
        """Return the size of the file."""
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, data: memoryview, at: int) -> int:
        """Write at an offset, and return the number of bytes written."""
        return os.pwrite(descriptor, data, at)

    def sync(self, descriptor: int) -> None:
        """Wait until the written data survives a power cut."""
        if _FULL_SYNC is not None:  # macOS, whose fsync leaves data in the disk's cache
            fcntl.fcntl(descriptor, _FULL_SYNC)
        else:
            os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Truncate the file."""
        os.ftruncate(descriptor, size_bytes)

    def replace(self, path: str, by: str) -> None:
        """Move `by` to `path` with the permissions of the file there, which may be missing."""
        with suppress(FileNotFoundError):
            os.chmod(by, os.stat(path).st_mode & 0o7777)
        os.replace(by, path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.unlink(path)

    def sync_folder(self, path: str) -> None:
        """Wait until the names in a folder survive a power cut."""
        sync_folder(path)

    def is_at(self, descriptor: int, path: str) -> bool:
        """Return whether the open file is the one at `path`."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(path))
        except FileNotFoundError:
            return False

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)


SYSTEM_FILES = Files()


def storage_error(error: OSError, path: str) -> StorageError:
    """Return the error for a failed write of which nothing is in the file."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFullError(
            f"There is no room for {path} ({reason}). Nothing was written. Free space on its disk."
        )
    if is_forbidden(error):
        return StorageError(
            f"{path} cannot be written to ({reason}). Nothing was written. Make the file and its folder "
            f"writable."
        )
    return StoreUnavailableError(f"{path} failed ({reason}). Nothing was written. Try again.")


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
