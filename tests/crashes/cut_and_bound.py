"""Stories of files that another program cuts off beneath a store, and of files with two names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from keepstate_testing.faults.disk import Call, CuttingDisk, DiskFiles
from keepstate_testing.faults.vfs import beneath_sqlite

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, KeepstateError, StorageError, UnsupportedError
from keepstate.stores.base import StoreBase
from keepstate.stores.file import FileStore
from keepstate.stores.file.io import SYSTEM_FILES
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.sqlite import SqliteStore

SPACE: Final = "space"
MOMENTS: Final[tuple[tuple[Call, ...], ...]] = (("write",), ("sync",), ("write", "sync"))
"""Within a write the file is cut off before it is written to, before it is made durable, or both times."""


@contextmanager
def opened(kind: str, path: Path, disk: CuttingDisk | None = None) -> Iterator[StoreBase]:
    """Open a store above a disk, and close it."""
    files = SYSTEM_FILES if disk is None else DiskFiles(disk)
    with ExitStack() as stack:
        if kind == "file":
            store: StoreBase = FileStore(path, runner=ThreadRunner(), files=files)
        else:
            if disk is not None:
                stack.enter_context(beneath_sqlite(disk))
            store = SqliteStore(path, runner=ThreadRunner())
        finish(store.open())
        try:
            yield store
        finally:
            finish(store.close())


def acknowledged(store: StoreBase, number: int) -> bool:
    """Write one key, and return whether that was acknowledged."""
    try:
        write(store, number)
    except StorageError:
        return False
    return True


def write(store: StoreBase, number: int) -> None:
    """Write one key; raises what was answered instead of an acknowledgement."""
    outcome = finish(store.apply([Batch(SPACE, [Put(_key(number), b"%d " % number * 300)])]))[0]
    if isinstance(outcome, KeepstateError):
        raise outcome
    assert isinstance(outcome, Applied)


def cut_off(kind: str, place: Path, chance: Random) -> None:
    """Cut off the file that is written to, at a random place and moment; compare what was acknowledged."""
    path, disk = place / "store", CuttingDisk()
    ends = "store" if kind == "file" else "store-wal"
    with opened(kind, path, disk) as store:
        before = [number for number in range(chance.randrange(5, 30)) if acknowledged(store, number)]
        share = chance.choice((0.0, chance.random()))
        moments = chance.choice((*MOMENTS, None))
        if moments is None:
            os.truncate(f"{place}/{ends}", int(os.path.getsize(f"{place}/{ends}") * share))
        for call in moments or ():
            disk.cut(call, ends, share)
        after = [number for number in range(100, 110) if acknowledged(store, number)]
        copy = place / "copy"
        copy.mkdir()
        for name in ("store", "store-wal"):
            if (place / name).exists():
                shutil.copyfile(place / name, copy / name)

    assert before
    assert bool(disk.cuts) == (moments is not None)
    if after:
        left = _found(kind, copy / "store", after)
        lost = len(after) - left
        assert not lost, f"{lost} writes were acknowledged into a gap of the {kind} store"


def _found(kind: str, path: Path, numbers: list[int]) -> int:
    """Return how many of the keys a copy of the files has; none if it does not open."""
    try:
        with opened(kind, path) as store:
            read = finish(store.read(SPACE, [_key(number) for number in numbers]))
    except CorruptError:
        return 0
    return sum(entry is not None for entry in read.entries)


def two_names(place: Path) -> None:
    """Write to one journal under two names in turns, if it opens under both: no acknowledged key is lost."""
    path, link = place / "store", place / "link"
    with opened("file", path) as store:
        kept = [number for number in range(5) if acknowledged(store, number)]
        link.hardlink_to(path)
        try:
            with opened("file", link) as other:
                for number in range(10, 20, 2):
                    kept += [one for one in (number,) if acknowledged(store, one)]
                    kept += [one for one in (number + 1,) if acknowledged(other, one)]
        except UnsupportedError:
            kept += [number for number in range(10, 20) if acknowledged(store, number)]
        except KeepstateError:
            pass  # noticed later: what counts is what was acknowledged until then
    link.unlink()
    left = _found("file", path, kept)
    assert left == len(kept), f"{left} of {len(kept)} acknowledged keys are left"


def _key(number: int) -> bytes:
    return b"\x01%03d" % number
