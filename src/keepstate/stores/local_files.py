"""Places where a store of one file may be opened.

A store keeps its log and its lock beside its file, by the file's name. So a file with two names has two logs
and two locks, and each hides what was acknowledged in the other. A file system that is shared by hosts keeps
neither the locks nor the shared memory of SQLite.
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
"""Where Linux lists what is mounted."""


def is_forbidden(error: OSError) -> bool:
    """Whether the system lets this process not write there: to try again is no use."""
    return error.errno in _FORBIDDEN


def refuse_irregular(path: str) -> None:
    """Raise `InvalidError` for a device, a pipe or a socket, which keep nothing, and a link to nothing."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        if os.path.islink(path):
            raise InvalidError(
                f"{path} is a symbolic link to nothing, and no file is made through a link; name the file"
            ) from None
        return  # nothing is there yet, or what opens it says why it cannot
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidError(f"{path} is a device, a pipe or a socket, which keeps nothing; name a file")


def refuse_second_name(path: str) -> None:
    """Refuse a file that can be opened under another path, with another log and another lock.

    Args:
        path: The file, absolute and without links, or one that is not there yet.

    Raises:
        UnsupportedError: It has hard links, or is itself a mount point.
    """
    if (names := _names(path)) > 1:
        raise UnsupportedError(
            f"{path} has {names} names (hard links), and each would have a log and a lock of its own: remove "
            "the other names, copy the file, or say unsafe_fs=1 if it is only ever opened by this one"
        )
    if path in (place for place, _ in _mounts()):
        raise UnsupportedError(
            f"{path} is itself a mount point, and its log and lock would not be beside the file that is "
            "mounted: mount its folder, or say unsafe_fs=1 if it is only ever opened by this path"
        )


def refuse_second_name_beside(path: str) -> None:
    """Refuse a log or shared memory beside a database that writing would change elsewhere.

    SQLite opens these files by name and follows what it finds: it overwrites a file that has a second name,
    and waits at a pipe for ever.

    Args:
        path: The database, absolute and without links.

    Raises:
        InvalidError: One is a link, has a second name, or is not a file.
    """
    for beside in (f"{path}-wal", f"{path}-shm", f"{path}-journal"):
        try:
            found = os.lstat(beside)
        except OSError:
            continue  # not there yet, or what opens it says why it cannot
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise InvalidError(
                f"{beside} is a link, has a second name (a hard link) or is not a file, and writing to it "
                "would change something else: find out which is the database's own log, and remove the other"
            )


def refuse_unsafe(path: str) -> None:
    """Raise `UnsupportedError` if the file is on a file system that does not keep a database safe."""
    kind = kind_of(path)
    if kind is not None and (kind in _UNSAFE or kind.startswith("fuse.")):
        raise UnsupportedError(
            f"{path} is on {kind}, where SQLite's locks do not hold between hosts: use a local disk, "
            "postgresql:// or redis://, or say unsafe_fs=1 if one host alone ever opens it"
        )


def kind_of(path: str) -> str | None:
    """Return the type of the file system that an absolute path is on; None where it cannot be told."""
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
        return 1  # not there yet, or what opens it says why it cannot


def _mounts() -> list[tuple[str, str]]:
    """Return each mount point with the type of its file system, as far as the system tells."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        lines = Path(MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [(_unescape(fields.split(" ")[4]), source.split(" ")[0]) for fields, source in map(_halves, lines)]


def _halves(line: str) -> tuple[str, str]:
    fields, _, source = line.partition(" - ")
    return fields, source


def _unescape(place: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        place = place.replace(code, character)
    return place
