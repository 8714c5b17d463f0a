"""A store that seals values on the way in and opens them on the way out.

Invariant: a value that is read was sealed for the very key that it is read from, or `CorruptError` is raised.

Keys, sizes and times stay readable. The store's id, and the secret that names objects, are sealed in a space
of their own, which no listing shows. A rotation seals values again under the newest key while other handles
read and write: each value is written under the exact version that was read, so no write is lost. An
interrupted rotation loses nothing; the next one finds only the rest, and what a handle with an older ring has
written in between.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, Self, Unpack

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.errors import ClosedError, CorruptError, InvalidError, KeepstateError, StoreUnavailableError
from keepstate.stores import admission
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    ABSENT,
    ENCRYPTION_SPACE,
    SCAN_LIMIT,
    Applied,
    Batch,
    Change,
    Changes,
    Check,
    Conflict,
    Entry,
    Outcome,
    Page,
    Put,
    Reading,
    ScanOptions,
    Sizes,
    Write,
)
from keepstate.stores.wrappers.keyless import RECORD, StoreWithRecord, reject_record_space
from keepstate.stores.wrappers.sealing import (
    MOST_OVERHEAD_BYTES,
    STORE_ID_BYTES,
    THIS_WRITE,
    KeyRing,
    Opened,
    Sealer,
    Terms,
    derived,
    plain_size,
)
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values import limits
from keepstate.values.refs import DIGEST_SIZE

_NO_STORE: Final = bytes(STORE_ID_BYTES)
_SECRET_BYTES: Final = 32
_NAMES_KEPT: Final = 4096

_SURELY_FIT: Final = limits.READ_BYTES // (limits.VALUE_BYTES + MOST_OVERHEAD_BYTES)
_ATTEMPTS: Final = 64


__all__ = ["EncryptedStore", "KeyRing"]


class EncryptedStore(StoreWithRecord):
    """A store that seals each value with AES-256-GCM, bound to its key.

    Reading raises `CorruptError` for changed or cut bytes, for a row that was moved, written without
    encryption, or sealed under a key outside the ring, and for an expiry or a creation that contradicts the
    writer's terms. Not detected: an older value put back under its own key, a row that was removed or made to
    expire early, an expiry postponed by less than the time to live, and two exchanged events of one stream
    and index.

    Args:
        store: The store of the sealed values, open or not.
        keys: The keys.
        clock: Time and randomness of this process.

    Raises:
        MissingExtraError: cryptography is not installed.
    """

    def __init__(
        self, store: StoreBase | StoreWrapper, keys: KeyRing, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(store)
        self._keys, self._clock = keys, clock
        self._first = Sealer(keys, _NO_STORE, clock)
        self._known: tuple[Sealer, bytes] | None = None
        self._name_key = lru_cache(maxsize=_NAMES_KEPT)(self._new_name_key)

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same wrapper around another store."""
        return type(self)(store, self._keys, clock=self._clock)

    async def open(self) -> Self:
        """Open the store, unless it is open already.

        Raises:
            CorruptError: No key of the ring fits the store, or the store holds data that is not encrypted.
        """
        was_open = self._store.is_open
        await super().open()
        try:
            record = await self._record()
        except BaseException:
            if not was_open:
                await self._store.close()
            raise
        store_id, secret = record[:STORE_ID_BYTES], record[STORE_ID_BYTES:]
        self._known = Sealer(self._keys, store_id, self._clock), secret
        return self

    async def _record(self) -> bytes:
        """Return the store's id and secret, which the first opener creates."""
        while (sealed := await self._stored_record()) is None:
            others = [name for name in await self._store.spaces(limit=2) if name != ENCRYPTION_SPACE]
            # A new record would make all existing sealed values unreadable.
            if others and await self._stored_record() is None:
                raise CorruptError(
                    f"{self.url} holds {others[0]!r} and no record of encryption: it was not encrypted, or "
                    f"{ENCRYPTION_SPACE!r} was lost. Copy it into a new store, or restore it.",
                    url=self.url,
                    place=ENCRYPTION_SPACE,
                )
            record = self._clock.random_bytes(STORE_ID_BYTES + _SECRET_BYTES)
            put = Put(RECORD, self._first.seal(ENCRYPTION_SPACE, RECORD, record))
            batch = Batch(ENCRYPTION_SPACE, [put], [Check(RECORD, version=ABSENT)])
            outcome = (await self._store.apply([batch]))[0]
            if isinstance(outcome, KeepstateError):
                raise outcome
        return self._first.open(ENCRYPTION_SPACE, RECORD, sealed).value

    async def _stored_record(self) -> bytes | None:
        entry = (await self._store.read(ENCRYPTION_SPACE, [RECORD])).entries[0]
        return None if entry is None else entry.value

    @property
    def _sealer(self) -> Sealer:
        if self._known is None:
            raise ClosedError(f"{self!r} is not open. Call open() first.")
        return self._known[0]

    async def rotate(self, prefix: str = "") -> int:
        """Seal values of older keys again under the newest key, and return their number.

        Other handles may read and write at the same time. You can interrupt it at any time; the next call
        continues. Versions stay the same, and watchers see no change. You can remove an older key when this
        has ended and the logs, which hold replaced values, have turned over. `prefix` limits it to spaces
        whose names start with it.
        """
        sealer, rotation = self._sealer, Rotation(self._store, self._keys)
        count = 0
        after: str | None = None
        while names := await self.spaces(prefix, after=after):
            for name in names:
                count += await rotation.seal_again(name, sealer)
            after = names[-1]
        if not ENCRYPTION_SPACE.startswith(prefix):
            return count
        return count + await rotation.seal_again(ENCRYPTION_SPACE, self._first)

    def object_name(self, space: str, content: bytes) -> bytes:
        """Return a name from which the content cannot be guessed without the keys."""
        return hmac.digest(self._name_key(space), sha256(content).digest(), "sha256")[:DIGEST_SIZE]

    def _new_name_key(self, space: str) -> bytes:
        if self._known is None:
            raise ClosedError(f"{self!r} is not open. Call open() first.")
        return derived(self._known[1], b"keepstate names 1", space.encode())

    # ---- writing

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Seal and apply each batch."""
        return await self.apply_checked(batches, self.check_batches(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Seal and apply checked batches."""
        sealed = [self._sealed(batch) for batch in batches]
        outcomes = await self._store.apply_checked(sealed, sizes)
        for index, outcome in enumerate(outcomes):
            if type(outcome) is Conflict and outcome.key is not None:
                outcomes[index] = await self._check_again(sealed[index], sizes[index], outcome)
        return outcomes

    def _sealed(self, batch: Batch) -> Batch:
        reject_record_space(batch.space)
        sealer, space = self._sealer, batch.space
        writes: list[Write] = []
        created = {check.key: check.created or THIS_WRITE for check in batch.checks if not check.version}
        for index, write in enumerate(batch.writes):
            if type(write) is Put:
                known = THIS_WRITE if write.stamp else created.get(write.key)
                value = sealer.seal(
                    space,
                    write.key,
                    write.value,
                    terms=Terms(write.ttl_ms, known),
                    index=index if write.stamp else None,
                )
                writes.append(Put(write.key, value, write.ttl_ms, write.stamp))
            else:
                writes.append(write)
        return msgspec.structs.replace(batch, writes=writes)

    async def _check_again(self, batch: Batch, size: int, conflict: Conflict) -> Outcome:
        """Return the outcome of a batch whose checks may name versions from before values were sealed again.

        For the store, sealing a value again is a write. A caller that read the value through this wrapper
        knows the version of its original write.
        """
        outcome: Outcome = conflict
        asked = list(batch.checks)
        for _ in range(_ATTEMPTS):
            if type(outcome) is not Conflict or outcome.key is None:
                return outcome
            try:
                versions = await self._versions(batch)
            except CorruptError as error:
                return error
            original, actual = versions.get(outcome.key, (None, None))
            if original is not None and actual == outcome.actual:
                outcome = Conflict(outcome.key, original)
            checks = [_as_stored(check, *versions.get(check.key, (None, None))) for check in batch.checks]
            if checks == asked:  # the next attempt would be the one that was just refused
                return outcome
            asked = checks
            again = msgspec.structs.replace(batch, checks=checks)
            outcome = (await self._store.apply_checked([again], [size]))[0]
        return outcome

    async def _versions(self, batch: Batch) -> dict[bytes, tuple[int, int]]:
        """Return the version of the original write and that of the store, for keys where they differ."""
        keys = [check.key for check in batch.checks if check.version is not None]
        versions: dict[bytes, tuple[int, int]] = {}
        for start in range(0, len(keys), _SURELY_FIT):
            reading = await self._store.read(batch.space, keys[start : start + _SURELY_FIT])
            for entry in filter(None, reading.entries):
                opened = self._sealer.open(batch.space, entry.key, entry.value)
                opened.require_unaltered(batch.space, entry, reading.now_ms)
                if opened.version is not None:
                    versions[entry.key] = opened.version, entry.version
        return versions

    # ---- reading

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read and open entries by key."""
        admission.check_read(space, keys, at_ms)
        reject_record_space(space)
        reading = await self._stored(space, keys, at_ms)
        now_ms = reading.now_ms
        entries = [None if entry is None else self._opened(space, entry, now_ms) for entry in reading.entries]
        if len(entries) > _SURELY_FIT:
            admission.check_read_size(space, sum(len(entry.value) for entry in entries if entry is not None))
        return Reading(entries, reading.revision, reading.now_ms)

    async def _stored(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        try:
            return await self._store.read(space, keys, at_ms=at_ms)
        except InvalidError:
            if len(keys) <= _SURELY_FIT:
                raise
        return await self._stored_by_parts(space, keys, at_ms)

    async def _stored_by_parts(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        """Read in parts, if only the bytes that sealing adds exceed the limit of one read."""
        for _ in range(_ATTEMPTS):
            entries: list[Entry | None] = []
            readings: list[Reading] = []
            judged_ms = at_ms
            for start in range(0, len(keys), _SURELY_FIT):
                part = await self._store.read(space, keys[start : start + _SURELY_FIT], at_ms=judged_ms)
                judged_ms = part.now_ms if judged_ms is None else judged_ms
                readings.append(part)
                entries += part.entries
                found = [entry for entry in entries if entry is not None]
                admission.check_read_size(space, sum(plain_size(entry.value) for entry in found))
            first = readings[0]
            if all(reading.revision == first.revision for reading in readings):
                return Reading(entries, first.revision, first.now_ms)
        raise StoreUnavailableError(
            f"Space {space!r} changes faster than 8 MiB of it can be read. Read fewer keys.", space=space
        )

    async def scan(self, space: str, prefix: bytes, **options: Unpack[ScanOptions]) -> Page:
        """Read and open a page of entries."""
        reject_record_space(space)
        page = await self._store.scan(space, prefix, **options)
        now_ms, at_ms = page.now_ms, options.get("at_ms")
        entries = [self._opened(space, entry, now_ms) for entry in page.entries]
        size = sum(len(entry.value) for entry in entries)
        most = min(options.get("limit", SCAN_LIMIT), limits.PAGE_ROWS)
        following: ScanOptions = {**options, "limit": 1, "at_ms": now_ms if at_ms is None else at_ms}
        # A page that ended at 8 MiB ended early, because the bytes that sealing adds were counted.
        while page.next is not None and len(entries) < most and _ended_by_size(size, len(entries)):
            following["after"] = page.next
            more = await self._store.scan(space, prefix, **following)
            found = [self._opened(space, entry, more.now_ms) for entry in more.entries]
            size += sum(len(entry.value) for entry in found)
            if more.revision != page.revision or size > limits.PAGE_BYTES:
                break
            entries += found
            page = more
        return Page(entries, page.next, page.revision, now_ms, page.nonce)

    async def sizes(self, space: str) -> Sizes:
        """Read the size of each part; the bytes are counted as sealed."""
        reject_record_space(space)
        return await self._store.sizes(space)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log and open its values; a value that was only sealed again is left out."""
        reject_record_space(space)
        changes = await self._store.changes(space, after, limit=limit)
        items = [
            change for change in map(self._open_change, [space] * len(changes.items), changes.items) if change
        ]
        return Changes(items, changes.upto, changes.floor, changes.nonces)

    def _open_change(self, space: str, change: Change) -> Change | None:
        old = None if change.old is None else self._sealer.open(space, change.key, change.old)
        new = None if change.new is None else self._sealer.open(space, change.key, change.new)
        if new is not None and new.version is not None:
            return None
        return msgspec.structs.replace(change, old=old and old.value, new=new and new.value)

    def _opened(self, space: str, entry: Entry, now_ms: int) -> Entry:
        opened = self._sealer.open(space, entry.key, entry.value)
        opened.require_unaltered(space, entry, now_ms)
        return Entry(entry.key, opened.value, opened.version_of(entry), entry.created, entry.expires_at_ms)


def _as_stored(check: Check, original: int | None, actual: int | None) -> Check:
    return Check(check.key, version=actual) if original is not None and check.version == original else check


def _ended_by_size(size: int, count: int) -> bool:
    return size + (count + 1) * MOST_OVERHEAD_BYTES > limits.PAGE_BYTES - limits.VALUE_BYTES


_SECTIONS: Final = (b"\x00", b"\x01", b"\x02")


class Rotation:
    """Seals the values of a store again.

    Args:
        store: The store of the sealed values.
        keys: The ring, whose newest key seals.
    """

    def __init__(self, store: StoreBase | StoreWrapper, keys: KeyRing) -> None:
        self._store, self._newest = store, keys.newest_id

    async def seal_again(self, space: str, sealer: Sealer) -> int:
        """Seal a space's values again, and return their number."""
        count = 0
        for section in _SECTIONS:
            after: bytes | None = None
            while True:
                page = await self._store.scan(space, section, after=after)
                count += await self._seal_page(space, list(page.entries), sealer)
                after = page.next
                if after is None:
                    break
        return count

    async def _seal_page(self, space: str, entries: list[Entry], sealer: Sealer) -> int:
        now_ms = (await self._store.read(space, [])).now_ms
        left: dict[bytes, tuple[Put, Check]] = {}
        size = 0
        for entry in entries:
            opened = sealer.open(space, entry.key, entry.value)
            opened.require_unaltered(
                space, entry, now_ms
            )  # if an altered row were sealed again, it would look valid
            if opened.key_id != self._newest:
                put = self._put(space, entry, opened, sealer, now_ms)
                left[entry.key] = put, Check(entry.key, version=entry.version)
                size += len(put.value)
        while left:
            batch = Batch(space, [put for put, _ in left.values()], [check for _, check in left.values()])
            outcome = (await self._store.apply_checked([batch], [size]))[0]
            if isinstance(outcome, Applied):
                return len(left)
            if isinstance(outcome, KeepstateError):
                raise outcome
            assert outcome.key is not None, "the batch has no condition except its checks"
            del left[outcome.key]  # another handle has written and sealed it
        return 0

    def _put(self, space: str, entry: Entry, opened: Opened, sealer: Sealer, now_ms: int) -> Put:
        rest_ms = None if entry.expires_at_ms is None else max(1, entry.expires_at_ms - now_ms)
        terms = Terms(rest_ms, opened.terms.created)
        version = opened.version_of(entry)
        sealed = sealer.seal(space, entry.key, opened.value, terms=terms, version=version)
        return Put(entry.key, sealed, rest_ms)
