"""Private files and folders, created and opened without following a symbolic link.

The files contain private conversations. A new file therefore has mode 0600 and a new folder 0700, regardless
of the umask. A file that is replaced keeps its permissions.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from keepstate.errors import InvalidError

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_MADE: Final = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOUND: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def make_folder(path: str) -> None:
    """Create a folder and its missing parents, readable by the owner only.

    Raises:
        OSError: It cannot be created, or a file has its name.
    """
    try:
        os.mkdir(path, FOLDER_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        make_folder(os.path.dirname(os.path.abspath(path)))
        make_folder(path)


def sync_folder(path: str) -> None:
    """Wait until the names in a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_file(path: str, flags: int = os.O_WRONLY, *, mode: int = FILE_MODE) -> int:
    """Create a file that does not exist, and return its descriptor.

    Raises:
        FileExistsError: The name exists, even as a dangling link.
    """
    descriptor = os.open(path, flags | _MADE, mode)
    os.fchmod(descriptor, mode)
    return descriptor


def open_beside(path: str, of: str) -> int:
    """Open or create a companion file with the permissions of another file; return its descriptor.

    Args:
        path: The file, for example a lock.
        of: The file that it belongs to, which may be missing.

    Raises:
        InvalidError: It is a link, has a second name, or is not a file, so writing could change other data.
        OSError: It cannot be opened.
    """
    while True:
        try:
            return make_file(path, os.O_RDWR, mode=mode_of(of) & 0o666)
        except FileExistsError:
            pass
        try:
            return open_own(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # deleted in between


def open_own(path: str, flags: int) -> int:
    """Open an existing file that has only one name; return its descriptor.

    Raises:
        InvalidError: It is a link, has a second name, or is not a file.
        OSError: It cannot be opened.
    """
    if os.path.islink(path):
        raise InvalidError(f"{path} is a symbolic link, which is not followed; remove it")
    descriptor = os.open(path, flags | _FOUND)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    what = "has a second name" if stat.S_ISREG(found.st_mode) else "is not a file"
    raise InvalidError(f"{path} {what}, and writing to it would change something else; remove it")


def mode_of(path: str | Path) -> int:
    """Return the permissions of a file, or those of a new one if it is missing or not a file."""
    try:
        found = os.lstat(path)
    except OSError:
        return FILE_MODE
    return found.st_mode & 0o777 if stat.S_ISREG(found.st_mode) else FILE_MODE
