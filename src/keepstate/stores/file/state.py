"""A space with a journal: its published state, and drafts on top of it.

A flush is checked on a `Draft`, an overlay that readers do not see. The draft is published only once the
journal holds its records, so nothing can be read that a power cut could still undo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.errors import CorruptError
from keepstate.stores.file.items import Entries, Item, Logged, RetryOutcome, Revision, SnapshotEnd, SpaceHead
from keepstate.stores.protocol import NONCE_BYTES, Applied, Entry, Mark, Outcome
from keepstate.stores.records import Record
from keepstate.stores.space_state import SpaceState
from keepstate.values.key import WITH_VALUES

_CHUNK_ENTRIES = 256
_CHUNK_BYTES = 64 << 10


class JournaledState(SpaceState):
    """The published state of a space."""

    __slots__ = ()

    # ---- from the journal

    def replay(self, item: Item) -> None:
        """Apply an item of the journal; items come in the journal's order.

        Raises:
            CorruptError: The item does not follow the one before it.
        """
        match item:
            case Revision():
                self._require_next(item.revision)
                self.install(item.record())
            case RetryOutcome():
                self._retries[item.token] = item.outcome(), item.until_ms
            case SpaceHead():
                self.revision, self.floor, self.leap = item.revision, item.floor, item.leap
                self.clock_ms = self.written_ms = item.now_ms
                self._floor_mark = Mark(item.floor, item.floor_nonce)
            case Entries():
                for entry in item.entries:
                    self._restore_entry(Entry(*entry))
            case Logged():
                self._restore_log(item)
            case SnapshotEnd():
                pass

    def _require_next(self, revision: int) -> None:
        if revision != self.revision + 1:
            raise CorruptError(f"revision {revision} follows revision {self.revision}")

    def _restore_entry(self, entry: Entry) -> None:
        self._index.add(entry.key)
        self.entries[entry.key] = entry
        self._sizes.count(entry.key, 1, len(entry.key) + len(entry.value))
        if entry.expires_at_ms is not None:
            self._expire_later(entry.expires_at_ms, entry.key)

    def _restore_log(self, item: Logged) -> None:
        # A write over a live entry does not create it, which distinguishes it from one over an expired entry.
        entries = [
            Entry(key, value, item.revision, item.revision if index in item.expired else 0)
            for index, (key, value) in enumerate(item.written)
        ]
        record = Record(item.revision, item.now_ms, entries, list(item.deleted), item.token, nonce=item.nonce)
        self._log.append((record, item.before, item.size_bytes))
        self._log_bytes += item.size_bytes
        if item.token is not None:
            self._tokens[item.token] = Applied(item.revision, item.now_ms)

    # ---- into the journal

    def snapshot(self, space: str) -> Iterator[Item]:
        """Yield the items from which a replay restores this state."""
        floor_nonce = self._floor_mark.nonce
        yield SpaceHead(space, self.revision, self.floor, self.written_ms, floor_nonce, self.leap)
        chunk: list[tuple[bytes, bytes, int, int, int | None]] = []
        size = 0
        for key in self._index.upwards(b"", None):
            entry = self.entries[key]
            chunk.append((key, entry.value, entry.version, entry.created, entry.expires_at_ms))
            size += len(entry.value)
            if len(chunk) == _CHUNK_ENTRIES or size >= _CHUNK_BYTES:
                yield Entries(space, chunk)
                chunk, size = [], 0
        if chunk:
            yield Entries(space, chunk)
        for record, before, size_bytes in self._log:
            written = [(e.key, e.value if e.key[0] == WITH_VALUES else b"") for e in record.entries]
            yield Logged(
                space,
                record.revision,
                record.now_ms,
                written,
                record.deleted,
                before,
                size_bytes,
                record.token,
                [
                    index
                    for index, (entry, old) in enumerate(zip(record.entries, before, strict=False))
                    if old is not None and entry.created == record.revision
                ],
                record.nonce,
            )
        for token, (outcome, until_ms) in self._retries.items():
            if until_ms > self.clock_ms:
                yield RetryOutcome.of(space, token, outcome, until_ms)


class Draft(SpaceState):
    """A space as it will be once the drafted records are published."""

    __slots__ = ("_base", "_clock", "records")

    def __init__(self, base: JournaledState, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__()
        self._base, self._clock = base, clock
        self.revision, self.floor, self.clock_ms = base.revision, base.floor, base.clock_ms
        self.entries = _Overlay(base.entries)
        self._expiry = base._expiry  # shared, because a sweep removes from it; see `restore_expiry`
        self.records: list[Record] = []

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to publish."""
        return not self.records and not self._retries

    def items(self, space: str) -> Iterable[Item]:
        """Yield the items that the journal must hold before the draft is published."""
        for record in self.records:
            yield Revision.of(space, record)
        for token, (outcome, until_ms) in self._retries.items():
            yield RetryOutcome.of(space, token, outcome, until_ms)

    def publish(self) -> JournaledState:
        """Publish the records, and return the published state."""
        for record in self.records:
            self._base.install(record)
        self._base._retries.update(self._retries)
        self._base._forget_retries(self.clock_ms)
        return self._base

    def restore_expiry(self) -> None:
        """Restore the published state's order of expiry, from which a draft removes entries."""
        self._base._expiry = self._base._build_expiry()

    def _next_nonce(self) -> bytes:
        return self._clock.random_bytes(NONCE_BYTES)

    def install(self, record: Record) -> None:
        """Draft a record."""
        for entry in record.entries:
            self.entries[entry.key] = entry
        for key in record.deleted:
            del self.entries[key]
        if record.token is not None:
            self._tokens[record.token] = Applied(record.revision, record.now_ms)
        self.revision = record.revision
        self.records.append(record)

    def _known_outcome(self, token: bytes, now_ms: int) -> Outcome | None:
        answer = super()._known_outcome(token, now_ms)
        return self._base._known_outcome(token, now_ms) if answer is None else answer


class _Overlay(dict[bytes, Entry]):
    """Entries on top of others, which stay unchanged."""

    def __init__(self, base: dict[bytes, Entry]) -> None:
        super().__init__()
        self._base = base
        self._replaced_error: set[bytes] = set()

    def get(self, key: bytes, default: Any = None, /) -> Any:
        entry = super().get(key)
        return entry if entry is not None or key in self._replaced_error else self._base.get(key)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key not in self._replaced_error and key in self._base)

    def __delitem__(self, key: bytes) -> None:
        self.pop(key, None)
        self._replaced_error.add(key)

    def __setitem__(self, key: bytes, entry: Entry) -> None:
        super().__setitem__(key, entry)
        self._replaced_error.discard(key)
