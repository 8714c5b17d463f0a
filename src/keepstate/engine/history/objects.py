"""The objects of a history: fetched by name, many at once, and written under their content's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TypeVar

from keepstate._runner import reentrant_lock
from keepstate.engine.history.record import CommitRecord
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import keyed_name
from keepstate.engine.kernel.stored import corrupt_error
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, KeepstateError, PrunedError
from keepstate.values import limits
from keepstate.values.codec import COMPRESSED, PLAIN, body_of
from keepstate.values.compression import compress
from keepstate.values.merkle import check_object
from keepstate.values.refs import Fetching, Ref
from keepstate.values.touched import UnloadedError

T = TypeVar("T")

_ITEM_BYTES = 64
"""At least the size of a reference to an item, or of the item's share of a node."""
_COMPRESSED_FROM_BYTES = 512
_STATE_BYTES = 256
_READ_BYTES = limits.READ_BYTES - limits.VALUE_BYTES
_CACHED_OBJECT_BYTES = 16 << 10
_CACHE_BYTES = 16 << 20
_CACHED_RECORDS = 1_024
_CACHE_OVERHEAD_BYTES = 256
"""Memory of one cached object in addition to its bytes."""


class ObjectCache:
    """An LRU cache of small objects, such as the nodes on the path to a change.

    All spaces of a store share it, but each object is cached for one space only, because a space does not
    rely on the bytes of another one.
    """

    def __init__(self) -> None:
        self._objects: dict[tuple[str, bytes], bytes] = {}
        self._records: dict[tuple[str, bytes], CommitRecord] = {}
        self._size_bytes = 0
        self._lock = reentrant_lock()

    def record(self, space: str, id: bytes) -> CommitRecord | None:
        """Return a commit by name, or None if it is not cached."""
        return self._records.get((space, id))

    def add_record(self, space: str, id: bytes, record: CommitRecord) -> None:
        """Cache a commit, unless it carries much. The oldest ones give way."""
        if len(record.root) + sum(map(len, record.carried)) > _CACHED_OBJECT_BYTES:
            return
        with self._lock:
            self._records.pop((space, id), None)
            self._records[space, id] = record
            while len(self._records) > _CACHED_RECORDS:
                del self._records[next(iter(self._records))]

    def get(self, space: str, name: bytes) -> bytes | None:
        """Return an object, or None if it is not cached."""
        key = space, name
        with self._lock:
            data = self._objects.pop(key, None)
            if data is not None:
                self._objects[key] = data
            return data

    def add(self, space: str, objects: Mapping[bytes, bytes]) -> None:
        """Cache the small ones among some objects."""
        known = self._objects
        fresh = {
            key: data
            for name, data in objects.items()
            if len(data) <= _CACHED_OBJECT_BYTES and (key := (space, name)) not in known
        }
        if not fresh:
            return
        with self._lock:
            for key, data in fresh.items():
                if key not in known:
                    self._size_bytes += len(data) + _CACHE_OVERHEAD_BYTES
                known[key] = data
            while self._size_bytes > _CACHE_BYTES and known:
                oldest = known.pop(next(iter(known)))
                self._size_bytes -= len(oldest) + _CACHE_OVERHEAD_BYTES


class HistoryObjects:
    """The objects of a space, as one unit of work reads and writes them. Each is fetched at most once.

    Args:
        unit: The unit.
        cache: Objects of earlier units.
        archived: Returns an archived object by name, or None if it was not archived.
    """

    def __init__(
        self,
        unit: Unit,
        cache: ObjectCache | None = None,
        archived: Callable[[bytes], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self._unit, self._cache, self._archived = unit, cache, archived
        self._loaded: dict[bytes, bytes] = {}
        self._key = key_maker(unit)
        self.loose: bytes | None = None
        """The commit that is read, if no branch or tag led to it."""
        self.uses_cache = cache is not None
        """Whether something that was read now, or that the batch checks, leads to what is read."""

    def add(self, objects: Mapping[bytes, bytes]) -> None:
        """Take objects that were created, or that a commit carries."""
        self._loaded.update(objects)
        if self._cache is not None:
            self._cache.add(self._unit.space, objects)

    def load(self, objects: Mapping[bytes, bytes]) -> None:
        """Take objects that are cached elsewhere, as the roots of a commit are."""
        self._loaded.update(objects)

    def cached_record(self, id: bytes) -> CommitRecord | None:
        """Return a commit that is cached."""
        return (
            self._cache.record(self._unit.space, id) if self._cache is not None and self.uses_cache else None
        )

    def add_record(self, id: bytes, record: CommitRecord) -> None:
        """Take a commit that was read or made."""
        if self._cache is not None:
            self._cache.add_record(self._unit.space, id, record)

    def put(self, name: bytes, encoding: bytes) -> None:
        """Write an object, even if it exists, because a collector may be about to delete it."""
        self._unit.put_object(self._key(name), pack_object(encoding))

    def serve_loaded(self, work: Fetching[T]) -> T:
        """Return the result of work, and give it loaded objects only.

        Throws `UnloadedError` into the work if it requests another object.
        """
        try:
            wanted = next(work)
            while True:
                if all(self._has(ref.name) for ref in wanted):
                    wanted = work.send({ref.name: self._loaded[ref.name] for ref in wanted})
                else:
                    wanted = work.throw(UnloadedError())
        except StopIteration as end:
            result: T = end.value
            return result

    async def serve(self, work: Fetching[T], *, keep: bool = True) -> T:
        """Return the result of work, and give it the objects that it requests.

        Args:
            work: The work.
            keep: Whether to keep the fetched objects for later work.

        Raises:
            CorruptError: An object is missing or damaged.
        """

        async def fetch(wanted: Collection[Ref]) -> Mapping[bytes, bytes]:
            missing = [ref for ref in wanted if not self._has(ref.name)]
            fetched: Mapping[bytes, bytes] = await self._fetch(missing) if missing else {}
            if keep and fetched:
                self.add(fetched)
            return {ref.name: fetched.get(ref.name) or self._loaded[ref.name] for ref in wanted}

        return await serve_work(work, fetch)

    def _has(self, name: bytes) -> bool:
        if name not in self._loaded and self._cache is not None and self.uses_cache:
            data = self._cache.get(self._unit.space, name)
            if data is not None:
                self._loaded[name] = data
        return name in self._loaded

    async def _fetch(self, refs: Collection[Ref]) -> Mapping[bytes, bytes]:
        """Return objects by name. Each is compared with its name, because not every store detects damage."""
        found: dict[bytes, bytes] = {}
        for group in _groups(refs):
            entries = await self._unit.objects([self._key(ref.name) for ref in group])
            for ref, entry in zip(group, entries, strict=True):
                if entry is not None:
                    data = unpack_object(await self._unit.value(entry), f"object {ref.name.hex()}")
                else:
                    archived = None if self._archived is None else await self._archived(ref.name)
                    if archived is None:
                        raise await self._missing_error(ref.name)
                    data = archived
                check_object(ref, data)
                found[ref.name] = data
        return found

    async def _missing_error(self, name: bytes) -> KeepstateError:
        await self._unit.verify()  # a conflict if the branch moved on and its old objects were collected
        space = self._unit.space
        # Commits are collected before the objects that they refer to.
        if self.loose and (await self._unit.objects([layout.COMMITS + self.loose]))[0] is None:
            return PrunedError(f"object {name.hex()} of {space!r} was collected; no branch or tag led to it")
        return CorruptError(
            f"object {name.hex()} of {space!r} is missing; restore it from a copy", space=space
        )


async def serve_work(
    work: Fetching[T], fetch: Callable[[Collection[Ref]], Awaitable[Mapping[bytes, bytes]]]
) -> T:
    """Return the result of work, and give it the objects that it requests, as `fetch` returns them."""
    try:
        wanted = next(work)
        while True:
            wanted = work.send(await fetch(wanted))
    except StopIteration as end:
        result: T = end.value
        return result


def pack_object(encoding: bytes) -> bytes:
    """Return the stored form of an object. Objects are compressed at a smaller size than other values.

    Objects are many, and most are text that is written once and rarely read.
    """
    if len(encoding) > _COMPRESSED_FROM_BYTES and (small := compress(encoding)) is not None:
        return COMPRESSED + small
    return PLAIN + encoding


def pack_record(record: CommitRecord, encoding: bytes) -> bytes:
    """Return the stored form of a commit; compressed if it contains a state and not only names."""
    return pack_object(encoding) if len(record.root) > _STATE_BYTES else PLAIN + encoding


def unpack_object(stored: bytes, location: str) -> bytes:
    """Return the encoding in a stored object or commit. Neither contains a pickle.

    Raises:
        CorruptError: The bytes are damaged; `location` names them in the error.
    """
    try:
        return body_of(stored)
    except (CorruptError, InvalidError) as error:
        raise corrupt_error(location, error) from error


def key_maker(unit: Unit) -> Callable[[bytes], bytes]:
    """Return a function from an object's name to its key. An encrypted store hides the name."""
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
