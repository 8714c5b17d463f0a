"""Verifies the records of a history one by one, and what branches and tags lead to.

A record that stands alone is compared with its name. What it refers to is looked for from branches and tags
only: what nothing leads to is garbage, of which a collector may have taken a part already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from keepstate.engine.history.grafts import Grafts, decoded
from keepstate.engine.history.heads import Head
from keepstate.engine.history.objects import unpacked
from keepstate.engine.history.record import CommitRecord, read_record
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import decode_stored
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Entry
from keepstate.values.merkle import admit_object, reach
from keepstate.values.refs import Fetching, Kind, Ref, name_of

T = TypeVar("T")

_READ_AT_ONCE = 8

Read = Callable[[Sequence[bytes]], Awaitable[Sequence[Entry | None]]]
Whole = Callable[[Entry], Awaitable[bytes | None]]


def verify_commit(key: bytes, stored: bytes) -> None:
    """Raise `CorruptError` unless these bytes are the commit that the key names."""
    read_record(unpacked(stored, "the record"), key[len(layout.COMMITS) :])


def verify_object(key: bytes, stored: bytes) -> None:
    """Raise `CorruptError` unless these bytes are an object of the name in the key, of whatever kind."""
    encoding = unpacked(stored, "the record")
    if key[len(layout.STATES) :] not in {name_of(kind, encoding) for kind in Kind}:
        raise CorruptError("its content is not what it is named by")


class HistoryVerifier:
    """Follows branches and tags to all that they lead to; what one has passed, another passes over.

    Args:
        read: Returns entries of the space as of one moment.
        whole: Returns the whole value of an entry; None if it was replaced meanwhile.
    """

    def __init__(self, read: Read, whole: Whole) -> None:
        self._read, self._whole = read, whole
        self._objects = set[bytes]()
        self._lines: dict[bytes, tuple[bytes | None, int]] = {}
        """By commit that was passed: its first parent, and how many were pruned between."""
        self._broken: dict[bytes, str] = {}
        self._grafts: Grafts | None = None
        self._pruned_at: int | None = None

    async def lost_below(self, place: bytes, head: Head) -> dict[bytes, str]:
        """Return what is missing or damaged of all that a branch or tag leads to: by commit's key, in words.

        Its own key stands for its own commit. Nothing is lost if it was moved meanwhile, or something pruned.
        """
        if self._grafts is None:
            await self._read_grafts()
        fresh = await self._pass(head.commit)
        lost = {layout.COMMITS + id: self._broken[id] for id in fresh if id != head.commit}
        number = self._depth(head.commit)
        if head.commit in self._broken:
            lost[place] = f"what it leads to is not whole: {self._broken[head.commit]}"
        elif number is not None and number != head.number:
            lost[place] = f"it counts {head.number} commits, and there are {number}"
        if not lost:
            return {}
        now, grafts = await self._read([place, layout.GRAFTS])
        if now is None or head_in(now) != head or _version(grafts) != self._pruned_at:
            self._grafts = None
            return {}
        return lost

    async def _read_grafts(self) -> None:
        (entry,) = await self._read([layout.GRAFTS])
        stored = None if entry is None else await self._whole(entry)
        self._pruned_at = _version(entry)
        self._grafts = {} if stored is None else decoded(stored)

    async def _pass(self, head: bytes) -> list[bytes]:
        """Pass all commits that lead to one, and return those that are not whole of the ones just met."""
        fresh: list[bytes] = []
        todo = [head]
        while todo:
            id = todo.pop()
            if id in self._lines:
                continue
            self._lines[id] = None, 0
            try:
                record = await self._record(id)
                parents = self._follow(id, record)
                await self._serve(reach([record.root], self._objects, admit_object), record.roots())
                self._objects.difference_update(record.roots())  # another commit may not carry them
                todo += parents
            except CorruptError as error:
                self._broken[id] = str(error)
                fresh.append(id)
        return fresh

    def _follow(self, id: bytes, record: CommitRecord) -> list[bytes]:
        graft = (self._grafts or {}).get(id)
        parents = record.parents if graft is None else graft.parents
        goes_on = bool(parents) and (graft is None or graft.goes_on)
        self._lines[id] = parents[0] if goes_on else None, graft.skipped if graft else 0
        return parents

    def _depth(self, id: bytes) -> int | None:
        """Return how many commits lead to one by first parents; None if one of them is not whole."""
        count = 0
        at: bytes | None = id
        while at is not None:
            if at in self._broken:
                return None
            at, skipped = self._lines.get(at, (None, 0))
            count += 1 + skipped
        return count

    async def _record(self, id: bytes) -> CommitRecord:
        stored = await self._stored(layout.COMMITS + id)
        if stored is None:
            raise CorruptError(f"commit {id.hex()} is missing")
        return read_record(unpacked(stored, f"commit {id.hex()}"), id)

    async def _stored(self, key: bytes) -> bytes | None:
        (entry,) = await self._read([key])
        return None if entry is None else await self._whole(entry)

    async def _serve(self, work: Fetching[T], roots: dict[bytes, bytes]) -> T:
        try:
            wanted = next(work)
            while True:
                found = {ref.name: roots[ref.name] for ref in wanted if ref.name in roots}
                missing = [ref for ref in wanted if ref.name not in roots]
                for begin in range(0, len(missing), _READ_AT_ONCE):
                    found |= await self._fetched(missing[begin : begin + _READ_AT_ONCE])
                wanted = work.send(found)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _fetched(self, refs: Sequence[Ref]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for ref, entry in zip(
            refs, await self._read([layout.STATES + ref.name for ref in refs]), strict=True
        ):
            stored = None if entry is None else await self._whole(entry)
            if stored is None:
                raise CorruptError(f"object {ref.name.hex()} is missing")
            found[ref.name] = unpacked(stored, f"object {ref.name.hex()}")
        return found


def _version(entry: Entry | None) -> int | None:
    return None if entry is None else entry.version


def head_in(entry: Entry) -> Head:
    """Return where a branch or tag stands."""
    return decode_stored(entry.value, Head, "the record")
