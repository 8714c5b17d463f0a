"""Records of a space that is kept as a state machine, and what its log tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from keepstate.stores.protocol import Change, Entry, Mark
from keepstate.values import limits
from keepstate.values.key import OBJECTS, WITH_VALUES

NO_MARK = Mark(0, b"")
"""The mark of a space that nothing was written to."""

NOTHING_REPLACED = (None,)


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One applied revision: all that a replay needs to make it again."""

    revision: int
    now_ms: int
    entries: list[Entry]
    deleted: list[bytes]
    token: bytes | None = None
    dropped: bool = False
    nonce: bytes = b""


_UNTOLD_BYTES = 512
"""How large a value may be to stay in the log although the log does not tell it: taking it out costs a tenth
of a put, and leaving it in at most 5 MiB a space."""

Logged = tuple[Record, Sequence[bytes | None], int]
"""A record in the log, the values of section `02` that it replaced or removed, and its weight in bytes."""


def weigh(record: Record, olds: Sequence[bytes | None]) -> Logged:
    """Return a record as the log keeps it, with its weight and without values that the log does not tell."""
    if olds is NOTHING_REPLACED:  # one entry, which the log tells without its value
        entry = record.entries[0]
        told = record if len(entry.value) <= _UNTOLD_BYTES else _without_untold(record)
        return told, olds, 2 * limits.CHANGE_BYTES + len(entry.key)
    size, holds_untold = limits.CHANGE_BYTES * (1 + len(olds)), False
    for entry in record.entries:
        size += len(entry.key)
        if entry.key[0] == WITH_VALUES:
            size += len(entry.value)
        elif len(entry.value) > _UNTOLD_BYTES:
            holds_untold = True
    for old in olds:
        if old is not None:
            size += len(old)
    return (_without_untold(record) if holds_untold else record), olds, size


def _without_untold(record: Record) -> Record:
    """Return the record without values that the log does not tell, so that they go when replaced."""
    told = [
        entry if entry.key[0] == WITH_VALUES else Entry(entry.key, b"", entry.version, entry.created)
        for entry in record.entries
    ]
    return Record(record.revision, record.now_ms, told, record.deleted, record.token, nonce=record.nonce)


def changes_of(record: Record, olds: Sequence[bytes | None]) -> Iterator[Change]:
    """Yield the changes that the log tells of a record."""
    for entry, old in zip(record.entries, olds, strict=False):
        if entry.key[0] != OBJECTS:
            new = entry.value if entry.key[0] == WITH_VALUES else None
            # Only an expired entry is replaced by one that this very revision has created.
            expired = old is not None and entry.created == record.revision
            yield Change(record.revision, entry.key, False, old, new, expired)
    for key, old in zip(record.deleted, olds[len(record.entries) :], strict=True):
        if key[0] != OBJECTS:
            yield Change(record.revision, key, True, old, None)
