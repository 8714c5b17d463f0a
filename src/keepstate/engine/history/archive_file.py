"""An archive on the disk. It only grows: who writes it joins what is there, one process after the other.

The space alone cannot see to that: its copies name the same file, and none of them knows of the others.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from keepstate._files import open_beside
from keepstate.engine.history.bundle import Bundle, admit_target, bundle_of, is_bundle, write_bundle
from keepstate.engine.history.record import read_record
from keepstate.engine.kernel.arguments import check_path
from keepstate.errors import AlreadyExistsError, InvalidError, UnsupportedError

_BEGIN_BYTES: Final = 64
_confirmed: set[str] = set()
"""Files, and folders with a separator at their end, that callers of this process have named."""

Stamp: TypeAlias = tuple[int, int, int]
"""Tells one state of a file from the others."""


def stamp_of(path: str) -> Stamp:
    """Return the stamp of a file.

    Raises:
        OSError: It is not here.
    """
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def confirm_archives(folder: str | os.PathLike[str]) -> None:
    """Let this process read the archives in a folder, and in those below it, that spaces name.

    A space names its archive by a path, and a row of a store may have been changed. So a path is opened only
    if this process has archived into that very file, or has confirmed a folder around it.

    Args:
        folder: The folder; links in its path are resolved now.

    Raises:
        InvalidError: It is not a folder.
    """
    place = os.path.realpath(check_path("folder", folder))
    if not os.path.isdir(place):
        raise InvalidError(f"{folder} is not a folder; give the one that the archives are in")
    _confirmed.add(os.path.join(place, ""))


def confirm_file(path: str) -> None:
    """Let this process read one archive, because it was named by a caller."""
    _confirmed.add(os.path.realpath(path))


def is_confirmed(path: str) -> bool:
    """Whether a caller has named the file, or a folder around it."""
    place = os.path.realpath(path)
    return any(place == one or (one.endswith(os.sep) and place.startswith(one)) for one in _confirmed)


def read_archive(path: str) -> Bundle:
    """Read a file that a space names: a regular one that begins as a bundle, as long as it was when opened.

    Raises:
        OSError: It cannot be opened, or is a link.
        InvalidError: It is not a bundle.
        CorruptError: It is damaged, or lacks something.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise InvalidError(f"{path} cannot be read: it is not a regular file; name the archive of a history")
    with open(descriptor, "rb") as file:
        begin = file.read(_BEGIN_BYTES)
        rest = file.read(max(found.st_size - len(begin), 0)) if is_bundle(begin) else b""
    return bundle_of(begin + rest, path)


def add_to(path: str, bundle: Bundle, joined: Stamp | None) -> Bundle:
    """Write a history and what the file has beside it, and return both once they are on the disk.

    Args:
        path: The file.
        bundle: The history.
        joined: The state of the file that is in the history already.

    Raises:
        AlreadyExistsError: The file is of another history.
        InvalidError: It cannot be written.
        UnsupportedError: Its file system knows no locks.
    """
    target = admit_target(path)
    with _alone(target.with_name(f".{target.name}.lock")):
        if target.exists() and stamp_of(path) != joined:
            there = read_archive(path)
            if bundle.commits.keys().isdisjoint(there.commits):
                raise AlreadyExistsError(f"{path} holds another history; name another file")
            bundle = both(bundle, there)
        write_bundle(bundle, path)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name too must survive a power cut, before anything is deleted
        finally:
            os.close(folder)
    return bundle


def both(one: Bundle, other: Bundle) -> Bundle:
    """Return all that two bundles of a history have, with the branches of the first.

    A commit whose parents are in one of them has no graft: the other was without, or was made when that let
    go of them.
    """
    commits = {**other.commits, **one.commits}
    grafts = {**one.grafts, **other.grafts}
    return Bundle(
        one.branches,
        one.tags,
        {id: graft for id, graft in grafts.items() if id in commits and not _is_whole(id, commits)},
        commits,
        {**other.objects, **one.objects},
    )


def _is_whole(id: bytes, commits: Mapping[bytes, bytes]) -> bool:
    return all(parent in commits for parent in read_record(commits[id], id).parents)


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Let one at a time in; whoever is killed inside lets the next one in."""
    while True:
        try:
            descriptor = open_beside(str(lock), str(lock))
        except OSError as error:
            raise InvalidError(f"{lock.parent} cannot be written to: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                raise UnsupportedError(
                    f"{lock.parent} is on a file system without locks ({error.strerror}); keep the archive "
                    "on another one"
                ) from error
            if _is_at(descriptor, lock):  # else who had it has removed it, and the next one has made another
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
