"""A store whose values are sealed on the way in and opened on the way out.

Keys, sizes and times stay as they are. The store's id and the secret that objects are named by stand sealed
in a space of their own, which no listing shows.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, Self

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.errors import ClosedError, CorruptError, InvalidError, KeepstateError, StoreUnavailableError
from keepstate.stores import admission
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    ABSENT,
    ENCRYPTION_SPACE,
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
    Write,
)
from keepstate.stores.wrappers.encrypted.ring import KeyRing, derived
from keepstate.stores.wrappers.encrypted.rotation import Rotation
from keepstate.stores.wrappers.encrypted.sealing import (
    MOST_OVERHEAD_BYTES,
    STORE_ID_BYTES,
    THIS_WRITE,
    Sealer,
    Terms,
    plain_size,
)
from keepstate.stores.wrappers.keyless import RECORD, list_spaces, reject_record_space
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values import limits
from keepstate.values.refs import DIGEST_SIZE

_NO_STORE: Final = bytes(STORE_ID_BYTES)
_SECRET_BYTES: Final = 32
_NAMES_KEPT: Final = 4096

_SURELY_FIT: Final = limits.READ_BYTES // (limits.VALUE_BYTES + MOST_OVERHEAD_BYTES)
_ATTEMPTS: Final = 64


class EncryptedStore(StoreWrapper):
    """Seals each value with AES-256-GCM for the place where it stands.

    What is read and is not as it was sealed there raises `CorruptError`: changed or cut bytes, a row that was
    moved, written without encryption, or sealed under no key of the ring; an expiry that its writer cannot
    have meant; a creation other than the one that its writer named. Not detected: an older value put back at
    its own place, a row removed or made to expire early, an expiry put off by less than the time to live, and
    two events of one stream and index that changed places.

    Args:
        store: What keeps the sealed values, opened or not.
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
        self._name_key = lru_cache(maxsize=_NAMES_KEPT)(self._made_name_key)

    def around(self, store: StoreBase | StoreWrapper) -> Self:
        """Return the same around another store."""
        return type(self)(store, self._keys, clock=self._clock)

    async def open(self) -> Self:
        """Open the store, unless it is open already.

        Raises:
            CorruptError: No key of the ring fits the store, or it holds what is not encrypted.
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
        """Return the store's id and secret, made by whoever opens it first."""
        while (sealed := await self._stored_record()) is None:
            others = [name for name in await self._store.spaces(limit=2) if name != ENCRYPTION_SPACE]
            # A new record beside sealed values would make all of them unreadable.
            if others and await self._stored_record() is None:
                raise CorruptError(
                    f"{self.url} holds {others[0]!r} and no record of encryption: it was not encrypted, or "
                    f"{ENCRYPTION_SPACE!r} was lost; copy it into a new store, or restore it",
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
            raise ClosedError(f"{self!r} is not open; open it first")
        return self._known[0]

    async def rotate(self, prefix: str = "") -> int:
        """Seal again, under the newest key, what stands under older ones; returns how many values.

        Others may read and write meanwhile. It can be ended at any time: the next call goes on. Versions stay
        as they are, and no change is told of. An older key may go when this has ended and the logs, which
        hold what was replaced, have turned over; `prefix` says with what the names of spaces start.
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
        """Return a name that tells the content to nobody who guesses it."""
        return hmac.digest(self._name_key(space), sha256(content).digest(), "sha256")[:DIGEST_SIZE]

    def _made_name_key(self, space: str) -> bytes:
        if self._known is None:
            raise ClosedError(f"{self!r} is not open; open it first")
        return derived(self._known[1], b"keepstate names 1", space.encode())

    # ---- writing

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Seal and apply each batch."""
        return await self.apply_checked(batches, self.check_batches(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Seal and apply what was admitted."""
        sealed = [self._sealed(batch) for batch in batches]
        outcomes = await self._store.apply_checked(sealed, sizes)
        for place, outcome in enumerate(outcomes):
            if type(outcome) is Conflict and outcome.key is not None:
                outcomes[place] = await self._judged_again(sealed[place], sizes[place], outcome)
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

    async def _judged_again(self, batch: Batch, size: int, conflict: Conflict) -> Outcome:
        """Return the outcome of a batch whose checks may name versions from before values were sealed again.

        The store counts a value that was sealed again as written then; who read it through this wrapper knows
        the version of its real write.
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
            told, actual = versions.get(outcome.key, (None, None))
            if told is not None and actual == outcome.actual:
                outcome = Conflict(outcome.key, told)
            checks = [_as_stored(check, *versions.get(check.key, (None, None))) for check in batch.checks]
            if checks == asked:  # what was refused just now is what would be asked again
                return outcome
            asked = checks
            again = msgspec.structs.replace(batch, checks=checks)
            outcome = (await self._store.apply_checked([again], [size]))[0]
        return outcome

    async def _versions(self, batch: Batch) -> dict[bytes, tuple[int, int]]:
        """Return the versions that are told and that the store counts, where they differ."""
        keys = [check.key for check in batch.checks if check.version is not None]
        versions: dict[bytes, tuple[int, int]] = {}
        for start in range(0, len(keys), _SURELY_FIT):
            reading = await self._store.read(batch.space, keys[start : start + _SURELY_FIT])
            for entry in filter(None, reading.entries):
                opened = self._sealer.open(batch.space, entry.key, entry.value)
                opened.refuse_altered(batch.space, entry, reading.now_ms)
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
        """Read what passes the limit of one read only by what sealing adds, or refuses it."""
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
            f"space {space!r} changes faster than 8 MiB of it can be read; ask for fewer keys", space=space
        )

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Read and open a page of entries."""
        reject_record_space(space)
        page = await self._store.scan(space, prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms)
        now_ms = page.now_ms
        judged_ms = now_ms if at_ms is None else at_ms
        entries = [self._opened(space, entry, now_ms) for entry in page.entries]
        size = sum(len(entry.value) for entry in entries)
        most = min(limit, limits.PAGE_ROWS)
        # A page that ended at 8 MiB ended early, since what sealing adds was counted too.
        while page.next is not None and len(entries) < most and _ended_by_size(size, len(entries)):
            more = await self._store.scan(
                space, prefix, after=page.next, limit=1, reverse=reverse, at_ms=judged_ms
            )
            found = [self._opened(space, entry, more.now_ms) for entry in more.entries]
            size += sum(len(entry.value) for entry in found)
            if more.revision != page.revision or size > limits.PAGE_BYTES:
                break
            entries += found
            page = more
        return Page(entries, page.next, page.revision, now_ms, page.nonce)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Read the log and open what it holds; what was only sealed again is no change."""
        reject_record_space(space)
        changes = await self._store.changes(space, after, limit=limit)
        items = [change for change in map(self._told, [space] * len(changes.items), changes.items) if change]
        return Changes(items, changes.upto, changes.floor, changes.nonces)

    def _told(self, space: str, change: Change) -> Change | None:
        old = None if change.old is None else self._sealer.open(space, change.key, change.old)
        new = None if change.new is None else self._sealer.open(space, change.key, change.new)
        if new is not None and new.version is not None:
            return None
        return msgspec.structs.replace(change, old=old and old.value, new=new and new.value)

    def _opened(self, space: str, entry: Entry, now_ms: int) -> Entry:
        opened = self._sealer.open(space, entry.key, entry.value)
        opened.refuse_altered(space, entry, now_ms)
        return Entry(entry.key, opened.value, opened.version_of(entry), entry.created, entry.expires_at_ms)

    # ---- all spaces

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """List spaces, but for the one that is the wrapper's own."""
        return await list_spaces(self._store, prefix, after, limit)

    async def drop(self, space: str) -> None:
        """Empty a space."""
        reject_record_space(space)
        await self._store.drop(space)


def _as_stored(check: Check, told: int | None, actual: int | None) -> Check:
    return Check(check.key, version=actual) if told is not None and check.version == told else check


def _ended_by_size(size: int, count: int) -> bool:
    return size + (count + 1) * MOST_OVERHEAD_BYTES > limits.PAGE_BYTES - limits.VALUE_BYTES
