"""Carries subjects from their outboxes into the index of one tenant.

1. The subject is read, as of a revision of its space.
2. One batch of the index writes the row, with its places and a mark `carrying`. A row that was read at a
   later revision stays.
3. The outbox is deleted, under exactly the version that was read. So the row shows the last change.
4. The mark is deleted.

If the outbox has changed before step 3, the row is reconciled: it is read, then the subject, and one batch,
checked against the row, sets or removes it; then step 3 again. A carrier that dies leaves its mark, and
the next sweep reconciles it.

Invariant: a row that is wrong has an outbox in its subject's space, or a mark in the index. Every batch
checks `meta`, which carriers never create: no carrier brings back the index of an erased tenant.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from keepstate._clock import Clock
from keepstate.engine.index.rows import (
    DUE,
    SPACE,
    MetaRecord,
    Row,
    decode_meta,
    decode_row,
    digest_in,
    digest_of,
    encode,
    list_prefix,
    make_row,
    place_in,
    places,
    row_key,
)
from keepstate.engine.index.summaries import Reading, read_subject
from keepstate.engine.index.walk import subjects_in
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.grants import apply_granted, needs_grant
from keepstate.engine.kernel.large_values import scan_pages
from keepstate.engine.kernel.store_abilities import LossDetector, content_name, has_ability
from keepstate.engine.kernel.stored import StoredMs, corrupt_error, decode_stored, describe
from keepstate.engine.kernel.subjects import (
    APPROVAL,
    OUTBOXES,
    Subject,
    encode_time,
    subject_in,
)
from keepstate.errors import ConflictError, InvalidError, NotAllowedError, StorageError
from keepstate.names import INDEX_SPACE, TENANTS, beginning, is_reserved, parts_of, stored_name
from keepstate.stores.protocol import (
    ABSENT,
    Applied,
    Batch,
    Check,
    Delete,
    Entry,
    Outcome,
    Put,
    ReportsLastChange,
    Store,
    Write,
)
from keepstate.values.key import pack, unpack

AT_ONCE: Final = 48
"""The number of subjects whose rows one batch writes; each has up to 16 writes."""
_CONFLICTS: Final = 64
_RECONCILIATIONS: Final = 4
"""Attempts after which a mark is left for the next carrier, because the subject keeps changing."""
_CARRIER_BYTES: Final = 8
_MARGIN_MS: Final = 3_600_000
"""No clock that writes is further ahead of or behind another one; see `stores.clock_leaps`."""
_STALE_MS: Final = 3_600_000
"""The age of a mark `dropping` whose drop is not under way any more."""
_LEFT: Final = 10_000

Location = tuple[str, Subject]
"""The name of a space without its tenant, and a subject in it."""


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """The content of a mark `carrying`."""

    space: str
    kind: str
    id: str


class DropMark(msgspec.Struct, array_like=True, frozen=True):
    """The content of a mark `dropping`: the index's time at which the drop began."""

    begun_ms: StoredMs


class OwnerErasure(msgspec.Struct, array_like=True, frozen=True):
    """The content of the entry of an erasure of an owner that is under way.

    Attributes:
        shared: Spaces from which something was, or is about to be expunged.
        dropped: The number of spaces that were dropped.
        dropping: The space that was counted last, and its revision then.
        entries: The number of entries that were removed.
        size_bytes: The total size of their keys and values.
        archives: Files with archived history of these spaces.
    """

    shared: list[str] = []
    dropped: int = 0
    dropping: tuple[str, int] | None = None
    entries: int = 0
    size_bytes: int = 0
    archives: list[str] = []


class CarriedSubject(NamedTuple):
    """A subject that is carried: as it was read, and the time of its last change."""

    reading: Reading
    changed_ms: int


class NoIndexError(Exception):
    """The tenant has no index, or not any more. It never reaches a caller."""


class Carrier:
    """Carries the subjects of one tenant.

    Args:
        store: The opened store.
        tenant: The tenant, or None.
        clock: Randomness.
    """

    def __init__(self, store: Store, tenant: str | None, clock: Clock) -> None:
        self.store, self.tenant, self._clock = store, tenant, clock
        self.space = stored_name(tenant, INDEX_SPACE)
        """The stored name of the space of the index."""
        self.name_of = partial(content_name, store, self.space)
        """Returns the digest of some bytes in the keys of the index."""
        self._left: dict[Location, list[bytes]] = {}
        """Marks of this carrier whose subjects could not be settled."""

    # ---- the index itself

    async def meta(self) -> Entry | None:
        """Return the entry that says whether there is an index, and whether it is complete."""
        return (await self.store.read(self.space, [layout.INDEX_META])).entries[0]

    async def ensure(self) -> bool:
        """Make the index if the tenant has a space and is not being erased. Return whether there is one."""
        if await self.meta() is not None:
            return True
        if not [name async for name in self.spaces(only_first=True)]:
            return False
        put = Put(layout.INDEX_META, encode(MetaRecord()))
        batch = self._batch([put], [Check(layout.INDEX_META, ABSENT)])
        if not needs_grant(self.space):
            raise_failure((await self.store.apply([batch]))[0])
            return True
        try:
            raise_failure(await apply_granted(self.store, batch, {}, None))
        except NotAllowedError:
            return False
        return True

    async def is_complete(self) -> bool:
        """Return whether every subject from before the index was carried."""
        meta = await self.meta()
        return meta is not None and decode_meta(meta).is_complete

    # ---- carrying

    async def carry(self, subjects: Iterable[Location], *, rebuilds: bool = False) -> set[Location]:
        """Carry subjects, and return those that were carried.

        A subject that keeps changing keeps its outbox; its row is at most one delivery late.

        Args:
            subjects: The subjects.
            rebuilds: Whether to carry also those without an outbox.

        Raises:
            NoIndexError: The tenant has no index.
        """
        waiting, carried = [*dict.fromkeys(subjects)], set[Location]()
        for start in range(0, len(waiting), AT_ONCE):
            carried |= await self._carry_some(waiting[start : start + AT_ONCE], rebuilds=rebuilds)
        return carried

    async def _carry_some(self, subjects: Sequence[Location], *, rebuilds: bool) -> set[Location]:
        items: dict[Location, CarriedSubject] = {}
        for location in subjects:
            item = await self.read(location)
            if item.reading.outbox or rebuilds:
                items[location] = item
        marks = {location: self._new_mark(location) for location in items}
        written = await self._write_rows(items, marks)
        settled = await self._settle({location: items[location] for location in written})
        await self._unmark(
            [mark for location in settled for mark in (marks[location], *self._left.pop(location, ()))]
        )
        for location in items.keys() - settled:
            if await self.reconcile(location, marks[location]):
                settled.add(location)
        return settled

    async def reconcile(self, location: Location, mark: bytes | None) -> bool:
        """Set or remove the row of a subject as the subject is now, and delete the mark.

        Args:
            location: The subject.
            mark: The mark that is deleted; None if another mark covers the subject.

        Returns:
            Whether it was settled. If not, the mark stays.
        """
        for _ in range(_RECONCILIATIONS):
            # The row is read before the subject, and the batch checks it: what another carrier writes after
            # that is newer than what is read here.
            row = (await self.store.read(self.space, [self.key_of(location)])).entries[0]
            items = {location: await self.read(location)}
            if not await self._write_rows(items, {} if mark is None else {location: mark}, {location: row}):
                continue
            if await self._settle(items):
                await self._unmark([*([] if mark is None else [mark]), *self._left.pop(location, ())])
                return True
        if mark is not None and len(self._left) < _LEFT:
            self._left.setdefault(location, []).append(mark)
        return False

    async def read(self, location: Location) -> CarriedSubject:
        """Read a subject."""
        space, subject = location
        stored = stored_name(self.tenant, space)
        reading = await read_subject(self.store, stored, space, subject)
        changed_ms = reading.changed_ms
        if not changed_ms and has_ability(type(self.store), ReportsLastChange):
            assert isinstance(self.store, ReportsLastChange)
            changed_ms = (await self.store.changed_ms([stored]))[0] or 0
        return CarriedSubject(reading, changed_ms or reading.now_ms)

    async def read_rows(self, locations: Sequence[Location]) -> list[Row | None]:
        """Return the rows of subjects, all of one moment; None for a subject without a row."""
        keys = [self.key_of(location) for location in locations]
        entries = (await self.store.read(self.space, keys)).entries
        return [None if entry is None else decode_row(entry.value, entry.key) for entry in entries]

    # ---- step 2: rows

    def key_of(self, location: Location) -> bytes:
        """Return the key of the row of a subject."""
        return row_key(digest_of(self.name_of, *location))

    def _new_mark(self, location: Location) -> bytes:
        digest = digest_of(self.name_of, *location)
        return layout.CARRYING + pack(digest, self._clock.random_bytes(_CARRIER_BYTES))

    async def _write_rows(
        self,
        items: Mapping[Location, CarriedSubject],
        marks: Mapping[Location, bytes],
        known: Mapping[Location, Entry | None] | None = None,
    ) -> list[Location]:
        """Write the rows of subjects in one batch, and return the subjects whose rows were written.

        Args:
            items: The subjects.
            marks: The mark that is written with each row.
            known: The rows as they were read before the subjects: the batch applies only if they are
                unchanged, and replaces them whatever their versions. By default rows are read here, and one
                that was read at a later revision stays.

        Raises:
            NoIndexError: The tenant has no index.
        """
        if not items:
            return []
        for _ in range(_CONFLICTS):
            losses = LossDetector(self.store, self.space, INDEX_SPACE)
            keys = [self.key_of(location) for location in items]
            meta, *rows = (await self.store.read(self.space, [layout.INDEX_META, *keys])).entries
            if meta is None:
                raise NoIndexError
            checks, writes = [Check(layout.INDEX_META, created=meta.created)], list[Write]()
            written: list[Location] = []
            for key, (location, item), entry in zip(keys, items.items(), rows, strict=True):
                if known is not None and _version(entry) != _version(known[location]):
                    return []
                row = None if entry is None else decode_row(entry.value, key)
                if known is None and row is not None and self._stays(row, item):
                    continue
                written.append(location)
                changes = self._row_writes(location, item, entry, row)
                if changes:
                    checks.append(Check(key, version=_version(entry)))
                    writes += changes
                    if location in marks:
                        space, subject = location
                        writes.append(Put(marks[location], encode(Mark(space, *subject))))
            if not writes:
                return written
            batch = self._batch(writes, checks)
            outcome = (await self.store.apply([msgspec.structs.replace(batch, losses=losses.known)]))[0]
            if isinstance(outcome, Applied):
                return written
            raise_failure(outcome)
            if known is not None:
                return []
        raise ConflictError(
            f"the index of {self.space!r} had {_CONFLICTS} conflicts in a row; try again later",
            space=self.space,
        )

    def _stays(self, row: Row, item: CarriedSubject) -> bool:
        """Return whether a row was read at a later revision than a subject that is carried."""
        return row.version > item.reading.revision

    def _row_writes(
        self, location: Location, item: CarriedSubject, entry: Entry | None, row: Row | None
    ) -> list[Write]:
        """Return the writes that replace a row, with its places; none if there is no row, and none to set."""
        space, subject = location
        digest = digest_of(self.name_of, space, subject)
        before = set[bytes]() if row is None else places(self.name_of, digest, row)
        new, ttl_ms = new_row(location, item)
        if new is None:
            return [] if row is None else [Delete(row_key(digest)), *map(Delete, before)]
        after = places(self.name_of, digest, new)
        is_timed = ttl_ms is not None or (entry is not None and entry.expires_at_ms is not None)
        fresh = after if is_timed else after - before
        return [
            *map(Delete, before - after),
            *(Put(place, b"", ttl_ms) for place in fresh),
            Put(row_key(digest), encode(new), ttl_ms),
        ]

    # ---- steps 3 and 4: outboxes and marks

    async def _settle(self, items: Mapping[Location, CarriedSubject]) -> set[Location]:
        """Delete the outboxes of subjects that have not changed since they were read, and return these."""
        settled, batches = set[Location](), dict[Location, Batch]()
        for location, item in items.items():
            reading, (space, subject) = item.reading, location
            if reading.outbox:
                batches[location] = self._settlement(stored_name(self.tenant, space), subject, item)
            elif await self._is_unchanged(location, reading):
                settled.add(location)
        outcomes = await self.store.apply([*batches.values()]) if batches else []
        for location, outcome in zip(batches, outcomes, strict=True):
            raise_failure(outcome)
            if isinstance(outcome, Applied):
                settled.add(location)
        return settled

    def _settlement(self, stored: str, subject: Subject, item: CarriedSubject) -> Batch:
        """Return the batch that deletes an outbox under its exact version."""
        reading, writes = item.reading, list[Write]([Delete(subject.outbox_key())])
        if reading.summary is not None:
            writes.append(Put(subject.carried_key(), encode_time(item.changed_ms)))
        elif reading.carried:
            writes.append(Delete(subject.carried_key()))
        check = Check(subject.outbox_key(), version=reading.outbox)
        return Batch(stored, writes, [check], losses=reading.losses)

    async def _is_unchanged(self, location: Location, reading: Reading) -> bool:
        space, subject = location
        keys = [subject.outbox_key(), subject.carried_key()]
        found = (await self.store.read(stored_name(self.tenant, space), keys)).entries
        return [*map(_version, found)] == [reading.outbox, reading.carried]

    async def _unmark(self, marks: Sequence[bytes]) -> None:
        if not marks:
            return
        meta = await self.meta()
        if meta is not None:
            checks = [Check(layout.INDEX_META, created=meta.created)]
            raise_failure((await self.store.apply([self._batch([*map(Delete, marks)], checks)]))[0])

    def _batch(self, writes: Sequence[Write], checks: Sequence[Check]) -> Batch:
        return Batch(self.space, writes, checks)

    async def advance(self) -> bool:
        """Take a revision of the index without a change; return whether there is an index."""
        if (meta := await self.meta()) is None:
            return False
        checks = [Check(layout.INDEX_META, created=meta.created)]
        raise_failure((await self.store.apply([self._batch([Delete(layout.UNUSED)], checks)]))[0])
        return True

    # ---- drops

    async def drop(self, space: str) -> bool:
        """Drop a space, with the rows of its subjects. Return whether there was something to drop."""
        stored, meta = stored_name(self.tenant, space), await self.meta()
        mark = layout.DROPPING + pack(space, self._clock.random_bytes(_CARRIER_BYTES))
        if meta is not None:
            begun_ms = (await self.store.read(self.space, [])).now_ms
            checks = [Check(layout.INDEX_META, created=meta.created)]
            put = Put(mark, encode(DropMark(begun_ms)))
            raise_failure((await self.store.apply([self._batch([put], checks)]))[0])
        was_there = await self.store.drop(stored)
        if await self.meta() is not None and await self._reconcile_space(space):
            await self._unmark([mark])
        return was_there

    async def _reconcile_space(self, space: str) -> bool:
        """Reconcile all rows of a space, and return whether they were settled."""
        try:
            return all([await self.reconcile(location, None) for location in await self._rows_of(space)])
        except NoIndexError:
            return True

    async def _rows_of(self, space: str) -> list[Location]:
        return [(row.space, row.subject) async for _, row in self.rows(list_prefix(SPACE, space))]

    async def rows(self, prefix: bytes) -> AsyncGenerator[tuple[bytes, Row]]:
        """Yield the rows of a list, with the keys of their places."""
        after: bytes | None = None
        while True:
            page = await self.store.scan(self.space, prefix, after=after)
            keys = [row_key(digest_in(entry.key)) for entry in page.entries]
            entries = (await self.store.read(self.space, keys)).entries if keys else ()
            for place, entry in zip(page.entries, entries, strict=True):
                if entry is not None:
                    yield place.key, decode_row(entry.value, entry.key)
            if page.next is None:
                return
            after = page.next

    # ---- sweeping

    async def deliver(self) -> int:
        """Carry all outboxes of the tenant, and reconcile what dead carriers left. Return their number.

        The first call visits every space, each further one those that changed since.

        Raises:
            NoIndexError: The tenant has no index.
        """
        reading = await self.store.read(self.space, [layout.INDEX_META])
        if (entry := reading.entries[0]) is None:
            raise NoIndexError
        meta = decode_meta(entry)
        count = await self.sweep_marks() + (await self.sweep_expired(reading.now_ms))[0]
        since_ms = meta.swept_ms - _MARGIN_MS if meta.is_complete else None
        waiting: list[Location] = []
        async for space in self._changed_spaces(since_ms):
            async for subject in self.waiting_in(space) if meta.is_complete else self.subjects_in(space):
                waiting.append((space, subject))
                if len(waiting) == AT_ONCE:
                    count += len(await self.carry(waiting, rebuilds=not meta.is_complete))
                    waiting = []
        count += len(await self.carry(waiting, rebuilds=not meta.is_complete))
        done = MetaRecord(meta.format, True, reading.now_ms)
        check = Check(layout.INDEX_META, version=entry.version)
        raise_failure(
            (await self.store.apply([self._batch([Put(layout.INDEX_META, encode(done))], [check])]))[0]
        )
        return count

    async def waiting_in(self, space: str) -> AsyncGenerator[Subject]:
        """Yield the subjects of a space that have an outbox."""
        async for entries in scan_pages(self.store, stored_name(self.tenant, space), OUTBOXES):
            for entry in entries:
                yield subject_in(OUTBOXES, entry)

    def subjects_in(self, space: str) -> AsyncGenerator[Subject]:
        """Yield the subjects of a space as its own records tell; see `walk`."""
        return subjects_in(self.store, stored_name(self.tenant, space), space)

    async def spaces(self, *, only_first: bool = False) -> AsyncGenerator[str]:
        """Yield the names of the tenant's spaces."""
        async for names in self.space_pages():
            for _, name in names:
                yield name
                if only_first:
                    return

    async def space_pages(self) -> AsyncGenerator[list[tuple[str, str]]]:
        """Yield the spaces of the tenant in pages: their stored names, and their names."""
        after: str | None = None
        while page := await self.store.spaces(beginning(self.tenant), after=after):
            found = [
                (stored, parts_of(stored)[1])
                for stored in page
                if not is_reserved(stored) and (self.tenant is not None or not stored.startswith(TENANTS))
            ]
            if found:
                yield found
            after = page[-1]
            if self.tenant is None and after.startswith(TENANTS):
                return

    async def _changed_spaces(self, since_ms: int | None) -> AsyncGenerator[str]:
        """Yield the spaces that may have changed since a time; None yields all."""
        async for found in self.space_pages():
            times: Sequence[int | None] = [None] * len(found)
            if since_ms is not None and has_ability(type(self.store), ReportsLastChange):
                assert isinstance(self.store, ReportsLastChange)
                times = await self.store.changed_ms([stored for stored, _ in found])
            for (_, name), at_ms in zip(found, times, strict=True):
                if since_ms is None or at_ms is None or at_ms >= since_ms:
                    yield name

    async def sweep_marks(self) -> int:
        """Reconcile what marks stand for, and delete them. Return the number of marks deleted."""
        count = 0
        async for entry in self.marks(layout.CARRYING):
            mark = decode_stored(entry.value, Mark, entry.key)
            count += await self.reconcile((mark.space, Subject(mark.kind, mark.id)), entry.key)
        async for entry in self.marks(layout.DROPPING):
            space = space_of_drop(entry.key)
            begun_ms = decode_stored(entry.value, DropMark, entry.key).begun_ms
            is_settled, now_ms = (
                await self._reconcile_space(space),
                (await self.store.read(self.space, [])).now_ms,
            )
            # Until then the drop may still come, and its caller may die before the rows are reconciled.
            if is_settled and now_ms - begun_ms > _STALE_MS:
                await self._unmark([entry.key])
                count += 1
        return count

    async def sweep_expired(self, now_ms: int) -> tuple[int, int | None]:
        """Reconcile approvals that have expired: no batch of their spaces did that.

        Returns:
            Their number, and the time at which the next one expires, None if none does.
        """
        count, after = 0, None
        prefix = list_prefix(DUE, APPROVAL)
        while True:
            page = await self.store.scan(self.space, prefix, after=after, limit=AT_ONCE)
            for entry in page.entries:
                due_ms, digest = place_in(entry.key)
                if due_ms > now_ms:
                    return count, due_ms
                key = row_key(digest)
                stored = (await self.store.read(self.space, [key])).entries[0]
                if stored is not None:
                    row = decode_row(stored.value, key)
                    count += await self.reconcile((row.space, row.subject), None)
            if page.next is None:
                return count, None
            after = page.next

    async def marks(self, prefix: bytes) -> AsyncGenerator[Entry]:
        """Yield the marks of one kind."""
        async for entries in scan_pages(self.store, self.space, prefix):
            for entry in entries:
                yield entry


def space_of_drop(key: bytes) -> str:
    """Return the space in the key of a mark `dropping`."""
    match unpack(key[len(layout.DROPPING) :]):
        case (str(space), bytes()):
            return space
        case _:
            raise corrupt_error(describe(key), "it names no space")


def new_row(location: Location, item: CarriedSubject) -> tuple[Row | None, int | None]:
    """Return the row of a subject that was read, and its TTL; no row for an absent or expired one."""
    summary, reading, ttl_ms = item.reading.summary, item.reading, None
    if summary is not None and summary.expires_ms is not None:
        ttl_ms = summary.expires_ms - reading.now_ms
    if summary is None or (ttl_ms is not None and ttl_ms <= 0):
        return None, None
    return make_row(*location, reading, summary, item.changed_ms), ttl_ms


def _version(entry: Entry | None) -> int:
    return 0 if entry is None else entry.version


def raise_failure(outcome: Outcome) -> None:
    """Raise the error of a batch that was neither applied nor refused."""
    if isinstance(outcome, StorageError | InvalidError):
        raise outcome
