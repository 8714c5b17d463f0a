"""Which file systems keep a database's locks and shared memory, and which only seem to.

A write-ahead log needs one memory shared by all processes and locks that hold between them. Network and
user-space file systems promise neither to two hosts, and databases on them were damaged.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from keepstate.errors import UnsupportedError

_UNSAFE: Final = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf", "vmhgfs",
})  # fmt: skip

MOUNTS = "/proc/self/mountinfo"
"""Where Linux lists what is mounted."""


def refuse_unsafe(folder: str) -> None:
    """Raises `UnsupportedError` if the folder is on a file system that does not keep a database safe."""
    kind = kind_of(folder)
    if kind is not None and (kind in _UNSAFE or kind.startswith("fuse.")):
        raise UnsupportedError(
            f"{folder} is on {kind}, where SQLite's locks do not hold between hosts: use a local disk, "
            "postgresql:// or redis://, or say unsafe_fs=1 if one host alone ever opens it"
        )


def kind_of(folder: str) -> str | None:
    """Returns the type of the file system that an absolute folder is on; None where it cannot be told."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        lines = Path(MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    best, kind = "", None
    for line in lines:
        fields, _, source = line.partition(" - ")
        place = _unescape(fields.split(" ")[4])
        inside = place == "/" or folder == place or folder.startswith(place + os.sep)
        if inside and len(place) >= len(best):
            best, kind = place, source.split(" ")[0]
    return kind


def _unescape(place: str) -> str:
    for code, character in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        place = place.replace(code, character)
    return place
