"""Records of a space that is a state machine in memory, and the changes in its log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from keepstate.stores.protocol import Change, Entry, Mark
from keepstate.values import limits
from keepstate.values.key import OBJECTS, WITH_VALUES

NO_MARK = Mark(0, b"")
"""The mark of a space without writes."""

NOTHING_REPLACED = (None,)
"""The replaced values of a record of one entry outside section `02`."""

RETRY_KEPT_MS = 3_600_000
"""Milliseconds for which the outcome of a retry is stored, in case the original arrives late."""


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One applied revision, with all that a replay needs to repeat it."""

    revision: int
    now_ms: int
    entries: list[Entry]
    deleted: list[bytes]
    token: bytes | None = None
    dropped: bool = False
    nonce: bytes = b""


_SMALL_VALUE_BYTES = 512
"""Largest value, in bytes, that stays in the log although changes do not report it. Removing it costs a tenth
of a put; leaving it costs at most 5 MiB a space."""

Logged = tuple[Record, Sequence[bytes | None], int]
"""A logged record, the values of section `02` that it replaced or removed, and its size in bytes."""


def weigh(record: Record, olds: Sequence[bytes | None]) -> Logged:
    """Return a record for the log, with its size and without large values that changes do not report."""
    if olds is NOTHING_REPLACED:  # one entry, which is logged without its value
        entry = record.entries[0]
        logged = record if len(entry.value) <= _SMALL_VALUE_BYTES else _without_unlogged(record)
        return logged, olds, 2 * limits.CHANGE_BYTES + len(entry.key)
    size, has_unlogged = limits.CHANGE_BYTES * (1 + len(olds)), False
    for entry in record.entries:
        size += len(entry.key)
        if entry.key[0] == WITH_VALUES:
            size += len(entry.value)
        elif len(entry.value) > _SMALL_VALUE_BYTES:
            has_unlogged = True
    for old in olds:
        if old is not None:
            size += len(old)
    return (_without_unlogged(record) if has_unlogged else record), olds, size


def _without_unlogged(record: Record) -> Record:
    """Return the record without values that changes do not report, so that replaced values are freed."""
    logged = [
        entry if entry.key[0] == WITH_VALUES else Entry(entry.key, b"", entry.version, entry.created)
        for entry in record.entries
    ]
    return Record(record.revision, record.now_ms, logged, record.deleted, record.token, nonce=record.nonce)


def changes_of(record: Record, olds: Sequence[bytes | None]) -> Iterator[Change]:
    """Yield the logged changes of a record."""
    for entry, old in zip(record.entries, olds, strict=False):
        if entry.key[0] != OBJECTS:
            new = entry.value if entry.key[0] == WITH_VALUES else None
            # An entry created by this revision can replace an old value only if that had expired.
            expired = old is not None and entry.created == record.revision
            yield Change(record.revision, entry.key, False, old, new, expired)
    for key, old in zip(record.deleted, olds[len(record.entries) :], strict=True):
        if key[0] != OBJECTS:
            yield Change(record.revision, key, True, old, None)
