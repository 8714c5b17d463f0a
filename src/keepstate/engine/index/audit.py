"""Compares the index of a tenant with its spaces, and corrects it.

A delivery needs none of this: each row that is wrong has an outbox or a mark. An audit finds what damaged
bytes, a restored file or a fault of a program have left without one. It reads every row, every place in a
list, and every space. Each correction is one batch that checks the row, so that writers, carriers and other
audits may run at the same time, and an audit that is killed has only done less.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

import msgspec

from keepstate.engine.index.carrier import (
    AT_ONCE,
    Carrier,
    DropMark,
    Location,
    Mark,
    new_row,
    raise_failure,
    space_of_drop,
)
from keepstate.engine.index.rows import (
    MetaRecord,
    Row,
    decode_meta,
    decode_row,
    digest_in,
    digest_of,
    encode,
    places,
    row_key,
)
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import scan_pages
from keepstate.engine.kernel.stored import decode_stored, describe
from keepstate.engine.kernel.subjects import APPROVAL, QUEUE
from keepstate.errors import ConflictError, CorruptError, InvalidError
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Delete, Entry, Put, Write
from keepstate.values.key import pack, unpack

_PASSES: Final = 16


class Finding(NamedTuple):
    """An error of an index, and the batch that corrects it.

    Attributes:
        what: The error, for a person.
        location: The subject that is carried after the batch; None if there is none to carry.
        writes: The writes that correct the entries of the index itself.
        checks: The entries that must be unchanged.
    """

    what: str
    location: Location | None
    writes: Sequence[Write] = ()
    checks: Sequence[Check] = ()


class Audit:
    """An audit of the index of one tenant.

    Args:
        carrier: The carrier of the tenant.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier, self._store, self._space = carrier, carrier.store, carrier.space

    async def findings(self) -> AsyncGenerator[Finding]:
        """Yield the errors of the index, if there is one. What waits in an outbox is not an error."""
        meta = await self._carrier.meta()
        if meta is None:
            return
        try:
            decode_meta(meta)
        except CorruptError as error:
            put = Put(layout.INDEX_META, encode(MetaRecord()))
            yield Finding(str(error), None, [put], [Check(meta.key, version=meta.version)])
        for part in (layout.CARRYING, layout.DROPPING):
            async for entry in self._carrier.marks(part):
                if (what := _damage_of_mark(entry)) is not None:
                    checks = [Check(entry.key, version=entry.version)]
                    yield Finding(what, None, [Delete(entry.key)], checks)
        async for entries in scan_pages(self._store, self._space, layout.ROWS):
            for start in range(0, len(entries), AT_ONCE):
                for finding in await self._of_rows(entries[start : start + AT_ONCE]):
                    yield finding
        async for entries in scan_pages(self._store, self._space, layout.LISTS):
            for finding in await self._of_places([entry.key for entry in entries]):
                yield finding
        waiting = list[Location]()
        async for space in self._carrier.spaces():
            subjects = {subject async for subject in self._carrier.subjects_in(space)}
            waiting += [(space, subject) for subject in sorted(subjects)]
            while len(waiting) >= AT_ONCE:
                some, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
                for finding in await self._of_subjects(some):
                    yield finding
        for finding in await self._of_subjects(waiting):
            yield finding

    async def correct(self) -> int:
        """Correct the errors of the index, and return their number.

        Raises:
            ConflictError: Writers kept changing the same rows.
            NoIndexError: The tenant has no index.
        """
        count = 0
        for _ in range(_PASSES):
            has_met = False
            async for finding in self.findings():
                count += 1
                has_met |= not await self._correct(finding)
            if not has_met:
                return count
        raise ConflictError(
            f"the rows of {self._space!r} changed while they were corrected, {_PASSES} times; reindex later",
            space=self._space,
        )

    async def _correct(self, finding: Finding) -> bool:
        """Correct an error, and return whether that was done."""
        if finding.writes:
            meta = await self._carrier.meta()
            if meta is None:
                return True
            checks = [*finding.checks, Check(layout.INDEX_META, created=meta.created)]
            outcome = (await self._store.apply([Batch(self._space, finding.writes, checks)]))[0]
            raise_failure(outcome)
            if not isinstance(outcome, Applied):
                return False
        if finding.location is not None:
            await self._carrier.carry([finding.location], rebuilds=True)
        return True

    # ---- rows

    async def _of_rows(self, entries: Sequence[Entry]) -> list[Finding]:
        """Compare rows with their places and their subjects."""
        found, rows = list[Finding](), list[tuple[Entry, Row, set[bytes]]]()
        for entry in entries:
            check = Check(entry.key, version=entry.version)
            try:
                row = decode_row(entry.value, entry.key)
                digest = digest_of(self._carrier.name_of, row.space, row.subject)
                if entry.key != row_key(digest):
                    raise CorruptError(f"{describe(entry.key)} is the row of another subject")
            except CorruptError as error:
                # The row is missing until the audit comes to its space: until then the index is incomplete.
                gone: list[Write] = [Delete(entry.key), Put(layout.INDEX_META, encode(MetaRecord()))]
                found.append(Finding(str(error), None, gone, [check]))
                continue
            rows.append((entry, row, places(self._carrier.name_of, digest, row)))
        wanted = sorted(set[bytes]().union(*(lists for _, _, lists in rows)))
        present = (await self._store.read(self._space, wanted)).entries if wanted else ()
        missing = {key for key, entry in zip(wanted, present, strict=True) if entry is None}
        for entry, row, lists in rows:
            finding = await self._of_row(entry, row, lists & missing)
            if finding is not None and await self._is_still(entry):
                found.append(finding)
        return found

    async def _of_row(self, entry: Entry, row: Row, missing: set[bytes]) -> Finding | None:
        location, check = (row.space, row.subject), Check(entry.key, version=entry.version)
        item = await self._carrier.read(location)
        new, ttl_ms = new_row(location, item)
        if missing:
            puts = [Put(key, b"", ttl_ms) for key in sorted(missing)]
            return Finding(f"the row of {_name_of(location)} has no place in a list", location, puts, [check])
        if item.reading.outbox or await self._is_marked(location):
            return None
        if new is None:
            return Finding(f"{_name_of(location)} is listed and does not exist", location)
        if row.subject.kind == QUEUE and None not in (row.due_ms, new.due_ms):
            # A heartbeat moves the end of a claim to a later time, and the index is not told of it.
            new = msgspec.structs.replace(new, due_ms=min(row.due_ms or 0, new.due_ms or 0))
        now_ms = item.reading.now_ms
        if row.subject.kind == APPROVAL and new.state == "expired" and row.at(now_ms) is not row:
            return None  # it expires without a change of its space, and the next delivery stores that
        if not row.shows(new):
            return Finding(f"the row of {_name_of(location)} is not as it is", location)
        return None

    async def _is_still(self, entry: Entry) -> bool:
        now = (await self._store.read(self._space, [entry.key])).entries[0]
        return now is not None and now.version == entry.version

    async def _is_marked(self, location: Location) -> bool:
        space, subject = location
        digest = digest_of(self._carrier.name_of, space, subject)
        for prefix in (layout.CARRYING + pack(digest), layout.DROPPING + pack(space)):
            if (await self._store.scan(self._space, prefix, limit=1)).entries:
                return True
        return False

    # ---- places

    async def _of_places(self, keys: Sequence[bytes]) -> list[Finding]:
        """Return those places in lists that belong to no row."""
        doubted = {key: _row_of_place(key) for key in keys}
        rows = sorted({row for row in doubted.values() if row is not None})
        entries = dict(zip(rows, (await self._store.read(self._space, rows)).entries, strict=True))
        found = list[Finding]()
        for key, at in doubted.items():
            if self._is_place(key, None if at is None else entries[at]):
                continue
            wanted = [key] if at is None else [key, at]
            place, *row = (await self._store.read(self._space, wanted)).entries
            if place is None or self._is_place(key, row[0] if row else None):
                continue
            checks = [] if at is None else [_unchanged(at, row[0])]
            found.append(Finding(f"{describe(key)} belongs to no row", None, [Delete(key)], checks))
        return found

    def _is_place(self, key: bytes, entry: Entry | None) -> bool:
        if entry is None:
            return False
        try:
            row = decode_row(entry.value, entry.key)
        except CorruptError:
            return False
        digest = digest_of(self._carrier.name_of, row.space, row.subject)
        return key in places(self._carrier.name_of, digest, row)

    # ---- subjects

    async def _of_subjects(self, locations: Sequence[Location]) -> list[Finding]:
        """Return those subjects that exist and have no row."""
        if not locations:
            return []
        keys = [self._carrier.key_of(location) for location in locations]
        rows = (await self._store.read(self._space, keys)).entries
        found = list[Finding]()
        for location, row in zip(locations, rows, strict=True):
            if row is not None:
                continue
            item = await self._carrier.read(location)
            if item.reading.outbox or await self._is_marked(location):
                continue
            if new_row(location, item)[0] is not None:
                found.append(Finding(f"{_name_of(location)} exists and is not listed", location))
        return found


def _unchanged(key: bytes, entry: Entry | None) -> Check:
    return Check(key, ABSENT) if entry is None else Check(key, version=entry.version)


def _name_of(location: Location) -> str:
    space, subject = location
    return f"{subject.kind} {subject.id!r} of space {space!r}"


def _damage_of_mark(entry: Entry) -> str | None:
    is_drop = entry.key.startswith(layout.DROPPING)
    try:
        decode_stored(entry.value, DropMark if is_drop else Mark, entry.key)
        space_of_drop(entry.key) if is_drop else None
    except CorruptError as error:
        return str(error)
    return None


def _row_of_place(key: bytes) -> bytes | None:
    """Return the key of the row that a place belongs to; None if the place names none."""
    try:
        return row_key(digest_in(key)) if unpack(key[len(layout.LISTS) :]) else None
    except (CorruptError, InvalidError):
        return None
