"""The journal's calls to the operating system, in one class, so that tests can make them fail."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from keepstate._files import FILE_MODE

_READ_BYTES = 1 << 20
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


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
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

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
