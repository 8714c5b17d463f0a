"""Checks of where a store of one file may be opened, and the identity of the machine's last start.

A store writes its log and its lock next to its file, by the file's name. So a file with two names would have
two logs and two locks, and each would hide writes that were acknowledged through the other. A file system
shared by hosts supports neither the locks nor the shared memory of SQLite. The machine's last start dates
notes that are written without waiting for the disk.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final

from keepstate.errors import InvalidError, UnsupportedError

_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})

_UNSAFE: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf", "vmhgfs",
})  # fmt: skip

MOUNTS = "/proc/self/mountinfo"
"""The file in which Linux lists its mounts."""


UNKNOWN_START: Final = b"-" * 36


def is_forbidden(error: OSError) -> bool:
    """Return whether the system forbids this process to write there, so that a retry is useless."""
    return error.errno in _FORBIDDEN


def require_regular_file(path: str) -> None:
    """Raise `InvalidError` for a device, a pipe, a socket, or a link to a missing file."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        if os.path.islink(path):
            raise InvalidError(
                f"{path} is a symbolic link to a missing file. No file is created through a link. Pass the "
                f"file's path."
            ) from None
        return  # absent so far, or opening it reports the reason
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidError(
            f"{path} is a device, a pipe or a socket, which cannot store data. Pass the path of a file."
        )


def require_single_name(path: str) -> None:
    """Reject a file that can be opened under another path, with another log and another lock.

    Args:
        path: The file, absolute and without links. It may be absent.

    Raises:
        UnsupportedError: The file has hard links, or is itself a mount point.
    """
    if (names := _names(path)) > 1:
        raise UnsupportedError(
            f"{path} has {names} names (hard links), and each would have a log and a lock of its own. "
            "Remove the other names, copy the file, or pass unsafe_fs=1 if it is only ever opened by this "
            "name."
        )
    if path in (place for place, _ in _mounts()):
        raise UnsupportedError(
            f"{path} is itself a mount point, so its log and lock would be on another file system. Mount its "
            "folder, or pass unsafe_fs=1 if it is only ever opened by this path."
        )


def require_regular_companions(path: str) -> None:
    """Reject a log or shared memory next to a database if writing to it would change another file.

    SQLite opens these files by name and follows what it finds: it overwrites a file that has a second name,
    and blocks forever on a pipe.

    Args:
        path: The database, absolute and without links.

    Raises:
        InvalidError: One of them is a link, has a second name, or is not a file.
    """
    for companion in (f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        try:
            found = os.lstat(companion)
        except OSError:
            continue  # absent so far, or opening it reports the reason
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise InvalidError(
                f"{companion} is a link, has a second name (a hard link) or is not a file, so writing to "
                "it would change something else. Find out which is the database's own log, and remove the "
                "other."
            )


def require_safe_file_system(path: str) -> None:
    """Raise `UnsupportedError` if the file is on a file system that is not safe for a database."""
    kind = file_system_type(path)
    if kind is not None and (kind in _UNSAFE or kind.startswith("fuse.")):
        raise UnsupportedError(
            f"{path} is on {kind}, where SQLite's locks do not work between hosts. Use a local disk, "
            "postgresql:// or redis://, or pass unsafe_fs=1 if only one host ever opens it."
        )


def file_system_type(path: str) -> str | None:
    """Return the type of the file system of an absolute path, or None if it is unknown."""
    best, kind = "", None
    for place, of_place in _mounts():
        inside = place == "/" or path == place or path.startswith(place + os.sep)
        if inside and len(place) >= len(best):
            best, kind = place, of_place
    return kind


def _names(path: str) -> int:
    try:
        return os.stat(path).st_nlink
    except OSError:
        return 1  # absent so far, or opening it reports the reason


def _mounts() -> list[tuple[str, str]]:
    """Return the mount points with the types of their file systems; empty if they are unknown."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        lines = Path(MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [
        (_unescape(fields.split(" ")[4]), source.split(" ")[0])
        for fields, source in map(_split_fields, lines)
    ]


def _split_fields(line: str) -> tuple[str, str]:
    fields, _, source = line.partition(" - ")
    return fields, source


def _unescape(place: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        place = place.replace(code, character)
    return place


def machine_start() -> bytes:
    """Return an id of the machine's last start, or dashes if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return UNKNOWN_START
