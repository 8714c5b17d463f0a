"""Tracks the versions that each task has read. Tasks that share one object keep separate read sets.

A context belongs to one task or thread. A task started inside another begins with a copy of the parent's read
set. A read in a short-lived task, such as that of `asyncio.wait_for`, has no read set to record to, so it is
shared with all contexts that have none for the value. After its first write a context keeps its own entry,
and its child tasks update this entry by their reads.

Old entries are dropped, so that the memory of a long-running server is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final
from weakref import ref

from keepstate._runner import Lock

MOST: Final = 65_536
"""Number of most recently read values that are remembered, by each context and by the shared set."""


@dataclass(slots=True)
class _Note:
    """A version, and whether reads in child tasks update it."""

    version: int
    is_shared: bool = False


_Item = tuple[str, str]


class _Notes:
    """An immutable read set of one context, which child contexts share and which is cheap to extend.

    It is a stack of layers, each at least twice as large as the one above, so an entry is copied log(n)
    times. None in a layer marks a dropped entry. When the lowest layer has twice the entries to remember, its
    oldest are dropped.
    """

    __slots__ = ("_layers",)

    def __init__(self, layers: tuple[Mapping[_Item, _Note | None], ...] = ()) -> None:
        self._layers = layers

    def get(self, item: _Item) -> _Note | None:
        """Return the entry of an item, or None."""
        return next((layer[item] for layer in self._layers if item in layer), None)

    def all_items(self) -> set[_Item]:
        """Return the items that have, or had, an entry."""
        return {item for layer in self._layers for item in layer}

    def with_notes(self, notes: Mapping[_Item, _Note | None], most: int) -> _Notes:
        """Return a read set with these entries replaced, and at least the last `most` entries retained."""
        top, under = dict(notes), self._layers
        while under and len(under[0]) < 2 * len(top):
            older = {item: note for item, note in under[0].items() if item not in top}
            top, under = {**older, **top}, under[1:]
        if not under:
            top = {item: note for item, note in top.items() if note is not None}
            if len(top) >= 2 * most:
                top = dict(islice(top.items(), len(top) - most, None))
        return _Notes((top, *under))


_NONE = _Notes()

_known: ContextVar[Mapping[ref[ReadSet], _Notes]] = ContextVar(
    "keepstate_reads",
    default=MappingProxyType({}),
)


class ReadSet:
    """The versions of values that were read.

    Args:
        most: Minimum number of most recently read values to remember.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, Lock()
        self._shared: dict[_Item, int] = {}  # for reads in short-lived tasks; ordered by recency

    def record_read(self, owner: str, key: str, version: int) -> None:
        """Record the version of a read."""
        item = owner, key
        before = self._own().get(item)
        if before is None:
            self._share(item, version)
        elif before.is_shared:
            before.version = version
        self._note({item: _Note(version)})

    def expected(self, owner: str, key: str) -> int | None:
        """Return the version that was read last here, or None."""
        noted = self._own().get((owner, key))
        return self._shared.get((owner, key)) if noted is None else noted.version

    def record_write(self, owner: str, key: str, version: int) -> None:
        """Record the version of a write over a value that was read; other contexts have not read it."""
        item = owner, key
        noted = self._own().get(item)
        if noted is not None or item in self._shared:
            self._note({item: _Note(version, is_shared=noted is None or noted.is_shared)})

    def record_conflict(self, owner: str, key: str) -> None:
        """Record that the version read is outdated, so that it must be read again in this context."""
        item = owner, key
        if self._own().get(item) is None and (shared := self._shared.get(item)) is not None:
            self._note({item: _Note(shared, is_shared=True)})

    def forget(self, owner: str, key: str | None = None) -> None:
        """Drop the entry of one value, or all entries of an owner."""
        items = {(owner, key)} if key is not None else self._items_of(owner)
        with self._lock:
            for item in items:
                self._shared.pop(item, None)
        if known := [item for item in items if self._own().get(item) is not None]:
            self._note(dict.fromkeys(known))

    def _share(self, item: _Item, version: int) -> None:
        with self._lock:
            self._shared.pop(item, None)
            self._shared[item] = version
            if len(self._shared) > self._most:
                del self._shared[next(iter(self._shared))]

    def _items_of(self, owner: str) -> set[_Item]:
        with self._lock:
            shared = list(self._shared)
        return {item for item in {*self._own().all_items(), *shared} if item[0] == owner}

    def _own(self) -> _Notes:
        return _known.get().get(ref(self), _NONE)

    def _note(self, notes: Mapping[_Item, _Note | None]) -> None:
        others = {reader: known for reader, known in _known.get().items() if reader() is not None}
        _known.set(MappingProxyType({**others, ref(self): self._own().with_notes(notes, self._most)}))
