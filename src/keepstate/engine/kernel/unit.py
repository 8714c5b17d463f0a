"""Unit of work on one space: a set of reads and writes that commit together as one batch.

All reads of a unit see one revision. If the space changed between two reads, the unit rereads its earlier
entries. If they are unchanged, its view moves to the later revision; otherwise it raises `ConflictError`
immediately. Every entry read by key becomes a check of that key. After a scan, the whole space must still be
at the unit's revision on commit, which prevents phantoms and write skew.

A unit has one time, that of its first read, and evaluates all expiry at that time. Expiry creates no
revision. Entries that the unit saw alive must therefore still be alive when its view moves to a later
revision, and when a batch that does not check them by key is applied.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec

from keepstate import names
from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.grants import apply_granted, life_at, needs_grant
from keepstate.engine.kernel.locks import find_update_in_progress
from keepstate.engine.kernel.recorded import Note, RecordedCommit
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.store_cache import (
    ReadPrefetch,
    Supposition,
    cache_of,
    drop_known,
    is_worth_keeping,
)
from keepstate.engine.kernel.stored import conflict_error, describe
from keepstate.engine.kernel.subjects import Subject, changed_subjects, encode_time
from keepstate.errors import ConflictError, CorruptError, InvalidError, KeepstateError
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Check,
    Conflict,
    Delete,
    Entry,
    Mark,
    Put,
    Reading,
    Store,
    Write,
)
from keepstate.values import limits

_KEY_OF_CHECK: Final = operator.attrgetter("key")
_SUPPOSED_KEYS: Final = 64
_PURPOSE_LETTERS: Final = 64
UNWRITTEN: Final = 0
"""The version of an entry that its unit has written but not yet committed."""


class NotWrittenError(Exception):
    """A unit that supposes would write nothing. It never reaches a caller."""


class Unit:
    """Reads and writes of one space that commit together.

    Args:
        store: The store of the space.
        space: The name of the space in the store.
        name: The name of the space in messages, without its tenant.
        purpose: What the unit does. Its first read also asks for what units of the same purpose, which began
            with the same key, went on to read; see `ReadPrefetch`.

    Attributes:
        is_sent: Whether the batch may have been applied.
        applied: The outcome of the batch, if it has written something.
        is_learned: Whether the caller keeps what the unit leaves, for later work that supposes.
        subjects: The subjects that the unit changes: queues as they are noted, all of them once it commits.
        due_ms: The earliest time at which a task can be claimed that the unit moves, by queue.
    """

    # Few units change these, and every call makes a unit.
    is_sent = is_learned = False
    applied: Applied | None = None
    subjects: Set[Subject] = frozenset()
    due_ms: Mapping[Subject, int] = MappingProxyType({})
    _purpose: str | None = None
    _first: bytes | None = None
    _followed: list[bytes]
    _ahead: dict[bytes, Entry | None] | None = None
    """Entries of the unit's revision that were read before they were asked for. They are not checked."""
    _supposable: Supposition | None = None
    _has_supposed_time = False
    _supposed: Set[bytes] = frozenset()
    """Keys in `_found` whose entries were not read yet."""
    _needs_grant = False
    _began_in: int | None = None
    """The life of the space's tenant when the unit began, if this process knew it."""
    _most_checks = limits.BATCH_CHECKS

    def __init__(
        self, store: Store, space: str, name: str | None = None, *, purpose: str | None = None
    ) -> None:
        self.store, self.space = store, space
        self.name = space if name is None else name
        self._losses = LossDetector(store, space, self.name)
        if space.startswith(names.TENANTS) and needs_grant(space):
            self._needs_grant, self._began_in = True, life_at(store, space)
            self._most_checks -= 1
        self.revision: int | None = None
        self.scanned_at = Mark(0, b"")
        """The mark of the revision of the unit's last scan."""
        self._now_ms: int | None = None
        self._alive_until_ms: int | None = None
        self._moved_at_ms = 0
        self._found: dict[bytes, Entry | None] = {}
        if purpose is not None:
            self._purpose, self._followed = purpose[:_PURPOSE_LETTERS], list[bytes]()
        self._writes: dict[bytes, Put | Delete] = {}
        self._stamped: list[Put] = []
        self._checks: list[Check] = []
        self._arguments: dict[bytes, str] = {}
        self._has_scanned = False
        self._parts: dict[bytes, bytes] = {}
        self._objects: dict[bytes, bytes] = {}
        self._whole: dict[bytes, bytes] = {}
        self.document_writes = 0
        """The number of writes and deletions of documents, repeated ones included."""
        self.notes: list[Note] = []
        """A note on each piece of work that changed documents, in a shared transaction."""
        self.registered: dict[str, Any] = {}
        """The rules of indexed collections that the unit's batch sets, by name; see `WriteRules`."""
        self._permitted: dict[bytes, Write] = {}
        self.recorded: RecordedCommit | None = None
        """The history commit of the unit in a recorded space."""

    # ---- reading

    def assume_cached(self, entries: Mapping[bytes, Entry | None], revision: int, now_ms: int) -> None:
        """Seed the read set from cached entries.

        Their versions are checked on commit, so a stale cache causes a conflict, never a lost update.
        """
        self._found.update(entries)
        self._note_expiry(entries.values())
        self.revision, self._now_ms = revision, now_ms

    def assume_scanned(
        self, entries: Mapping[bytes, Entry | None], revision: int, now_ms: int, *, until_ms: int
    ) -> None:
        """Seed the read set with what a scan at a revision found.

        The batch requires that revision, and that the space's time is below `until_ms`.
        """
        self.assume_cached(entries, revision, now_ms)
        self._has_scanned = True
        self._alive_until_ms = _min_known(self._alive_until_ms, until_ms)

    def suppose(self, supposed: Supposition) -> None:
        """Take entries without reading them, until the unit needs another one, or scans.

        Then all that was supposed is read too. If the work raises while `is_supposing`, the caller runs it
        again in another unit, unless what was supposed `still_holds`.
        """
        self._supposable = supposed

    @property
    def is_supposing(self) -> bool:
        """True if the unit has taken entries that it did not read."""
        return bool(self._supposed)

    async def still_holds(self) -> bool:
        """Return whether the store confirms all that the unit has supposed."""
        keys = [*self._supposed]
        entries = (await self.store.read(self.space, keys)).entries
        are_same = all(map(_is_same, entries, [self._found[key] for key in keys]))
        return are_same and not self._has_supposed_time and not self._losses.has_lost_history

    async def read(self, *keys: bytes) -> list[Entry | None]:
        """Return entries at the unit's revision, or as the unit itself has written them."""
        await self._fetch([key for key in keys if key not in self._found and key not in self._writes])
        return [self._own_entry(key) if key in self._writes else self._found[key] for key in keys]

    async def get(self, key: bytes) -> Entry | None:
        """Return one entry."""
        if key in self._writes:
            return self._own_entry(key)
        if key not in self._found:
            await self._fetch((key,))
        return self._found[key]

    async def now_ms(self) -> int:
        """Return the space's time, read from the store at most once per unit."""
        if self._now_ms is None and self._supposable is not None:
            if self._supposable.now_ms is not None:
                self._has_supposed_time = True
                return self._supposable.now_ms  # not kept: no expiry is judged by it
            await self._confirm()
        if self._now_ms is None:
            self._now_ms = (await self.store.read(self.space, [])).now_ms
        return self._now_ms

    async def confirmed_now_ms(self) -> int:
        """Return the space's time from a read of the store, also in a unit that supposes.

        For work whose result depends on the time, such as the day that a use counts in.
        """
        if self._supposable is not None:
            await self._confirm()
        return await self.now_ms()

    @property
    def known_now_ms(self) -> int:
        """The space's time at the first read; 0 before that."""
        return self._now_ms or 0

    async def value(self, entry: Entry) -> bytes:
        """Return the complete value of an entry that this unit has read or written.

        Raises:
            ConflictError: The entry was replaced while its parts were read.
            CorruptError: A part is missing under an unchanged entry, or damaged.
        """
        if entry.version == UNWRITTEN and entry.key in self._whole:
            return self._whole[entry.key]
        return await large_values.read_whole(self.store, self.space, entry)

    async def objects(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries named by their content. They need no checks, because they never change."""
        missing = [key for key in keys if key not in self._objects]
        found = dict.fromkeys(keys, cast("Entry | None", None))
        if missing:
            reading = await self.store.read(self.space, missing)
            self._losses.verify()
            found |= dict(zip(missing, reading.entries, strict=True))
        for key in keys:
            if key in self._objects:
                found[key] = Entry(key, self._objects[key], UNWRITTEN, UNWRITTEN)
        return [found[key] for key in keys]

    async def verify(self) -> None:
        """Raise `ConflictError` if entries that the unit read by key have changed since."""
        batch = msgspec.structs.replace(self.batch(), writes=(), losses=None)
        outcome = (await self.store.apply([batch]))[0]
        if isinstance(outcome, Conflict):
            raise self._conflict_error(outcome, batch.at)

    async def _fetch(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        if self._purpose is not None:
            if self._first is None:
                self._first = keys[0]
            else:
                self._followed += keys
            if self._ahead and not (keys := self._take_ahead(keys, self._ahead)):
                return
        if self._supposable is not None:
            known = self._supposable.entries
            if all(key in known for key in keys) and len(self._found) + len(keys) <= _SUPPOSED_KEYS:
                self._found.update((key, known[key]) for key in keys)
                self._supposed = {*self._supposed, *keys}
                return
            self._supposable = None
            keys = [*keys, *self._supposed]
        await self._fetch_now(keys)

    async def _confirm(self) -> None:
        """Read the entries that were supposed, and suppose nothing from now on."""
        self._supposable = None
        if self._supposed:
            await self._fetch_now([*self._supposed])

    async def _fetch_now(self, keys: Sequence[bytes]) -> None:
        reading = await self._read_ahead(keys)
        self._losses.verify()
        if self.revision is not None and reading.revision != self.revision:
            reading = await self._read_at_later_revision(keys, reading)
            self._losses.verify()
        self._move_to(reading.revision, reading.now_ms)
        for key, entry in zip(keys, reading.entries, strict=False):  # a reread contains the earlier keys too
            if key in self._supposed and not _is_same(entry, self._found[key]):
                raise self._changed_error(key, entry.version if entry else 0)
            self._found[key] = entry
        self._supposed = frozenset()
        self._note_expiry(reading.entries)

    async def _read_ahead(self, keys: Sequence[bytes]) -> Reading:
        """Read keys; the first read of a unit also asks for what similar units went on to read."""
        expected: Sequence[bytes] = ()
        if self._purpose is not None and self.revision is None:
            prefetch = cache_of(self.store).part(ReadPrefetch)
            place = self.space, self._purpose, keys[0]
            expected = [key for key in prefetch.expected(place) if key not in keys]
        if expected and len(keys) + len(expected) <= limits.READ_KEYS:
            try:
                reading = await self.store.read(self.space, [*keys, *expected], at_ms=self._now_ms)
            except (InvalidError, CorruptError):  # too large together, or one of the others is damaged
                return await self.store.read(self.space, keys, at_ms=self._now_ms)
            self._ahead = dict(zip(expected, reading.entries[len(keys) :], strict=True))
            return Reading(reading.entries[: len(keys)], reading.revision, reading.now_ms)
        return await self.store.read(self.space, keys, at_ms=self._now_ms)

    def _take_ahead(self, keys: Sequence[bytes], ahead: dict[bytes, Entry | None]) -> list[bytes]:
        """Take entries that were read ahead of time, and return the other keys."""
        taken = {key: ahead.pop(key) for key in keys if key in ahead}
        self._found.update(taken)
        self._note_expiry(taken.values())
        return [key for key in keys if key not in taken]

    async def _read_at_later_revision(self, keys: Sequence[bytes], reading: Reading) -> Reading:
        """Read `keys` at a later revision at which all entries read before are unchanged."""
        before = list(self._found)
        if self._has_scanned or len(before) + len(keys) > limits.READ_KEYS:
            raise self._changed_error(None, reading.revision)
        try:
            reading = await self.store.read(self.space, [*keys, *before], at_ms=self._now_ms)
        except InvalidError as error:  # too large for one read
            raise self._changed_error(None, reading.revision) from error
        for key, entry in zip(before, reading.entries[len(keys) :], strict=True):
            known = self._found[key]
            if not _is_same(entry, known):
                raise self._changed_error(key, entry.version if entry else 0)
        return reading

    def _move_to(self, revision: int, now_ms: int) -> None:
        """Move the view to a revision; `now_ms` is a time at which the space had it."""
        if self._now_ms is None:
            self._now_ms = now_ms
        elif revision != self.revision:
            self._moved_at_ms = now_ms
            self._ahead = None
        self.revision = revision

    def _note_expiry(self, entries: Iterable[Entry | None]) -> None:
        """Track the earliest expiry of all entries seen.

        Raises:
            ConflictError: An entry had expired before the space reached the view's revision. The entry and
                that revision never existed at the same time.
        """
        for entry in entries:
            if entry is not None and entry.expires_at_ms is not None:
                self._alive_until_ms = _min_known(self._alive_until_ms, entry.expires_at_ms)
        if self._alive_until_ms is not None and self._alive_until_ms <= self._moved_at_ms:
            raise self._expired_error()

    def _expired_error(self) -> ConflictError:
        return ConflictError(
            f"an entry of space {self.name!r} expired after the transaction read it. Read it again and retry",
            space=self.name,
            actual=self.revision or 0,
        )

    def _changed_error(self, key: bytes | None, actual: int) -> ConflictError:
        what = f"{describe(key)} of {self.name!r}" if key is not None else f"space {self.name!r}"
        return ConflictError(
            f"{what} changed while a transaction read it. Run the transaction again, or use transact()",
            space=self.name,
            key=key,
            actual=actual,
        )

    def _own_entry(self, key: bytes) -> Entry | None:
        write = self._writes[key]
        if isinstance(write, Delete):
            return None
        known = self._found.get(key)
        return Entry(key, write.value, UNWRITTEN, known.created if known else UNWRITTEN)

    # ---- scanning

    async def scan(
        self,
        prefix: bytes,
        *,
        after: bytes | None = None,
        before: bytes | None = None,
        reverse: bool = False,
        at_once: int | None = None,
    ) -> AsyncIterator[Entry]:
        """Yield all entries under a prefix, own writes included, and guard the unit against phantoms.

        Args:
            prefix: The prefix of the keys.
            after: Only keys above this one, which starts with the prefix.
            before: Only keys below this one, which starts with the prefix.
            reverse: Whether to begin with the last key.
            at_once: The largest number of entries in one read, to read no more than a short page needs.
        """
        self._has_scanned = True
        own = sorted(
            (key for key in self._writes if key.startswith(prefix) and _is_between(key, after, before)),
            reverse=reverse,
        )
        is_earlier = operator.gt if reverse else operator.lt
        index = 0
        async for entry in self._scan_store(
            prefix, after, before, reverse=reverse, at_once=at_once or limits.PAGE_ROWS
        ):
            while index < len(own) and is_earlier(own[index], entry.key):
                if (mine := self._own_entry(own[index])) is not None:
                    yield mine
                index += 1
            if index < len(own) and own[index] == entry.key:
                continue
            yield entry
        for key in own[index:]:
            if (mine := self._own_entry(key)) is not None:
                yield mine

    async def _scan_store(
        self, prefix: bytes, after: bytes | None, before: bytes | None, *, reverse: bool, at_once: int
    ) -> AsyncIterator[Entry]:
        await self._confirm()
        start = before if reverse else after
        while True:
            page = await self.store.scan(
                self.space, prefix, after=start, limit=at_once, reverse=reverse, at_ms=self._now_ms
            )
            self._losses.verify()
            if self.revision is not None and page.revision != self.revision:
                raise self._changed_error(None, page.revision)
            self._move_to(page.revision, page.now_ms)
            self.scanned_at = Mark(page.revision, page.nonce)
            self._note_expiry(page.entries)
            for entry in page.entries:
                if not _is_between(entry.key, after, before):
                    return
                yield entry
            if page.next is None:
                return
            start = page.next

    def appended(self, prefix: bytes) -> list[bytes]:
        """Return the values that the unit will append under exactly this prefix."""
        return [self._whole.get(put.value, put.value) for put in self._stamped if put.key == prefix]

    def appended_under(self, prefix: bytes) -> list[bytes]:
        """Return the values that the unit will append under keys that start with the prefix."""
        return [put.value for put in self._stamped if put.key.startswith(prefix)]

    # ---- writing

    def put(self, key: bytes, value: bytes, *, ttl_ms: int | None = None) -> None:
        """Write a value of any size."""
        self._whole.pop(key, None)
        if len(value) > limits.VALUE_BYTES:
            self._whole[key], value = value, self._split(value)
        self._writes[key] = Put(key, value, ttl_ms)
        self.document_writes += key.startswith(layout.DOCUMENTS)

    def put_object(self, key: bytes, value: bytes) -> None:
        """Write an object named by its content. If the batch is too large, objects are written before it."""
        if len(value) > limits.VALUE_BYTES:
            self._whole[key], value = value, self._split(value)
        self._objects[key] = value

    def append(self, prefix: bytes, value: bytes, *, ttl_ms: int | None = None) -> int:
        """Write a value of any size under a prefix with a stamp, and return the index of the stamp."""
        small = value
        if len(value) > limits.VALUE_BYTES:
            small = self._split(value)
            self._whole[small] = value
        self._stamped.append(Put(prefix, small, ttl_ms, stamp=True))
        return len(self._stamped) - 1

    def _split(self, value: bytes) -> bytes:
        """Add the parts of a large value to the unit, and return the manifest that replaces the value."""
        manifest, pieces = large_values.split(self.store, self.space, value)
        self._parts.update(pieces)
        return manifest

    def delete(self, key: bytes) -> None:
        """Delete an entry."""
        self._whole.pop(key, None)
        self._writes[key] = Delete(key)
        self.document_writes += key.startswith(layout.DOCUMENTS)

    def check(
        self,
        key: bytes,
        *,
        version: int | None = None,
        created: int | None = None,
        argument: str | None = None,
    ) -> None:
        """Commit only if the entry still has this version, or is still the one created at a version.

        Args:
            key: The key of the entry.
            version: The required version; 0 for an absent entry.
            created: The version at which the entry was created.
            argument: The caller's argument that required the check, for the error.
        """
        if argument is not None:
            self._arguments[key] = argument
        known = self._found.get(key)
        if version is not None and key in self._found and version != (found := known.version if known else 0):
            raise self._conflict_error(Conflict(key, found))
        check = Check(key, version=version, created=created)
        if check not in self._checks:
            self._checks.append(check)

    def require_no_loss(self, losses: LossDetector) -> None:
        """Make the commit fail if the store has lost history since this unit's data was read."""
        losses.verify()
        self._losses = losses

    def written(self, prefix: bytes) -> dict[bytes, bytes | None]:
        """Return the complete values that the unit will write under a prefix; None for a deletion."""
        return {
            key: self._whole.get(key, write.value) if isinstance(write, Put) else None
            for key, write in self._writes.items()
            if key.startswith(prefix)
        }

    def permit(self, key: bytes) -> None:
        """Declare that the present write of a record changes its index entries too."""
        self._permitted[key] = self._writes[key]

    def written_around(self, prefixes: tuple[bytes, ...]) -> list[bytes]:
        """Return the keys under the prefixes that the unit writes without their index entries."""
        return [
            key
            for key, write in self._writes.items()
            if key.startswith(prefixes) and self._permitted.get(key) is not write
        ]

    def expiring(self, prefix: bytes) -> dict[bytes, int]:
        """Return the TTL in milliseconds of each write under a prefix that has one."""
        return {
            key: write.ttl_ms
            for key, write in self._writes.items()
            if isinstance(write, Put) and write.ttl_ms is not None and key.startswith(prefix)
        }

    def written_objects(self, prefix: bytes) -> list[bytes]:
        """Return the keys of objects under a prefix that the unit will write."""
        return [key for key in self._objects if key.startswith(prefix)]

    @property
    def losses(self) -> LossDetector:
        """The detector of losses since the unit's first read."""
        return self._losses

    def has_read(self, key: bytes) -> bool:
        """Return whether the unit has read this key, and will check it."""
        return key in self._found

    def found(self, *prefixes: bytes) -> Iterator[Entry]:
        """Yield the entries under some prefixes that the unit has read by key."""
        for key, entry in self._found.items():
            if entry is not None and key.startswith(prefixes):
                yield entry

    def as_read(self, key: bytes) -> Entry | None:
        """Return an entry as it was read."""
        return self._found.get(key)

    def as_applied(self, key: bytes, revision: int) -> Entry | None:
        """Return an entry as it is after the unit was applied at a revision."""
        write, known = self._writes.get(key), self._found.get(key)
        if isinstance(write, Put):
            return Entry(key, write.value, revision, known.created if known else revision)
        return known if write is None else None

    def outcome(self, revision: int) -> dict[bytes, tuple[Entry | None, Entry | None]]:
        """Return the entries that the unit has read: as they were, and after it was applied at a revision.

        Large entries and those that expire are left out.
        """
        return {
            key: (found, left)
            for key, found in self._found.items()
            if is_worth_keeping(found)
            and self.own_ttl_ms(key) is None
            and is_worth_keeping(left := self.as_applied(key, revision))
        }

    def own_ttl_ms(self, key: bytes) -> int | None:
        """Return the TTL of the unit's own write under a key; None if it never expires."""
        write = self._writes.get(key)
        return write.ttl_ms if isinstance(write, Put) else None

    def knows(self, key: bytes) -> bool:
        """Return whether the unit has read or written this key."""
        return key in self._found or key in self._writes

    def _write_outboxes(self, companion: Unit | None) -> None:
        """Write the outbox of each subject that the unit changes."""
        if subjects := self.subjects | changed_subjects(self.name, self._writes):
            self.subjects, supposed = subjects, self._supposable
            now_ms = self._now_ms or (companion and companion._now_ms) or (supposed and supposed.now_ms)
            value = encode_time(now_ms or 0)
            self._writes |= {key: Put(key, value) for key in map(Subject.outbox_key, subjects)}

    # ---- committing

    @property
    def writes(self) -> bool:
        """True if there are writes to commit."""
        return bool(self._writes or self._stamped)

    def batch(self, companion: Unit | None = None) -> Batch:
        """Return the current batch of the unit and its companion, without the parts of large values."""
        checks = self._all_checks()
        others = (
            [] if companion is None else [check for check in companion._all_checks() if check not in checks]
        )
        # Stamped writes come first: a stamp contains the index of its write, which orders events of one
        # batch.
        writes: list[Write] = [*self._stamped, *self._writes.values()]
        at = alive_until_ms = None
        if self._has_scanned or len(checks) + len(others) > self._most_checks:
            at, checks, alive_until_ms = self.revision, self._checks, self._alive_until_ms
        if companion is not None:
            writes += companion._writes.values()
            if companion._has_scanned:
                at = _min_known(at, companion.revision)  # the space can be at only one of two revisions
                alive_until_ms = _min_known(alive_until_ms, companion._alive_until_ms)
        losses = self._losses.known
        checks = [*checks, *others]
        return Batch(self.space, writes, checks, at, losses=losses, alive_until_ms=alive_until_ms)

    def _all_checks(self) -> list[Check]:
        checks = list(self._checks)
        if not self._found:
            return checks
        checked = set(map(_KEY_OF_CHECK, checks))
        for key, entry in self._found.items():
            if key not in checked:
                checks.append(Check(key, version=entry.version if entry else 0))
        return checks

    async def commit(self, companion: Unit | None = None) -> Applied | None:
        """Apply the unit. Return None if there is nothing to write and no explicit check.

        Args:
            companion: Another unit, with reads at its own revision, to commit in the same batch.

        Raises:
            ConflictError: An entry that the unit read or checks has changed. Nothing was applied.
            InvalidError: It writes a document inside the function that `update` called for this document.
        """
        if self._purpose is not None and self._first is not None:
            place = self.space, self._purpose, self._first
            cache_of(self.store).part(ReadPrefetch).note(place, self._followed, self._found)
        if self._supposed and not self.writes:
            raise NotWrittenError
        if not self.writes and not self._checks:
            return None
        if self._writes:
            self._write_outboxes(companion)
        if (own := find_update_in_progress(self.store, self.space, self._writes)) is not None:
            raise InvalidError(
                f"{describe(own)} of {self.name!r} is written inside the function passed to its update(). "
                "Return the new value from the function instead"
            )
        # Beyond the largest number of checks in a batch, only a revision that was read guards it.
        others = 0 if companion is None else len(companion._found)
        if self._supposed and len(self._found) + len(self._checks) + others > _SUPPOSED_KEYS:
            await self._confirm()
        parts = self._needed_parts()
        if companion is not None:
            parts = parts | companion._needed_parts()
        batch = self.batch(companion)
        self.is_sent = True
        if self._needs_grant and batch.writes:
            outcome = await apply_granted(self.store, batch, parts, self._began_in)
        else:
            outcome = await large_values.apply_with_parts(self.store, batch, parts)
        if isinstance(outcome, Applied):
            self.applied = outcome if self.writes else None
            if not self.is_learned:
                drop_known(self.store, self.space, self._writes)
            if companion is not None:
                drop_known(self.store, self.space, companion._writes)
            return outcome
        if isinstance(outcome, KeepstateError):
            raise outcome
        self.is_sent = False
        raise self._conflict_error(outcome, batch.at)

    def is_checking(self, key: bytes | None) -> bool:
        """Return whether the unit checks this key; None means the revision of the space."""
        if key is None:
            return self._has_scanned or len(self._found) + len(self._checks) > self._most_checks
        return key in self._found or any(check.key == key for check in self._checks)

    def add_check(self, check: Check) -> None:
        """Commit only if a check holds, also of an entry that the unit did not read."""
        self._checks.append(check)

    def drop_checks(self, key: bytes) -> None:
        """Drop all explicit checks of a key."""
        self._checks = [check for check in self._checks if check.key != key]

    def _needed_parts(self) -> dict[bytes, bytes]:
        if not self._parts:
            return self._objects
        values = [put.value for put in (*self._writes.values(), *self._stamped) if isinstance(put, Put)]
        named = large_values.part_keys_in([*values, *self._objects.values()])
        return {key: part for key, part in self._parts.items() if key in named} | self._objects

    def _conflict_error(self, conflict: Conflict, at: int | None = None) -> ConflictError:
        """Return the error for a rejected batch, given its `at`."""
        if conflict.key is None and conflict.actual == at:
            return self._expired_error()
        return conflict_error(self.name, conflict, self._arguments)


def _is_between(key: bytes, after: bytes | None, before: bytes | None) -> bool:
    return (after is None or key > after) and (before is None or key < before)


def _is_same(one: Entry | None, other: Entry | None) -> bool:
    return (one and one.version) == (other and other.version)


def _min_known(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two numbers, ignoring None."""
    return min((number for number in (one, other) if number is not None), default=None)
