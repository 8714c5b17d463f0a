"""The archive of a space: a file with its old commits.

The file is a bundle with the history as it was when commits were last moved, and all commits that were moved
before. The space stores its path. Archived commits are read from the file, and nothing that is written is
based on them. On a machine without the file, the history reads as pruned.

The file only grows. A process that writes it merges the content of the file into its own, one process at a
time. The space cannot ensure that, because copies of a space name the same file and do not know each other.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from keepstate._files import open_beside
from keepstate.engine.history.bundle import Bundle, bundle_of, check_target, is_bundle, write_bundle
from keepstate.engine.history.record import CommitRecord, Graft, read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_path
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import decode_stored, shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    PrunedError,
    UnsupportedError,
)
from keepstate.stores.protocol import ABSENT

_NOTHING: Final = Bundle()
_BEGIN_BYTES: Final = 64
_confirmed: set[str] = set()
"""Files that callers of this process have named, and folders with a separator at their end."""

Stamp: TypeAlias = tuple[int, int, int]
"""Identifies one state of a file: time of change, size, inode."""


class Before(msgspec.Struct, frozen=True):
    """The history that was archived before.

    Attributes:
        bundle: The archived history.
        version: The version of the entry with the path.
        stamp: The state of the target file that is in the bundle; None if it is not in it.
    """

    bundle: Bundle
    version: int
    stamp: Stamp | None


class Archive:
    """Reads the archive of a space on demand, once for each state of the file."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._read: tuple[tuple[str, Stamp] | None, Bundle] = None, _NOTHING

    async def bundle(self, unit: Unit) -> Bundle:
        """Return the archived history; an empty bundle without an archive.

        Raises:
            PrunedError: The file is not on this machine.
            CorruptError: The file is damaged.
        """
        return (await self._open(unit))[1]

    async def _open(self, unit: Unit) -> tuple[Stamp | None, Bundle]:
        path = await self.path(unit)
        if path is None:
            return None, _NOTHING
        if not is_confirmed(path):
            raise PrunedError(
                f"this part of {unit.name!r} was archived in {shorten(path)}, and no caller in this process "
                "has named that file: call keepstate.confirm_archives() with its folder, or pass --archives"
            )
        try:
            stamp = stamp_of(path)
            read = self._read
            if read[0] != (path, stamp):
                self._read = read = (path, stamp), await self._executor.runner.call(read_archive, path)
        except OSError as error:
            raise PrunedError(
                f"this part of {unit.name!r} was archived in {shorten(path)}, which cannot be read "
                f"here ({error.strerror}); copy the file there, or read on the machine that has it"
            ) from error
        return stamp, read[1]

    async def path(self, unit: Unit) -> str | None:
        """Return the path of the archive, or None if there is none."""
        entry = await unit.get(layout.ARCHIVE)
        if entry is None:
            return None
        path = decode_stored(entry.value, str, "the name of the archive")
        if "\0" in path:
            raise CorruptError(f"the archive of {unit.name!r} has a name with a NUL, which no file has")
        return path

    async def commit(self, unit: Unit, id: bytes) -> CommitRecord | None:
        """Return an archived commit, or None."""
        encoding = (await self.bundle(unit)).commits.get(id)
        return None if encoding is None else read_record(encoding, id)

    async def graft(
        self, unit: Unit, id: bytes, parents: Sequence[bytes], graft: Graft | None
    ) -> Graft | None:
        """Return the graft of a commit; None if its parents are in the archive.

        Args:
            unit: The unit.
            id: The commit.
            parents: Its original parents.
            graft: Its graft in the space.
        """
        try:
            bundle = await self.bundle(unit)
        except PrunedError:
            return graft  # without the file, the history is a pruned one
        if id in bundle.commits:
            graft = bundle.grafts.get(id)
        # A commit that was made while its parents were archived is not in the file, and has lost them.
        if graft is None or all(parent in bundle.commits or parent in graft.parents for parent in parents):
            return None
        return graft

    async def object(self, unit: Unit, name: bytes) -> bytes | None:
        """Return an archived object, or None."""
        found = (await self.bundle(unit)).objects.get(name)
        return None if found is None else found[1]

    # ---- writing

    async def before(self, unit: Unit, path: str, now: Bundle) -> Before:
        """Return the commits and objects of the former archive, which the new file contains too.

        Raises:
            AlreadyExistsError: The file exists and belongs to another history.
        """
        entry, known = await unit.get(layout.ARCHIVE), await self.path(unit)
        version = ABSENT if entry is None else entry.version
        stamp, bundle = await self._open(unit)
        if path == known:
            return Before(bundle, version, stamp)
        if not Path(path).exists():
            return Before(bundle, version, None)
        # The file may be that of a call that was interrupted before the space stored its path.
        stamp = stamp_of(path)
        other = await self._executor.runner.call(read_archive, path)
        if other.commits.keys().isdisjoint((*now.commits, *bundle.commits)):
            raise AlreadyExistsError(f"{path} holds another history than {unit.name!r}; name another file")
        return Before(other.joined(bundle), version, stamp)

    async def write(self, path: str, now: Bundle, before: Before) -> Bundle:
        """Write the current history and the archived one. Return both once they are on disk."""
        return await self._executor.runner.call(add_to, path, now.joined(before.bundle), before.stamp)


async def put_path(unit: Unit, path: str, before: Before) -> bool:
    """Store the path of the archive, and return whether the file has everything that was archived before.

    It does not if another caller has archived meanwhile, perhaps into another file.
    """
    entry = await unit.get(layout.ARCHIVE)
    if (ABSENT if entry is None else entry.version) != before.version:
        return False
    unit.put(layout.ARCHIVE, msgspec.msgpack.encode(path))
    return True


# ---- paths that may be read


def confirm_archives(folder: str | os.PathLike[str]) -> None:
    """Let this process read the archives in a folder and its subfolders.

    A space names its archive by a path, and a row of a store may have been changed. So a path is opened only
    if this process has archived into that very file, or has confirmed a folder around it.

    Args:
        folder: The folder. Links in its path are resolved now.

    Raises:
        InvalidError: It is not a folder.
    """
    path = os.path.realpath(check_path("folder", folder))
    if not os.path.isdir(path):
        raise InvalidError(f"{folder} is not a folder; pass the folder that the archives are in")
    _confirmed.add(os.path.join(path, ""))


def confirm_file(path: str) -> None:
    """Let this process read one archive, because a caller has named it."""
    _confirmed.add(os.path.realpath(path))


def is_confirmed(path: str) -> bool:
    """Return whether a caller has named the file, or a folder around it."""
    path = os.path.realpath(path)
    return any(path == known or (known.endswith(os.sep) and path.startswith(known)) for known in _confirmed)


# ---- the file


def stamp_of(path: str) -> Stamp:
    """Return the stamp of a file.

    Raises:
        OSError: The file does not exist.
    """
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_archive(path: str) -> Bundle:
    """Read a file that a space names: a regular file that begins as a bundle, up to its size when opened.

    Raises:
        OSError: The file cannot be opened, or is a link.
        InvalidError: The file is not a bundle.
        CorruptError: The file is damaged or incomplete.
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


def add_to(path: str, bundle: Bundle, included: Stamp | None) -> Bundle:
    """Write a history together with the content of the file, and return both once they are on disk.

    Args:
        path: The file.
        bundle: The history.
        included: The state of the file that the history includes already.

    Raises:
        AlreadyExistsError: The file belongs to another history.
        InvalidError: The file cannot be written.
        UnsupportedError: The file system does not support locks.
    """
    target = check_target(path)
    with _locked(target.with_name(f".{target.name}.lock")):
        if target.exists() and stamp_of(path) != included:
            content = read_archive(path)
            if bundle.commits.keys().isdisjoint(content.commits):
                raise AlreadyExistsError(f"{path} holds another history; name another file")
            bundle = bundle.joined(content)
        write_bundle(bundle, path)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name must survive a power cut too, before anything is deleted
        finally:
            os.close(folder)
    return bundle


@contextmanager
def _locked(lock: Path) -> Generator[None]:
    """Let one process in at a time. The lock of a killed process is released."""
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
            # The previous holder removes the file, so the next process may have created another one.
            if _is_at(descriptor, lock):
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
