"""Power cuts: possible contents of a disk after a power cut at any moment, computed from recorded writes.

The model is the system's promise and nothing more:

* Of a file, only the content at its last sync is certain. Each page or sector that was written since may have
  its content of any moment since then, and the file any length of that time. Truncating a file is one change:
  either it happened as a whole, or nothing after it did.
* Of a folder, only its names at the last sync are certain. Any of the names that were made, replaced and
  removed since may have reached the disk: those up to a moment, or some and not others.
* A sector of 512 bytes is written whole or not at all.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from keepstate_testing.faults.disk import (
    Cut,
    Disk,
    Event,
    FolderSynced,
    Opened,
    Removed,
    Replaced,
    Synced,
    Wrote,
    files_in,
)

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
_FRUITLESS: Final = 3
"""After so many goes over all moments that gave nothing new there is taken to be nothing more."""


class Marked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The number of acknowledged steps of the workload; `is_closed` after the store was closed."""

    steps: int
    is_closed: bool = False


Moment: TypeAlias = Event | Marked
Tearing: TypeAlias = Literal["none", "prefix", "pages", "sectors", "all"]
TEARINGS: Final[Sequence[Tearing]] = ("none", "prefix", "pages", "sectors", "all")


class Recorder(Disk):
    """Records the system's calls, with the workload's own marks in between."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    @classmethod
    def upon(cls, folder: Path) -> Recorder:
        """Return a recorder that knows the files that are in a folder already, and are durable."""
        recorder = cls()
        for name, data in files_in(folder).items():
            path = str(folder / name)
            recorder.moments += [Opened(path, True), Wrote(path, 0, data), Synced(path)]
        recorder.moments.append(FolderSynced(str(folder)))
        return recorder

    def did(self, event: Event) -> None:
        self.moments.append(event)

    def mark(self, steps: int, *, is_closed: bool = False) -> None:
        """Record that this number of steps was acknowledged."""
        self.moments.append(Marked(steps, is_closed))


@dataclass(frozen=True, slots=True)
class Image:
    """The content of the disk after a cut.

    `files` by name; `acknowledged` steps had been answered, `closed` of them before the store was last
    closed; `place` names the moment of the cut, and `tearing` the fate of data that was not synced.
    """

    files: dict[str, bytes]
    acknowledged: int
    closed: int
    cut: int
    place: str
    tearing: Tearing

    @property
    def digest(self) -> bytes:
        """Return what two images have in common if they hold the same names and the same bytes."""
        found = sha256()
        for name, data in sorted(self.files.items()):
            found.update(sha256(name.encode()).digest() + sha256(data).digest())
        return found.digest()

    def write(self, folder: Path) -> None:
        """Put the files into an empty folder."""
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def places(moments: Sequence[Moment], after: int = 0) -> dict[str, list[int]]:
    """Return the possible moments of a cut, named by the call just before: `"Wrote keepstate.db-wal"`.

    Each is as late as possible before the next change, so steps that were acknowledged in between count too.

    Args:
        moments: The record.
        after: The number of moments before which no cut happens.
    """
    found: dict[str, list[int]] = defaultdict(list)
    kind = None
    for index, moment in enumerate(moments):
        if isinstance(moment, Marked):
            if kind is not None:
                found[kind][-1] = index + 1
        elif index >= after:
            kind = f"{type(moment).__name__} {os.path.basename(moment.path)}"
            found[kind].append(index + 1)
    return dict(found)


def images(
    moments: Sequence[Moment],
    count: int,
    chance: random.Random,
    *,
    after: int = 0,
    seen: set[bytes] | None = None,
) -> Iterator[Image]:
    """Yield `count` different images; fewer if the record has no more.

    Args:
        moments: The record.
        count: How many.
        chance: The source of random choices.
        after: The number of moments before which no cut happens.
        seen: The digests of images that do not count again; it is added to.
    """
    kinds, seen, fruitless = places(moments, after), set[bytes]() if seen is None else seen, 0
    while count and fruitless < _FRUITLESS:
        cuts, fruitless = _in_turn(kinds, _first_answer(moments), chance), fruitless + 1
        while count and cuts:
            chosen, cuts = sorted(cuts[:count]), cuts[count:]
            for made in _cut_at(moments, chosen, chance):
                digest = made.digest
                if digest not in seen:
                    seen.add(digest)
                    count, fruitless = count - 1, 0
                    yield made


def image(moments: Sequence[Moment], cut: int, place: str, chance: random.Random) -> Image:
    """Return one possible image of a cut after this number of moments."""
    return next(_cut_at(moments, [(cut, place)], chance))


_CutAt: TypeAlias = tuple[int, str]
"""After how many moments, and the kind of the place."""


def _in_turn(kinds: Mapping[str, list[int]], answered: int, chance: random.Random) -> list[_CutAt]:
    """Return each cut once: one of each kind in turn while the kind has more, those with answers first."""
    shuffled = [[(cut, place) for cut in chance.sample(cuts, len(cuts))] for place, cuts in kinds.items()]
    for cuts in shuffled:
        cuts.sort(key=lambda cut: cut[0] < answered)
    return [cut for turn in zip_longest(*shuffled) for cut in turn if cut is not None]


def _first_answer(moments: Sequence[Moment]) -> int:
    """Return after how many moments a step has been acknowledged."""
    marks = (index + 1 for index, one in enumerate(moments) if isinstance(one, Marked) and one.steps)
    return next(marks, 0)


def _cut_at(moments: Sequence[Moment], cuts: Sequence[_CutAt], chance: random.Random) -> Iterator[Image]:
    """Yield an image of each cut; they are in the order of time."""
    folder = _Folder()
    done = acknowledged = closed = 0
    for cut, place in cuts:
        for moment in moments[done:cut]:
            if isinstance(moment, Marked):
                acknowledged = moment.steps
                closed = moment.steps if moment.is_closed else closed
            else:
                folder.apply(moment)
        done = cut
        tearing = chance.choice(TEARINGS)
        files = {name: file.torn(tearing, chance) for name, file in folder.torn(tearing, chance).items()}
        yield Image(files, acknowledged, closed, cut, place, tearing)


_Change: TypeAlias = tuple[int, bytes | None]
"""A write at a place, or, without bytes, a cut to a length."""


class _File:
    def __init__(self) -> None:
        self._sure = bytearray()
        self._since: list[_Change] = []

    def change(self, at: int, data: bytes | None) -> None:
        self._since.append((at, data))

    def sync(self) -> None:
        for change in self._since:
            _apply(self._sure, change)
        self._since.clear()

    def torn(self, tearing: Tearing, chance: random.Random) -> bytes:
        if tearing in {"none", "prefix", "all"}:
            count = len(self._since)
            kept = {"none": 0, "prefix": chance.randint(0, count), "all": count}[tearing]
            data = bytearray(self._sure)
            for change in self._since[:kept]:
                _apply(data, change)
            return bytes(data)
        return self._torn_by(PAGE_BYTES if tearing == "pages" else SECTOR_BYTES, chance)

    def _torn_by(self, grain: int, chance: random.Random) -> bytes:
        """Give every grain that changed the content of some moment, and the file the length of one."""
        data, sizes = bytearray(self._sure), [len(self._sure)]
        moments: dict[int, list[bytes]] = {}
        for at, written in self._since[: self._cuts_carried_out(chance)]:
            if written is None:
                _apply(data, (at, None))
                sizes = [at]
                moments = {
                    start: [one[: max(0, at - start)] for one in held] for start, held in moments.items()
                }
                continue
            starts = range(at - at % grain, at + len(written), grain)
            for start in starts:
                moments.setdefault(start, [bytes(data[start : start + grain])])
            _apply(data, (at, written))
            for start in starts:
                moments[start].append(bytes(data[start : start + grain]))
            sizes.append(len(data))
        size = chance.choice(sizes)
        for start, contents in moments.items():
            data[start : start + grain] = chance.choice(contents).ljust(grain, b"\0")
        return bytes(data[:size].ljust(size, b"\0"))

    def _cuts_carried_out(self, chance: random.Random) -> int:
        """Return how many changes there are up to some cut: what came after one that failed is hidden."""
        cuts = [index for index, (_, written) in enumerate(self._since) if written is None]
        return chance.choice([*cuts, len(self._since)])


def _apply(data: bytearray, change: _Change) -> None:
    at, written = change
    if written is None:
        del data[at:]
        data.extend(bytes(at - len(data)))
        return
    data.extend(bytes(max(0, at - len(data))))
    data[at : at + len(written)] = written


class _Folder:
    """Names of files, those that are sure and what became of them since."""

    def __init__(self) -> None:
        self._sure: dict[str, _File] = {}
        self._now: dict[str, _File] = {}
        self._since: list[tuple[str, str | None, _File | None]] = []
        """A name, the name that it took the file from, and the file it then was of; None once removed."""

    def apply(self, event: Event) -> None:
        match event:
            case Opened(path, is_new):
                if is_new:
                    self._rename(_name(path), None, _File())
            case Wrote(path, at, data):
                self._now[_name(path)].change(at, data)
            case Cut(path, size_bytes):
                self._now[_name(path)].change(size_bytes, None)
            case Synced(path):
                self._now[_name(path)].sync()
            case Replaced(path, by):
                self._rename(_name(path), _name(by), self._now[_name(by)])
            case Removed(path):
                self._rename(_name(path), None, None)
            case FolderSynced():
                for change in self._since:
                    _name_in(self._sure, change)
                self._since.clear()

    def _rename(self, name: str, old: str | None, file: _File | None) -> None:
        change = name, old, file
        _name_in(self._now, change)
        self._since.append(change)

    def torn(self, tearing: Tearing, chance: random.Random) -> dict[str, _File]:
        names = dict(self._sure)
        last = {"none": 0, "all": len(self._since)}.get(tearing, chance.randint(0, len(self._since)))
        is_ordered = tearing in {"none", "prefix", "all"}
        for index, change in enumerate(self._since):
            if index < last if is_ordered else chance.random() < 0.5:
                _name_in(names, change)
        return names


def _name_in(names: dict[str, _File], change: tuple[str, str | None, _File | None]) -> None:
    name, old, file = change
    if old is not None:
        names.pop(old, None)
    if file is None:
        names.pop(name, None)
    else:
        names[name] = file


def _name(path: str) -> str:
    return os.path.basename(path)
