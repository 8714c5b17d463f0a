"""A store on top of a caller's key-value store, which only gets, sets and deletes values by name.

```
keepstate:object/SPACE/HEX    a version of eight bytes, then a content-named object (section 00)
keepstate:head/SPACE          a CRC, then the rest of the space: its revision, clock and entries
```

A batch writes its objects first and the head last, so it is complete once the head is written. If the
caller's store can compare and swap, a head replaces only the head that was checked. Otherwise the caller
promises a single writer. There is no log, and nothing expires: that suffices for a history. A garbage
collection needs exclusive use of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NoReturn, Protocol, runtime_checkable
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Runner
from keepstate.errors import CompactedError, CorruptError, HistoryLostError, UnsupportedError
from keepstate.kv import KVStore
from keepstate.stores.admission import check_read_size
from keepstate.stores.base import StoreBase
from keepstate.stores.clock_leaps import detect_leap
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import (
    CONTENT_NAMED,
    NONCE_BYTES,
    Applied,
    Batch,
    Capabilities,
    Changes,
    Check,
    Conflict,
    Delete,
    Durability,
    Entry,
    Leap,
    Outcome,
    Page,
    Put,
    Reading,
    Sizes,
)
from keepstate.values import limits
from keepstate.values.key import OBJECTS

_HEADS: Final = "keepstate:head/"
_VERSION_BYTES: Final = 8
_CRC_BYTES: Final = 4


@runtime_checkable
class Swapping(Protocol):
    """The extra ability to compare and swap."""

    def cas(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Write a value if the present one is `expected` (None: absent); return whether it was written."""
        ...


class _HeadEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry stored in the head."""

    value: bytes
    version: int
    created: int


class _Head(msgspec.Struct, array_like=True):
    """All of a space except its objects."""

    revision: int = 0
    clock_ms: int = 0
    entries: dict[bytes, _HeadEntry] = msgspec.field(default_factory=dict[bytes, _HeadEntry])
    nonce: bytes = b""
    leap: Leap | None = None


class KeyValueStore(StoreBase):
    """A store of spaces in a caller's key-value store.

    Args:
        values: The caller's store.
        runner: The runner that waits.
        clock: Time of this process.
    """

    def __init__(self, values: KVStore, *, runner: Runner, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(url=f"kv:{type(values).__name__}", runner=runner, clock=clock)
        self._values = values

    async def _open(self) -> Capabilities:
        # Durability depends on the caller's store, and cannot be determined here.
        return Capabilities(durability=Durability.PROCESS, shared=isinstance(self._values, Swapping))

    async def _close(self) -> None:
        """Leave the caller's store to the caller."""

    def check_batches(self, batches: Sequence[Batch]) -> list[int]:
        """Validate batches and return their sizes in bytes.

        Raises:
            UnsupportedError: A batch needs more than a head, such as stamps or expiry.
        """
        for batch in batches:
            for write in batch.writes:
                if isinstance(write, Put) and (write.stamp or write.ttl_ms is not None):
                    self._reject("events, queues and entries that expire")
        return super().check_batches(batches)

    def _reject(self, what: str) -> NoReturn:
        raise UnsupportedError(f"{self.url} stores histories, not {what}. Open a store by its URL for that.")

    # ---- applying

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return [self._apply_batch(batch) for batch in batches]

    def _apply_batch(self, batch: Batch) -> Outcome:
        while True:
            stored = self._values.get(_head_key(batch.space))
            head = _decode_head(stored, batch.space)
            stored_ms, head.clock_ms = head.clock_ms, max(head.clock_ms, self._clock.now_ms())
            if (conflict := self._find_conflict(batch, head)) is not None:
                return conflict
            if not batch.writes:
                return Applied(head.revision, head.clock_ms)
            head.leap = detect_leap(head.revision + 1, stored_ms, head.clock_ms) or head.leap
            deleted = self._write(batch, head)
            if self._swap(_head_key(batch.space), stored, _encode_head(head)):
                for key in deleted:
                    self._values.delete(key)
                return Applied(head.revision, head.clock_ms)

    def _find_conflict(self, batch: Batch, head: _Head) -> Conflict | None:
        if batch.at is not None and batch.at != head.revision:
            return Conflict(None, head.revision)
        if batch.alive_until_ms is not None and batch.alive_until_ms <= head.clock_ms:
            return Conflict(None, head.revision)
        objects = self._objects(batch.space, [check.key for check in batch.checks])
        for check in batch.checks:
            entry = _find_entry(check.key, head, objects)
            if (actual := _mismatch(check, entry)) is not None:
                return Conflict(check.key, actual)
        return None

    def _write(self, batch: Batch, head: _Head) -> list[str]:
        """Write objects, advance `head` by a revision, and return the keys to delete after the swap."""
        head.revision += 1
        head.nonce = self._clock.random_bytes(NONCE_BYTES)
        version = head.revision.to_bytes(_VERSION_BYTES)
        objects: dict[str, bytes] = {}
        deleted: list[str] = []
        for write in batch.writes:
            is_object = write.key[0] == OBJECTS
            if isinstance(write, Delete):
                if is_object:
                    deleted.append(_object_key(batch.space, write.key))
                else:
                    head.entries.pop(write.key, None)
            elif is_object:
                objects[_object_key(batch.space, write.key)] = version + write.value
            else:
                before = head.entries.get(write.key)
                created = before.created if before else head.revision
                head.entries[write.key] = _HeadEntry(write.value, head.revision, created)
        if objects:
            self._values.set_many(objects)
        return deleted

    def _swap(self, key: str, before: bytes | None, now: bytes) -> bool:
        if isinstance(self._values, Swapping):
            return self._values.cas(key, before, now)
        self._values.set(key, now)
        return True

    # ---- reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        head = self._head(space)
        objects = self._objects(space, keys)
        found = [_find_entry(key, head, objects) for key in keys]
        check_read_size(space, sum(len(entry.value) for entry in found if entry is not None))
        return Reading(found, head.revision, max(head.clock_ms, self._clock.now_ms()))

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        head = self._head(space)
        now_ms = max(head.clock_ms, self._clock.now_ms())
        keys = [key for key in head.entries if key.startswith(prefix)]
        if prefix[0] == OBJECTS:
            names = self._values.keys(_object_key(space, prefix))
            keys = [bytes.fromhex(name.rpartition("/")[2]) for name in names]
        keys.sort(reverse=reverse)
        if after is not None:
            keys = [key for key in keys if (key < after if reverse else key > after)]
        page: list[Entry] = []
        size = 0
        for key in keys[:limit]:
            entry = _find_entry(key, head, self._objects(space, [key]))
            if entry is None:  # deleted since the listing
                continue
            size += len(entry.value)
            if page and size > limits.PAGE_BYTES:
                return Page(page, page[-1].key, head.revision, now_ms, head.nonce)
            page.append(entry)
        following = keys[limit - 1] if len(keys) > limit else None
        return Page(page, following, head.revision, now_ms, head.nonce)

    async def _sizes(self, space: str) -> Sizes:
        """Count the head's entries and read all objects: nothing in the caller's store could count them."""
        head = self._head(space)
        names = [
            bytes.fromhex(name.rpartition("/")[2]) for name in self._values.keys(_object_key(space, b""))
        ]
        objects = self._objects(space, names).values()
        kept = [Entry(key, *msgspec.structs.astuple(entry)) for key, entry in head.entries.items()]
        parts = PartSizes.of([*kept, *objects]).without(())
        return Sizes(parts, head.revision, max(head.clock_ms, self._clock.now_ms()))

    async def _last_leap(self, space: str) -> Leap | None:
        return self._head(space).leap

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        return [self._head(space).clock_ms or None for space in spaces]

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        head = self._head(space)
        revision = head.revision
        if after > revision:
            raise HistoryLostError(
                f"Space {space!r} is at revision {revision}, below {after}: the store lost revisions. Read "
                f"it again.",
                space=space,
                revision=after,
            )
        if after < revision:
            raise CompactedError(
                f"{self.url} has no log of space {space!r}. Read its present state, or use a single writer.",
                space=space,
                floor=revision,
            )
        return Changes((), revision, revision, {revision: head.nonce})

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        names = [unquote(key[len(_HEADS) :]) for key in self._values.keys(_HEADS)]
        fitting = sorted(
            (name for name in names if name.startswith(prefix) and self._head(name).entries), key=str.encode
        )
        return [name for name in fitting if after is None or name.encode() > after.encode()][:limit]

    async def _drop(self, space: str, at: int | None) -> bool:
        while True:
            stored = self._values.get(_head_key(space))
            if stored is None:
                return False
            head = _decode_head(stored, space)
            if at not in (None, head.revision):
                return False
            nonce = self._clock.random_bytes(NONCE_BYTES)
            dropped = _Head(head.revision + 1, head.clock_ms, nonce=nonce, leap=head.leap)
            if self._swap(_head_key(space), stored, _encode_head(dropped)):
                break
        objects = list(self._values.keys(_object_key(space, b"")))
        for key in objects:
            self._values.delete(key)
        return bool(head.entries or objects)

    async def _trim(self, space: str, keep: int) -> None:
        """Do nothing: there is no log."""

    async def _sweep(self, prefix: str, limit: int) -> int:
        return 0

    def _head(self, space: str) -> _Head:
        return _decode_head(self._values.get(_head_key(space)), space)

    def _objects(self, space: str, keys: Collection[bytes]) -> Mapping[bytes, Entry]:
        named = {_object_key(space, key): key for key in keys if key[0] == OBJECTS}
        entries: dict[bytes, Entry] = {}
        if not named:
            return entries
        found = self._values.get_many(list(named))
        for name, value in found.items():
            if len(value) < _VERSION_BYTES:
                raise _damage_error(name)
            version = int.from_bytes(value[:_VERSION_BYTES])
            entries[named[name]] = Entry(named[name], value[_VERSION_BYTES:], version, version)
        return entries


def _head_key(space: str) -> str:
    return _HEADS + quote(space, safe="")


def _object_key(space: str, key: bytes) -> str:
    return f"{CONTENT_NAMED}{quote(space, safe='')}/{key.hex()}"


def _encode_head(head: _Head) -> bytes:
    body = msgspec.msgpack.encode(head)
    return crc32(body).to_bytes(_CRC_BYTES) + body


def _decode_head(stored: bytes | None, space: str) -> _Head:
    if stored is None:
        return _Head()
    body = stored[_CRC_BYTES:]
    if crc32(body).to_bytes(_CRC_BYTES) != stored[:_CRC_BYTES]:
        raise _damage_error(_head_key(space))
    try:
        return msgspec.msgpack.decode(body, type=_Head)
    except msgspec.MsgspecError as error:
        raise _damage_error(_head_key(space)) from error


def _damage_error(name: str) -> CorruptError:
    return CorruptError(f"{name!r} is damaged. Restore it from a copy.", place=name)


def _find_entry(key: bytes, head: _Head, objects: Mapping[bytes, Entry]) -> Entry | None:
    if key[0] == OBJECTS:
        return objects.get(key)
    kept = head.entries.get(key)
    return None if kept is None else Entry(key, kept.value, kept.version, kept.created)


def _mismatch(check: Check, entry: Entry | None) -> int | None:
    """Return the actual revision if the check fails, or None if it holds."""
    if check.version is not None:
        actual = entry.version if entry else 0
        return None if actual == check.version else actual
    actual = entry.created if entry else 0
    return None if actual == check.created else actual
