"""The objects of a history: asked for by name, many at once, and written by content."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, TypeVar

from keepstate.engine import layout
from keepstate.engine.unit import Unit
from keepstate.errors import CorruptError
from keepstate.stores.protocol import NamesObjects
from keepstate.values import limits
from keepstate.values.codec import body_of, packed
from keepstate.values.refs import Fetching, Ref

T = TypeVar("T")

_ITEM_BYTES = 64
"""More than a reference to an item has, or the item's share of a node."""
_READ_BYTES = limits.READ_BYTES - limits.VALUE_BYTES


class Objects(Protocol):
    """Where objects are kept."""

    async def get(self, refs: Collection[Ref]) -> Mapping[bytes, bytes]:
        """Returns objects by name.

        Raises:
            CorruptError: One is missing.
        """
        ...

    def put(self, name: bytes, encoding: bytes) -> None:
        """Writes an object, also if it is there already: a collector may be about to take it."""
        ...


class UnitObjects:
    """The objects of a space, as one unit of work reads and writes them."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        store = unit.store
        self._names = store if isinstance(store, NamesObjects) else None

    async def get(self, refs: Collection[Ref]) -> Mapping[bytes, bytes]:
        """Returns objects by name."""
        found: dict[bytes, bytes] = {}
        for group in _groups(refs):
            entries = await self._unit.objects([self._key(ref.name) for ref in group])
            for ref, entry in zip(group, entries, strict=True):
                if entry is None:
                    raise await self._missing(ref.name)
                found[ref.name] = body_of(await self._unit.value(entry))
        return found

    def put(self, name: bytes, encoding: bytes) -> None:
        """Writes an object."""
        self._unit.put_object(self._key(name), packed(encoding))

    async def _missing(self, name: bytes) -> CorruptError:
        await self._unit.verify()  # else the branch moved on meanwhile, and what it had was collected
        space = self._unit.space
        return CorruptError(
            f"object {name.hex()} of {space!r} is missing; restore it from a copy", space=space
        )

    def _key(self, name: bytes) -> bytes:
        if self._names is not None:
            name = self._names.object_name(self._unit.space, name)
        return layout.STATES + name


def _groups(refs: Collection[Ref]) -> Iterator[list[Ref]]:
    """Yields refs in groups whose objects fit into one read."""
    group: list[Ref] = []
    size = 0
    for ref in refs:
        own = min(ref.size_bytes + _ITEM_BYTES * (ref.count + 1), limits.VALUE_BYTES)
        if group and (len(group) == limits.READ_KEYS or size + own > _READ_BYTES):
            yield group
            group, size = [], 0
        group.append(ref)
        size += own
    if group:
        yield group


class Known:
    """Objects at hand, over those of a store: what was fetched once is not fetched again."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._here: dict[bytes, bytes] = {}

    def add(self, objects: Mapping[bytes, bytes]) -> None:
        """Takes objects that were made, or came along with a commit."""
        self._here.update(objects)

    async def serve(self, work: Fetching[T]) -> T:
        """Returns the work's result, giving it the objects that it asks for."""
        try:
            wanted = next(work)
            while True:
                missing = [ref for ref in wanted if ref.name not in self._here]
                if missing:
                    self._here.update(await self._objects.get(missing))
                wanted = work.send({ref.name: self._here[ref.name] for ref in wanted})
        except StopIteration as end:
            result: T = end.value
            return result
