"""The file that a space's old commits were moved into, and what it tells of them.

The file is a bundle: the history as it was when something was moved last, and what was moved before. The
space names it. Its commits are read where the space no longer has them; nothing that is written builds on
them. Who has no such file at that path reads what a pruned history has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from keepstate.engine import layout
from keepstate.engine.history.bundle import Bundle, read_bundle, write_bundle
from keepstate.engine.history.grafts import Graft
from keepstate.engine.history.record import CommitRecord, read_record
from keepstate.engine.scope import Scope
from keepstate.engine.stored import opened
from keepstate.engine.unit import Unit
from keepstate.errors import AlreadyExistsError, PrunedError

_NOTHING: Final = Bundle()


class Archive:
    """Reads the archive of a space when something in it is asked for, once for each state of the file.

    Args:
        scope: The space.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._read: tuple[object, Bundle] = None, _NOTHING

    async def bundle(self, unit: Unit) -> Bundle:
        """Returns what was archived; a bundle of nothing where there is no archive.

        Raises:
            PrunedError: The file is not here.
            CorruptError: It is damaged.
        """
        path = await self.path(unit)
        if path is None:
            return _NOTHING
        try:
            found = os.stat(path)
        except OSError as error:
            raise PrunedError(
                f"what was asked for of {unit.name!r} was archived in {path}, which cannot be read here "
                f"({error.strerror}); put the file there, or read where it is"
            ) from error
        state = path, found.st_mtime_ns, found.st_size, found.st_ino
        if self._read[0] != state:
            self._read = state, await self._scope.runner.call(read_bundle, path)
        return self._read[1]

    async def path(self, unit: Unit) -> str | None:
        """Returns where the archive is, None where there is none."""
        entry = await unit.get(layout.ARCHIVE)
        return None if entry is None else opened(entry.value, str, "the name of the archive")

    async def commit(self, unit: Unit, id: bytes) -> CommitRecord | None:
        """Returns a commit that was archived."""
        encoding = (await self.bundle(unit)).commits.get(id)
        return None if encoding is None else read_record(encoding, id)

    async def graft(self, unit: Unit, id: bytes, graft: Graft | None) -> Graft | None:
        """Returns what stands in place of a commit's parents: nothing, where these were archived with it."""
        bundle = await self.bundle(unit)
        return bundle.grafts.get(id) if id in bundle.commits else graft

    async def object(self, unit: Unit, name: bytes) -> bytes | None:
        """Returns an object that was archived."""
        found = (await self.bundle(unit)).objects.get(name)
        return None if found is None else found[1]

    # ---- moving

    async def before(self, unit: Unit, path: str, now: Bundle) -> Bundle:
        """Returns what was archived until now, and is to be in the file too.

        Raises:
            AlreadyExistsError: A file is there that is of another history.
        """
        before, known = await self.bundle(unit), await self.path(unit)
        if path == known or not Path(path).exists():
            return before
        # A move that was ended before the space named the file has left it.
        other = await self._scope.runner.call(read_bundle, path)
        if now.commits.keys().isdisjoint(other.commits):
            raise AlreadyExistsError(f"{path} holds another history than {unit.name!r}; name another file")
        return _both(other, before)

    async def keep(self, path: str, now: Bundle, before: Bundle) -> Bundle:
        """Writes what is there now and what was archived before; returns both once they are on the disk."""
        whole = _both(now, before)
        await self._scope.runner.call(_write, whole, path)
        return whole


def _both(now: Bundle, before: Bundle) -> Bundle:
    """Returns a history with what it had before: a commit that was archived has lost no parents since."""
    grafts = {id: graft for id, graft in now.grafts.items() if id not in before.commits}
    return Bundle(
        now.branches,
        now.tags,
        {**grafts, **before.grafts},
        {**before.commits, **now.commits},
        {**before.objects, **now.objects},
    )


def put_path(unit: Unit, path: str) -> None:
    """Lets a space name its archive."""
    unit.put(layout.ARCHIVE, msgspec.msgpack.encode(path))


def _write(bundle: Bundle, path: str) -> None:
    write_bundle(bundle, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too must survive a power cut, before anything is deleted
    finally:
        os.close(folder)
