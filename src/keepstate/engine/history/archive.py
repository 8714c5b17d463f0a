"""The file that a space's old commits were moved into, and what it tells of them.

The file is a bundle: the history as it was when something was moved last, and what was moved before. The
space names it. Its commits are read where the space no longer has them; nothing that is written builds on
them. Who has no such file at that path reads what a pruned history has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from keepstate.engine.history.archive_file import (
    Stamp,
    add_to,
    both,
    is_confirmed,
    read_archive,
    stamp_of,
)
from keepstate.engine.history.bundle import Bundle
from keepstate.engine.history.grafts import Graft
from keepstate.engine.history.record import CommitRecord, read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.key_text import shorten
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import AlreadyExistsError, CorruptError, PrunedError
from keepstate.stores.protocol import ABSENT

_NOTHING: Final = Bundle()


class Before(msgspec.Struct, frozen=True):
    """What was archived until now.

    Attributes:
        bundle: All of it.
        version: Of the entry that names the file.
        stamp: The state of the file to be written, where that is in the bundle.
    """

    bundle: Bundle
    version: int
    stamp: Stamp | None


class Archive:
    """Reads the archive of a space when something in it is asked for, once for each state of the file.

    Args:
        executor: The space.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._read: tuple[tuple[str, Stamp] | None, Bundle] = None, _NOTHING

    async def bundle(self, unit: Unit) -> Bundle:
        """Return what was archived; a bundle of nothing where there is no archive.

        Raises:
            PrunedError: The file is not here.
            CorruptError: It is damaged.
        """
        return (await self._opened(unit))[1]

    async def _opened(self, unit: Unit) -> tuple[Stamp | None, Bundle]:
        path = await self.path(unit)
        if path is None:
            return None, _NOTHING
        if not is_confirmed(path):
            raise PrunedError(
                f"what was asked for of {unit.name!r} was archived in {shorten(path)}, and no caller in "
                "this process has named that file: call keepstate.confirm_archives() with its folder, or "
                "give --archives"
            )
        try:
            stamp = stamp_of(path)
            read = self._read
            if read[0] != (path, stamp):
                self._read = read = (path, stamp), await self._executor.runner.call(read_archive, path)
        except OSError as error:
            raise PrunedError(
                f"what was asked for of {unit.name!r} was archived in {shorten(path)}, which cannot be read "
                f"here ({error.strerror}); put the file there, or read where it is"
            ) from error
        return stamp, read[1]

    async def path(self, unit: Unit) -> str | None:
        """Return where the archive is, None where there is none."""
        entry = await unit.get(layout.ARCHIVE)
        if entry is None:
            return None
        path = decode_stored(entry.value, str, "the name of the archive")
        if "\0" in path:
            raise CorruptError(f"the archive of {unit.name!r} has a name with a NUL, which no file has")
        return path

    async def commit(self, unit: Unit, id: bytes) -> CommitRecord | None:
        """Return a commit that was archived."""
        encoding = (await self.bundle(unit)).commits.get(id)
        return None if encoding is None else read_record(encoding, id)

    async def graft(
        self, unit: Unit, id: bytes, parents: Sequence[bytes], graft: Graft | None
    ) -> Graft | None:
        """Return what stands in place of a commit's parents: nothing, where these are in the archive.

        Args:
            unit: The unit.
            id: The commit.
            parents: Those that it was made with.
            graft: What the space says.
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
        """Return an object that was archived."""
        found = (await self.bundle(unit)).objects.get(name)
        return None if found is None else found[1]

    # ---- moving

    async def before(self, unit: Unit, path: str, now: Bundle) -> Before:
        """Return what was archived until now, and is to be in the file too.

        Raises:
            AlreadyExistsError: A file is there that is of another history.
        """
        entry, known = await unit.get(layout.ARCHIVE), await self.path(unit)
        version = ABSENT if entry is None else entry.version
        stamp, bundle = await self._opened(unit)
        if path == known:
            return Before(bundle, version, stamp)
        if not Path(path).exists():
            return Before(bundle, version, None)
        # A move that was ended before the space named the file has left it.
        stamp = stamp_of(path)
        other = await self._executor.runner.call(read_archive, path)
        if other.commits.keys().isdisjoint((*now.commits, *bundle.commits)):
            raise AlreadyExistsError(f"{path} holds another history than {unit.name!r}; name another file")
        return Before(both(other, bundle), version, stamp)

    async def keep(self, path: str, now: Bundle, before: Before) -> Bundle:
        """Write what is there now and what was archived before; returns both once they are on the disk."""
        return await self._executor.runner.call(add_to, path, both(now, before.bundle), before.stamp)


async def put_path(unit: Unit, path: str, before: Before) -> bool:
    """Let a space name its archive, and return whether that has what was archived until now.

    It has not where somebody else has archived since: what that has let go of may be in another file.
    """
    entry = await unit.get(layout.ARCHIVE)
    if (ABSENT if entry is None else entry.version) != before.version:
        return False
    unit.put(layout.ARCHIVE, msgspec.msgpack.encode(path))
    return True
