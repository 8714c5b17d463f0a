"""Items in a journal's frames: applied revisions, and snapshots of spaces.

The first frames of a journal are a snapshot, up to `SnapshotEnd`. Each later frame is one flush. The structs
are frozen per journal version: a field may only be added at the end, with a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from keepstate.errors import InvalidError, OutcomeUnknownError
from keepstate.stores.protocol import Applied, Conflict, Entry, Leap, Outcome
from keepstate.stores.records import Record


class Written(msgspec.Struct, array_like=True, frozen=True):
    """A put of one revision."""

    key: bytes
    value: bytes
    created: int
    expires_at_ms: int | None = None


class Revision(msgspec.Struct, array_like=True, frozen=True, tag="revision"):
    """One applied revision of a space."""

    space: str
    revision: int
    now_ms: int
    written: Sequence[Written]
    deleted: Sequence[bytes]
    token: bytes | None = None
    dropped: bool = False
    nonce: bytes = b""

    @classmethod
    def of(cls, space: str, record: Record) -> Revision:
        """Encode a record of a space."""
        return cls(
            space,
            record.revision,
            record.now_ms,
            [Written(entry.key, entry.value, entry.created, entry.expires_at_ms) for entry in record.entries],
            record.deleted,
            record.token,
            record.dropped,
            record.nonce,
        )

    def record(self) -> Record:
        """Decode the record."""
        entries = [
            Entry(put.key, put.value, self.revision, put.created, put.expires_at_ms) for put in self.written
        ]
        deleted = list(self.deleted)
        return Record(self.revision, self.now_ms, entries, deleted, self.token, self.dropped, self.nonce)


class RetryOutcome(msgspec.Struct, array_like=True, frozen=True, tag="kept"):
    """The outcome of a retry, stored in case its original arrives late; one of the last four is set."""

    space: str
    token: bytes
    until_ms: int
    applied: tuple[int, int] | None = None
    conflict: tuple[bytes | None, int] | None = None
    unknown: str | None = None
    invalid: str | None = None

    @classmethod
    def of(cls, space: str, token: bytes, outcome: Outcome, until_ms: int) -> RetryOutcome:
        """Encode an outcome."""
        if type(outcome) is Applied:
            return cls(space, token, until_ms, applied=(outcome.revision, outcome.now_ms))
        if type(outcome) is Conflict:
            return cls(space, token, until_ms, conflict=(outcome.key, outcome.actual))
        if isinstance(outcome, OutcomeUnknownError):
            return cls(space, token, until_ms, unknown=str(outcome))
        return cls(space, token, until_ms, invalid=str(outcome))

    def outcome(self) -> Outcome:
        """Decode the outcome."""
        if self.applied is not None:
            return Applied(*self.applied)
        if self.conflict is not None:
            return Conflict(*self.conflict)
        if self.unknown is not None:
            return OutcomeUnknownError(self.unknown, space=self.space, token=self.token)
        return InvalidError(self.invalid or "")


class SpaceHead(msgspec.Struct, array_like=True, frozen=True, tag="space"):
    """The state of a space at the snapshot; its entries and log follow.

    `now_ms` is the time of its last revision.
    """

    space: str
    revision: int
    floor: int
    now_ms: int
    floor_nonce: bytes = b""
    leap: Leap | None = None


class Entries(msgspec.Struct, array_like=True, frozen=True, tag="entries"):
    """A chunk of a space's entries, in key order: key, value, version, created, expiry."""

    space: str
    entries: Sequence[tuple[bytes, bytes, int, int, int | None]]


class Logged(msgspec.Struct, array_like=True, frozen=True, tag="logged"):
    """One revision in a space's log: its writes, and the values before them in section `02`."""

    space: str
    revision: int
    now_ms: int
    written: Sequence[tuple[bytes, bytes]]
    deleted: Sequence[bytes]
    before: Sequence[bytes | None]
    size_bytes: int
    token: bytes | None = None
    expired: Sequence[int] = ()
    """Indexes in `written` of the writes over an expired entry."""
    nonce: bytes = b""


class SnapshotEnd(msgspec.Struct, array_like=True, frozen=True, tag="end"):
    """The end of the snapshot; later items were applied after it."""


Item: TypeAlias = Revision | RetryOutcome | SpaceHead | Entries | Logged | SnapshotEnd

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Item])


def encode(items: Sequence[Item]) -> bytes:
    """Encode items as a frame's payload."""
    return _encoder.encode(items)


def decode(payload: memoryview) -> list[Item]:
    """Decode a frame's payload, or raise `msgspec.MsgspecError`."""
    return _decoder.decode(payload)
