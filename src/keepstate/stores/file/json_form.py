"""The JSON form of journals, one line per flush, for people who read and search them.

Bytes are shown in a readable form if that decodes to the same bytes, otherwise as base64: a value as `json`
if it is plain data in the codec's uncompressed form, a key as its `path` of section and segments. A stamp in
a key is a list of revision and index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from keepstate.errors import CorruptError, KeepstateError
from keepstate.stores.file import items
from keepstate.stores.protocol import Leap
from keepstate.values.codec import PLAIN
from keepstate.values.guards import refuse_chosen_keys
from keepstate.values.key import Segment, Stamp, stored_key, unpack

_LARGEST_INT: Final = 2**63 - 1


class ReadableBytes(msgspec.Struct, omit_defaults=True, frozen=True):
    """Bytes in exactly one of three forms."""

    json: Any = msgspec.UNSET
    path: list[str | int | tuple[int, int]] | None = None
    base64: bytes | None = None

    @classmethod
    def value(cls, data: bytes) -> ReadableBytes:
        """Encode a value."""
        if data.startswith(PLAIN):
            try:
                refuse_chosen_keys(data[len(PLAIN) :])
                plain: Any = msgspec.msgpack.decode(data[len(PLAIN) :])
                readable = cls(json=msgspec.json.decode(msgspec.json.encode(plain)))
                if readable.data() == data:
                    return readable
            except (CorruptError, msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                pass  # not plain data: tagged, or not written by the codec
        return cls(base64=data)

    @classmethod
    def key(cls, data: bytes) -> ReadableBytes:
        """Encode a key."""
        try:
            segments = unpack(data[1:])
        except (KeepstateError, ValueError):
            return cls(base64=data)
        path: list[str | int | tuple[int, int]] = [data[0]]
        for segment in segments:
            if isinstance(segment, Stamp):
                path.append((segment.revision, segment.index))
            elif isinstance(segment, str) or (isinstance(segment, int) and abs(segment) <= _LARGEST_INT):
                path.append(segment)
            else:
                return cls(base64=data)
        readable = cls(path=path)
        try:
            return readable if readable.data() == data and msgspec.json.encode(readable) else cls(base64=data)
        except (KeepstateError, ValueError):
            return cls(base64=data)

    def data(self) -> bytes:
        """Decode the bytes."""
        if self.json is not msgspec.UNSET:
            return PLAIN + msgspec.msgpack.encode(self.json)
        if self.path is not None:
            section, *rest = self.path
            segments: list[Segment | Stamp] = [
                Stamp(*part) if isinstance(part, tuple) else part for part in rest
            ]
            assert isinstance(section, int)
            return stored_key(section, *segments)
        return self.base64 or b""


class _Written(msgspec.Struct, omit_defaults=True, frozen=True):
    key: ReadableBytes
    value: ReadableBytes
    created: int = 0
    """0 means the revision of the item itself."""
    expires_at_ms: int | None = None


class _Revision(msgspec.Struct, omit_defaults=True, frozen=True, tag_field="is", tag="revision"):
    space: str
    revision: int
    now_ms: int
    put: Sequence[_Written] = ()
    delete: Sequence[ReadableBytes] = ()
    token: bytes | None = None
    dropped: bool = False
    nonce: bytes = b""


class _RetryOutcome(msgspec.Struct, omit_defaults=True, frozen=True, tag_field="is", tag="kept"):
    space: str
    token: bytes
    until_ms: int
    applied: tuple[int, int] | None = None
    conflict: tuple[bytes | None, int] | None = None
    unknown: str | None = None
    invalid: str | None = None


class _SpaceHead(msgspec.Struct, frozen=True, tag_field="is", tag="space"):
    space: str
    revision: int
    floor: int
    now_ms: int
    floor_nonce: bytes = b""
    leap: Leap | None = None


class _Entries(msgspec.Struct, frozen=True, tag_field="is", tag="entries"):
    space: str
    entries: Sequence[tuple[ReadableBytes, ReadableBytes, int, int, int | None]]


class _Logged(msgspec.Struct, omit_defaults=True, frozen=True, tag_field="is", tag="logged"):
    space: str
    revision: int
    now_ms: int
    size_bytes: int
    put: Sequence[tuple[ReadableBytes, ReadableBytes]] = ()
    delete: Sequence[ReadableBytes] = ()
    before: Sequence[ReadableBytes | None] = ()
    token: bytes | None = None
    expired: Sequence[int] = ()
    nonce: bytes = b""


class _SnapshotEnd(msgspec.Struct, frozen=True, tag_field="is", tag="end"):
    pass


_Item: TypeAlias = _Revision | _RetryOutcome | _SpaceHead | _Entries | _Logged | _SnapshotEnd

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[_Item])


def encode(given: Sequence[items.Item]) -> bytes:
    """Encode items as a frame's payload."""
    return _encoder.encode([_to_json(item) for item in given])


def decode(payload: memoryview) -> list[items.Item]:
    """Decode a frame's payload, or raise `msgspec.MsgspecError`."""
    return [_from_json(item) for item in _decoder.decode(payload)]


def _to_json(item: items.Item) -> _Item:
    match item:
        case items.Revision(space, revision, now_ms, written, deleted, token, dropped, nonce):
            put = [
                _Written(
                    ReadableBytes.key(entry.key),
                    ReadableBytes.value(entry.value),
                    0 if entry.created == revision else entry.created,
                    entry.expires_at_ms,
                )
                for entry in written
            ]
            removed = [ReadableBytes.key(key) for key in deleted]
            return _Revision(space, revision, now_ms, put, removed, token, dropped, nonce)
        case items.RetryOutcome():
            return _RetryOutcome(*msgspec.structs.astuple(item))
        case items.SpaceHead():
            return _SpaceHead(*msgspec.structs.astuple(item))
        case items.Entries(space, entries):
            return _Entries(
                space,
                [
                    (ReadableBytes.key(entry[0]), ReadableBytes.value(entry[1]), *entry[2:])
                    for entry in entries
                ],
            )
        case items.Logged(
            space, revision, now_ms, written, deleted, before, size_bytes, token, expired, nonce
        ):
            return _Logged(
                space,
                revision,
                now_ms,
                size_bytes,
                [(ReadableBytes.key(key), ReadableBytes.value(value)) for key, value in written],
                [ReadableBytes.key(key) for key in deleted],
                [None if old is None else ReadableBytes.value(old) for old in before],
                token,
                expired,
                nonce,
            )
        case items.SnapshotEnd():
            return _SnapshotEnd()


def _from_json(item: _Item) -> items.Item:
    match item:
        case _Revision(space, revision, now_ms, put, delete, token, dropped, nonce):
            written = [
                items.Written(
                    entry.key.data(), entry.value.data(), entry.created or revision, entry.expires_at_ms
                )
                for entry in put
            ]
            removed = [key.data() for key in delete]
            return items.Revision(space, revision, now_ms, written, removed, token, dropped, nonce)
        case _RetryOutcome():
            return items.RetryOutcome(*msgspec.structs.astuple(item))
        case _SpaceHead():
            return items.SpaceHead(*msgspec.structs.astuple(item))
        case _Entries(space, entries):
            return items.Entries(space, [(entry[0].data(), entry[1].data(), *entry[2:]) for entry in entries])
        case _Logged(space, revision, now_ms, size_bytes, put, delete, before, token, expired, nonce):
            return items.Logged(
                space,
                revision,
                now_ms,
                [(key.data(), value.data()) for key, value in put],
                [key.data() for key in delete],
                [None if old is None else old.data() for old in before],
                size_bytes,
                token,
                expired,
                nonce,
            )
        case _SnapshotEnd():
            return items.SnapshotEnd()
