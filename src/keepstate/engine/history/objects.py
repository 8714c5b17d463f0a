"""The objects of a history: asked for by name, many at once, and written by content."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol, TypeVar

from keepstate._runner import reentrant_lock
from keepstate.engine.history.record import CommitRecord
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.content_names import keyed_name
from keepstate.engine.kernel.stored import corrupt_error
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, KeepstateError, PrunedError
from keepstate.values import limits
from keepstate.values.codec import COMPRESSED, PLAIN, body_of
from keepstate.values.compression import compress
from keepstate.values.merkle import admit_object
from keepstate.values.refs import Fetching, Ref

T = TypeVar("T")

_ITEM_BYTES = 64
"""More than a reference to an item has, or the item's share of a node."""
_COMPRESSED_FROM_BYTES = 512
_STATE_BYTES = 256
_READ_BYTES = limits.READ_BYTES - limits.VALUE_BYTES
_KEPT_OBJECT_BYTES = 16 << 10
_KEPT_BYTES = 16 << 20
_KEPT_OVERHEAD_BYTES = 256
"""Of keeping one, beside its bytes."""


class Objects(Protocol):
    """Where objects are kept."""

    async def get(self, refs: Collection[Ref]) -> Mapping[bytes, bytes]:
        """Return objects by name.

        Raises:
            CorruptError: One is missing.
        """
        ...

    def put(self, name: bytes, encoding: bytes) -> None:
        """Write an object, also if it is there already: a collector may be about to take it."""
        ...


class ArchivedObjects(Protocol):
    """Objects that were moved out of the space; `engine.history.archive` reads them from a file."""

    async def object(self, unit: Unit, name: bytes) -> bytes | None:
        """Return the object of that name, or None if it was not archived."""
        ...


class UnitObjects:
    """The objects of a space, as one unit of work reads and writes them."""

    def __init__(self, unit: Unit, archive: ArchivedObjects | None = None) -> None:
        self._unit, self._archive = unit, archive
        self.loose: bytes | None = None
        """The commit that is read, if no branch or tag led to it."""
        self._key = key_maker(unit)

    async def get(self, refs: Collection[Ref]) -> Mapping[bytes, bytes]:
        """Return objects by name, each compared with it: not every store notices what its disk has changed.

        Raises:
            CorruptError: One is missing or damaged.
        """
        found: dict[bytes, bytes] = {}
        for group in _groups(refs):
            entries = await self._unit.objects([self._key(ref.name) for ref in group])
            for ref, entry in zip(group, entries, strict=True):
                if entry is not None:
                    data = unpacked(await self._unit.value(entry), f"object {ref.name.hex()}")
                else:
                    data = await self._archived(ref.name)
                admit_object(ref, data)
                found[ref.name] = data
        return found

    def put(self, name: bytes, encoding: bytes) -> None:
        """Write an object."""
        self._unit.put_object(self._key(name), packed(encoding))

    async def _archived(self, name: bytes) -> bytes:
        data = None if self._archive is None else await self._archive.object(self._unit, name)
        if data is None:
            raise await self._missing(name)
        return data

    async def _missing(self, name: bytes) -> KeepstateError:
        await self._unit.verify()  # else the branch moved on meanwhile, and what it had was collected
        space = self._unit.space
        # Commits are collected before what they refer to.
        if self.loose and (await self._unit.objects([layout.COMMITS + self.loose]))[0] is None:
            return PrunedError(f"object {name.hex()} of {space!r} was collected; no branch or tag led to it")
        return CorruptError(
            f"object {name.hex()} of {space!r} is missing; restore it from a copy", space=space
        )


def packed(encoding: bytes) -> bytes:
    """Return an object as it is stored: compressed from far fewer bytes on than other values.

    There are many of them, and most are text that is written once and seldom read.
    """
    if len(encoding) > _COMPRESSED_FROM_BYTES and (small := compress(encoding)) is not None:
        return COMPRESSED + small
    return PLAIN + encoding


def packed_record(record: CommitRecord, encoding: bytes) -> bytes:
    """Return a commit as it is stored: compressed if there is a state in it, and not only names."""
    return packed(encoding) if len(record.root) > _STATE_BYTES else PLAIN + encoding


def unpacked(stored: bytes, place: str) -> bytes:
    """Return the encoding in a stored object or commit; neither ever holds a pickle."""
    try:
        return body_of(stored)
    except (CorruptError, InvalidError) as error:
        raise corrupt_error(place, error) from error


def key_maker(unit: Unit) -> Callable[[bytes], bytes]:
    """Return what makes an object's key of its name; an encrypted store hides the name."""
    store, space = unit.store, unit.space
    return lambda name: layout.STATES + (keyed_name(store, space, name) or name)


def _groups(refs: Collection[Ref]) -> Iterator[list[Ref]]:
    """Yield refs in groups whose objects fit into one read."""
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


class Kept:
    """Small objects that outlast the work which fetched or made them: the nodes on the way to a change.

    Args:
        shared: Those of all spaces of a handle, which have one room together.
        space: Whose these are; another space's bytes are nothing to rely on.
    """

    def __init__(self, shared: SharedObjects, space: str) -> None:
        self._shared, self._space = shared, space

    def get(self, name: bytes) -> bytes | None:
        """Return an object, if it is still kept."""
        return self._shared.get((self._space, name))

    def add(self, objects: Mapping[bytes, bytes]) -> None:
        """Keep those that are small."""
        for name, data in objects.items():
            if len(data) <= _KEPT_OBJECT_BYTES:
                self._shared.add((self._space, name), data)


class SharedObjects:
    """Objects of many spaces; what nobody has asked for the longest gives way."""

    def __init__(self) -> None:
        self._objects: dict[tuple[str, bytes], bytes] = {}
        self._size_bytes = 0
        self._lock = reentrant_lock()

    def get(self, key: tuple[str, bytes]) -> bytes | None:
        """Return an object, if it is still here."""
        with self._lock:
            data = self._objects.pop(key, None)
            if data is not None:
                self._objects[key] = data
            return data

    def add(self, key: tuple[str, bytes], data: bytes) -> None:
        """Take an object in."""
        with self._lock:
            if self._objects.pop(key, None) is None:
                self._size_bytes += len(data) + _KEPT_OVERHEAD_BYTES
            self._objects[key] = data
            while self._size_bytes > _KEPT_BYTES:
                oldest = self._objects.pop(next(iter(self._objects)))
                self._size_bytes -= len(oldest) + _KEPT_OVERHEAD_BYTES


class Known:
    """Objects at hand, over those of a store: what was fetched once is not fetched again.

    Args:
        objects: Where all are.
        kept: Those that are at hand from earlier work.
    """

    def __init__(self, objects: Objects, kept: Kept | None = None) -> None:
        self._objects, self._kept = objects, kept
        self._here: dict[bytes, bytes] = {}

    def add(self, objects: Mapping[bytes, bytes]) -> None:
        """Take objects that were made, or came along with a commit."""
        self._here.update(objects)
        if self._kept is not None:
            self._kept.add(objects)

    async def serve(self, work: Fetching[T], *, keep: bool = True) -> T:
        """Return the work's result, giving it the objects that it asks for."""
        try:
            wanted = next(work)
            while True:
                missing = [ref for ref in wanted if not self._has(ref.name)]
                fetched: Mapping[bytes, bytes] = await self._objects.get(missing) if missing else {}
                if keep and fetched:
                    self.add(fetched)
                wanted = work.send(
                    {ref.name: fetched.get(ref.name) or self._here[ref.name] for ref in wanted}
                )
        except StopIteration as end:
            result: T = end.value
            return result

    def _has(self, name: bytes) -> bool:
        if name not in self._here and self._kept is not None:
            data = self._kept.get(name)
            if data is not None:
                self._here[name] = data
        return name in self._here
