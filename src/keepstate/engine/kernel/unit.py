"""A unit of work on one space: what was read, what is to be written, and the one batch that both become.

All reads of a unit see one revision. Where the space has moved on between two reads, the unit reads again
what it had read before: if nothing of that has changed its view moves along, else it raises `ConflictError`
at once. What it read by key becomes a check of that key; once it has scanned, the whole space must still be
at its revision when it commits, so that neither a phantom nor a write skew gets through.

A unit has one time, that of its first reading: all expiry is judged then. Expiry takes no revision. So what
the unit saw alive must still be alive when its view moves to a later revision, and when a batch applies that
does not check it by key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

import msgspec

from keepstate.engine.kernel import large_values, layout
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.update_lock import find_update_in_progress
from keepstate.errors import ConflictError, InvalidError, KeepstateError
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

UNWRITTEN: Final = 0
"""The version of an entry that its unit has written and not yet committed."""


class RecordedCommit(Protocol):
    """The commit that a unit has become in a recorded space."""

    @property
    def id(self) -> bytes:
        """The name of the commit."""
        ...

    @property
    def record(self) -> Any:
        """The decoded record of the commit."""
        ...

    @property
    def number(self) -> int:
        """The number of commits that lead to it by first parents."""
        ...


class Unit:
    """Reads and writes of one space that commit together.

    Args:
        store: Where the space is.
        space: The name of the space in the store.
        name: What messages call it: its name without its tenant.
    """

    def __init__(self, store: Store, space: str, name: str | None = None) -> None:
        self.store, self.space = store, space
        self.name = space if name is None else name
        self._losses = LossDetector(store, space, self.name)
        self.revision: int | None = None
        self.scanned_at = Mark(0, b"")
        """The mark of the revision at which the unit has scanned."""
        self._now_ms: int | None = None
        self._alive_until_ms: int | None = None
        self._moved_at_ms = 0
        self._found: dict[bytes, Entry | None] = {}
        self._writes: dict[bytes, Put | Delete] = {}
        self._stamped: list[Put] = []
        self._checks: list[Check] = []
        self._asked: dict[bytes, str] = {}
        self._guarded = False
        self._parts: dict[bytes, bytes] = {}
        self._objects: dict[bytes, bytes] = {}
        self._whole: dict[bytes, bytes] = {}
        self.document_writes = 0
        """How often it was told to write or remove a document."""
        self.notes: list[tuple[str | None, str]] = []
        """Who changed documents, and what for, where that was not all the same."""
        self.recorded: RecordedCommit | None = None
        """The commit that it has become in a recorded space."""

    # ---- reading

    def assume_cached(self, entries: Mapping[bytes, Entry | None], revision: int, now_ms: int) -> None:
        """Take entries for what a first read would find; the batch checks them like those that are read."""
        self._found.update(entries)
        self._see(entries.values())
        self.revision, self._now_ms = revision, now_ms

    async def read(self, *keys: bytes) -> list[Entry | None]:
        """Return entries as of the unit's revision, or as the unit itself has written them."""
        await self._find([key for key in keys if key not in self._found and key not in self._writes])
        return [self._own(key) if key in self._writes else self._found[key] for key in keys]

    async def get(self, key: bytes) -> Entry | None:
        """Return one entry."""
        return (await self.read(key))[0]

    async def now_ms(self) -> int:
        """Return the space's time, asked of the store once a unit."""
        if self._now_ms is None:
            self._now_ms = (await self.store.read(self.space, [])).now_ms
        return self._now_ms

    async def value(self, entry: Entry) -> bytes:
        """Return the whole value of an entry that this unit has read or written.

        Raises:
            ConflictError: The entry was replaced while its parts were read.
            CorruptError: A part is missing under an unchanged entry, or damaged.
        """
        if entry.version == UNWRITTEN and entry.key in self._whole:
            return self._whole[entry.key]
        return await large_values.read_whole(self.store, self.space, entry)

    async def objects(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries named by their content, which no check need guard: they are the same or absent."""
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
        """Raise `ConflictError` if what the unit has read by key has changed since."""
        batch = msgspec.structs.replace(self.batch(), writes=(), losses=None)
        outcome = (await self.store.apply([batch]))[0]
        if isinstance(outcome, Conflict):
            raise self._refused(outcome, batch.at)

    async def _find(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        reading = await self.store.read(self.space, keys, at_ms=self._now_ms)
        self._losses.verify()
        if self.revision is not None and reading.revision != self.revision:
            reading = await self._move_along(keys, reading)
            self._losses.verify()
        self._stand_at(reading.revision, reading.now_ms)
        for key, entry in zip(keys, reading.entries, strict=False):  # a reading that moved along has more
            self._found[key] = entry
        self._see(reading.entries)

    async def _move_along(self, keys: Sequence[bytes], reading: Reading) -> Reading:
        """Return a reading of `keys` at a revision at which all that was read before is unchanged."""
        before = list(self._found)
        if self._guarded or len(before) + len(keys) > limits.READ_KEYS:
            raise self._moved(None, reading.revision)
        try:
            reading = await self.store.read(self.space, [*keys, *before], at_ms=self._now_ms)
        except InvalidError as error:  # together they pass the limit of one read
            raise self._moved(None, reading.revision) from error
        for key, entry in zip(before, reading.entries[len(keys) :], strict=True):
            known = self._found[key]
            if (entry and entry.version) != (known and known.version):
                raise self._moved(key, entry.version if entry else 0)
        return reading

    def _stand_at(self, revision: int, now_ms: int) -> None:
        """Move the view to a revision; `now_ms` is a time at which the space had it."""
        if self._now_ms is None:
            self._now_ms = now_ms
        elif revision != self.revision:
            self._moved_at_ms = now_ms
        self.revision = revision

    def _see(self, entries: Iterable[Entry | None]) -> None:
        """Note when the first of all seen entries expires.

        Raises:
            ConflictError: One had expired before the space came to the revision of the view, so that the
                two never were together.
        """
        for entry in entries:
            if entry is not None and entry.expires_at_ms is not None:
                self._alive_until_ms = _least(self._alive_until_ms, entry.expires_at_ms)
        if self._alive_until_ms is not None and self._alive_until_ms <= self._moved_at_ms:
            raise self._expired()

    def _expired(self) -> ConflictError:
        return ConflictError(
            f"what a transaction had read of {self.name!r} has expired; read again and try again",
            space=self.name,
            actual=self.revision or 0,
        )

    def _moved(self, key: bytes | None, actual: int) -> ConflictError:
        what = f"{describe(key)} of {self.name!r}" if key is not None else f"space {self.name!r}"
        return ConflictError(
            f"{what} changed while a transaction was reading; try again",
            space=self.name,
            key=key,
            actual=actual,
        )

    def _own(self, key: bytes) -> Entry | None:
        write = self._writes[key]
        if isinstance(write, Delete):
            return None
        known = self._found.get(key)
        return Entry(key, write.value, UNWRITTEN, known.created if known else UNWRITTEN)

    # ---- scanning

    async def scan(self, prefix: bytes, *, after: bytes | None = None) -> AsyncIterator[Entry]:
        """Yield all entries under a prefix, own writes included, and guards the unit against phantoms."""
        self._guarded = True
        own = sorted(key for key in self._writes if key.startswith(prefix) and (after is None or key > after))
        place = 0
        async for entry in self._stored(prefix, after):
            while place < len(own) and own[place] < entry.key:
                if (mine := self._own(own[place])) is not None:
                    yield mine
                place += 1
            if place < len(own) and own[place] == entry.key:
                continue
            yield entry
        for key in own[place:]:
            if (mine := self._own(key)) is not None:
                yield mine

    async def _stored(self, prefix: bytes, after: bytes | None) -> AsyncIterator[Entry]:
        while True:
            page = await self.store.scan(
                self.space, prefix, after=after, limit=limits.PAGE_ROWS, at_ms=self._now_ms
            )
            self._losses.verify()
            if self.revision is not None and page.revision != self.revision:
                raise self._moved(None, page.revision)
            self._stand_at(page.revision, page.now_ms)
            self.scanned_at = Mark(page.revision, page.nonce)
            self._see(page.entries)
            for entry in page.entries:
                yield entry
            if page.next is None:
                return
            after = page.next

    def appended(self, prefix: bytes) -> list[bytes]:
        """Return the values that the unit itself will append under exactly this prefix."""
        return [self._whole.get(put.value, put.value) for put in self._stamped if put.key == prefix]

    def appended_under(self, prefix: bytes) -> list[bytes]:
        """Return the values that the unit itself will append under any key that starts with the prefix."""
        return [put.value for put in self._stamped if put.key.startswith(prefix)]

    # ---- writing

    def put(self, key: bytes, value: bytes, *, ttl_ms: int | None = None) -> None:
        """Write a value of any size."""
        self._whole.pop(key, None)
        if len(value) > limits.VALUE_BYTES:
            self._whole[key] = value
        self._writes[key] = Put(key, self._parted(value), ttl_ms)
        self.document_writes += key.startswith(layout.DOCUMENTS)

    def put_object(self, key: bytes, value: bytes) -> None:
        """Write what is named by its content; it may go ahead of the batch, if that gets too large."""
        if len(value) > limits.VALUE_BYTES:
            self._whole[key] = value
        self._objects[key] = self._parted(value)

    def append(self, prefix: bytes, value: bytes, *, ttl_ms: int | None = None) -> int:
        """Write a value of any size under a key that gets a stamp, and return the stamp's index."""
        small = self._parted(value)
        if small is not value:
            self._whole[small] = value
        self._stamped.append(Put(prefix, small, ttl_ms, stamp=True))
        return len(self._stamped) - 1

    def _parted(self, value: bytes) -> bytes:
        if len(value) <= limits.VALUE_BYTES:
            return value
        manifest, pieces = large_values.split(self.store, self.space, value)
        self._parts.update(pieces)
        return manifest

    def delete(self, key: bytes) -> None:
        """Remove an entry."""
        self._whole.pop(key, None)
        self._writes[key] = Delete(key)
        self.document_writes += key.startswith(layout.DOCUMENTS)

    def check(
        self, key: bytes, *, version: int | None = None, created: int | None = None, asked: str | None = None
    ) -> None:
        """Let the unit commit only if the entry is still at this version, or still the one created then.

        Args:
            key: Of the entry.
            version: The version; 0 for absent.
            created: The version that it was created with.
            asked: The argument by which the caller has asked for just this, to be named in a refusal.
        """
        if asked is not None:
            self._asked[key] = asked
        known = self._found.get(key)
        if version is not None and key in self._found and version != (found := known.version if known else 0):
            raise self._refused(Conflict(key, found))
        check = Check(key, version=version, created=created)
        if check not in self._checks:
            self._checks.append(check)

    def require_no_loss(self, losses: LossDetector) -> None:
        """Let the unit commit only if no history was lost since that was read which it builds on."""
        losses.verify()
        self._losses = losses

    def written(self, prefix: bytes) -> dict[bytes, bytes | None]:
        """Return the whole values that the unit will write under a prefix; None for what it removes."""
        return {
            key: self._whole.get(key, write.value) if isinstance(write, Put) else None
            for key, write in self._writes.items()
            if key.startswith(prefix)
        }

    def expiring(self, prefix: bytes) -> dict[bytes, int]:
        """Return how many milliseconds what the unit will write under a prefix has to live, if that ends."""
        return {
            key: write.ttl_ms
            for key, write in self._writes.items()
            if isinstance(write, Put) and write.ttl_ms is not None and key.startswith(prefix)
        }

    def written_objects(self, prefix: bytes) -> list[bytes]:
        """Return the keys under a prefix of objects that the unit will write."""
        return [key for key in self._objects if key.startswith(prefix)]

    @property
    def losses(self) -> LossDetector:
        """Return what tells whether that was lost which was read here."""
        return self._losses

    def as_read(self, key: bytes) -> Entry | None:
        """Return an entry as it was read."""
        return self._found.get(key)

    def as_applied(self, key: bytes, revision: int) -> Entry | None:
        """Return an entry as it stands after the unit has applied at a revision."""
        write, known = self._writes.get(key), self._found.get(key)
        if isinstance(write, Put):
            return Entry(key, write.value, revision, known.created if known else revision)
        return known if write is None else None

    def own_ttl_ms(self, key: bytes) -> int | None:
        """Return how long what the unit itself has written under a key will live; None for ever."""
        write = self._writes.get(key)
        return write.ttl_ms if isinstance(write, Put) else None

    def knows(self, key: bytes) -> bool:
        """Whether the unit has read or written this key."""
        return key in self._found or key in self._writes

    # ---- committing

    @property
    def writes(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._writes or self._stamped)

    def batch(self, beside: Unit | None = None) -> Batch:
        """Return the batch that the unit is so far, and what goes with it, without parts of large values."""
        checks = self._all_checks()
        others = [] if beside is None else [check for check in beside._all_checks() if check not in checks]
        # Stamped writes stand first: a stamp holds the write's index, which tells events of one batch apart.
        writes: list[Write] = [*self._stamped, *self._writes.values()]
        at = alive_until_ms = None
        if self._guarded or len(checks) + len(others) > limits.BATCH_CHECKS:
            at, checks, alive_until_ms = self.revision, self._checks, self._alive_until_ms
        if beside is not None:
            writes += beside._writes.values()
            if beside._guarded:
                at = _least(at, beside.revision)  # of two revisions the space can be at one only
                alive_until_ms = _least(alive_until_ms, beside._alive_until_ms)
        losses = self._losses.known
        checks = [*checks, *others]
        return Batch(self.space, writes, checks, at, losses=losses, alive_until_ms=alive_until_ms)

    def _all_checks(self) -> list[Check]:
        if not self._found:
            return list(self._checks)
        told = {check.key for check in self._checks}
        return [
            *self._checks,
            *(
                Check(key, version=entry.version if entry else 0)
                for key, entry in self._found.items()
                if key not in told
            ),
        ]

    async def commit(self, beside: Unit | None = None) -> Applied | None:
        """Apply the unit, or answer None where it has nothing to write and nothing to check.

        Args:
            beside: What goes with it in one batch, and reads at revisions of its own.

        Raises:
            ConflictError: What it had read or was told to check has changed; nothing was applied.
            InvalidError: It writes a document that the caller is just computing, inside `update`.
        """
        if not self.writes and not self._checks:
            return None
        if (own := find_update_in_progress(self.store, self.space, self._writes)) is not None:
            raise InvalidError(
                f"{describe(own)} of {self.name!r} is written inside the function that updates it; "
                "let the function return the new value"
            )
        parts = self._needed_parts()
        if beside is not None:
            parts |= beside._needed_parts()
        batch = self.batch(beside)
        outcome = await large_values.apply_with_parts(self.store, batch, parts)
        if isinstance(outcome, Applied):
            return outcome
        if isinstance(outcome, KeepstateError):
            raise outcome
        raise self._refused(outcome, batch.at)

    def is_checking(self, key: bytes | None) -> bool:
        """Whether the unit itself has this key checked; None stands for the revision of the space."""
        if key is None:
            return self._guarded or len(self._found) + len(self._checks) > limits.BATCH_CHECKS
        return key in self._found or any(check.key == key for check in self._checks)

    def add_check(self, check: Check) -> None:
        """Let the unit commit only if a check of what it does not read holds."""
        self._checks.append(check)

    def drop_checks(self, key: bytes) -> None:
        """Take back all checks of a key."""
        self._checks = [check for check in self._checks if check.key != key]

    def _needed_parts(self) -> dict[bytes, bytes]:
        if not self._parts:
            return self._objects
        values = [put.value for put in (*self._writes.values(), *self._stamped) if isinstance(put, Put)]
        named = large_values.part_keys_in([*values, *self._objects.values()])
        return {key: part for key, part in self._parts.items() if key in named} | self._objects

    def _refused(self, conflict: Conflict, at: int | None = None) -> ConflictError:
        """Return the exception that tells of a refused batch, given its `at`."""
        key, actual = conflict.key, conflict.actual
        if key is None and actual == at:
            return self._expired()
        if key is None:
            message = f"space {self.name!r} moved on to revision {actual}; read again and try again"
        else:
            what = f"{describe(key)} of {self.name!r}"
            # Of a stream's head users know neither key nor version: they know streams and positions.
            present = "has events" if key.startswith(layout.HEADS) else f"is at version {actual}"
            found = present if actual else "is absent"
            if key in self._asked:
                message = f"{what} {found}, and {self._asked[key]} was asked; read it again"
            else:
                message = f"{what} was changed by somebody else and now {found}; try again"
        return ConflictError(message, space=self.name, key=key, actual=actual)


def _least(one: int | None, other: int | None) -> int | None:
    """Return the lesser of two numbers; None counts as none."""
    return min((number for number in (one, other) if number is not None), default=None)
