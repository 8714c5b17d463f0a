"""Stored forms besides values: structs, texts and times, and the names of keys in messages.

Damaged bytes raise `CorruptError` with their location.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from keepstate.engine.kernel import layout
from keepstate.errors import ConflictError, CorruptError
from keepstate.stores.protocol import Conflict
from keepstate.values.key import unpack

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

_SUM_BYTES: Final = 8

StoredMs: TypeAlias = Annotated[int, msgspec.Meta(ge=-62_135_596_800_000, lt=253_402_300_800_000)]
"""Milliseconds since 1970 that a datetime can hold."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
StampIndex: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]

_WORDS: Final = {
    layout.DOCUMENTS: "document",
    layout.LEASES: "lease",
    layout.BRANCHES: "branch",
    layout.TAGS: "tag",
}

_SHOWN_BEGIN: Final = 160
_SHOWN_END: Final = 80


def decode_stored(stored: bytes, type: type[T], location: str | bytes) -> T:
    """Decode a stored struct. `location` names it in errors.

    A key is described only in an error, because that takes longer than decoding.
    """
    try:
        return msgspec.msgpack.decode(stored, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        place = describe(location) if isinstance(location, bytes) else location
        raise corrupt_error(place, error) from error


def decode_fields(fields: Any, type: type[S], location: str) -> S:
    """Return the struct of a decoded array. Its last field, `later`, takes what a later version has added.

    A writer encodes such a struct by `encode_fields`, so that older processes drop no field of a newer one.
    """
    known = len(type.__struct_fields__) - 1
    try:
        array = msgspec.convert(fields, list[Any])
        record = msgspec.convert(array[:known], type)
    except msgspec.ValidationError as error:
        raise corrupt_error(location, error) from error
    return record if len(array) <= known else msgspec.structs.replace(record, later=tuple(array[known:]))


def decode_whole(stored: bytes, type: type[S], location: str) -> S:
    """Decode a struct whose fields were all stored; see `decode_fields`.

    Raises:
        CorruptError: It is not such a struct, or it is cut off.
    """
    fields = decode_stored(stored, list[Any], location)
    if len(fields) < len(type.__struct_fields__) - 1:
        raise corrupt_error(location, "it is cut off")
    return decode_fields(fields, type, location)


def encode_fields(record: msgspec.Struct) -> list[Any]:
    """Return the array of a struct that ends with `later`."""
    *fields, later = msgspec.structs.astuple(record)
    return [*fields, *later]


def add_checksum(encoded: bytes) -> bytes:
    """Append a checksum to bytes that nothing else protects against flipped bits."""
    return encoded + sha256(encoded).digest()[:_SUM_BYTES]


def strip_checksum(stored: bytes, location: str) -> bytes:
    """Return the bytes before their checksum.

    Raises:
        CorruptError: The checksum does not match.
    """
    encoded = stored[:-_SUM_BYTES]
    if add_checksum(encoded) != stored:
        raise corrupt_error(location, "its checksum does not match")
    return encoded


def decode_text(stored: bytes, location: str) -> str:
    """Decode a stored text. `location` names it in errors."""
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError as error:
        raise corrupt_error(location, error) from error


def to_milliseconds(moment: datetime) -> int:
    """Convert an aware datetime to milliseconds since 1970, rounded down, in whole numbers.

    A float cannot represent every millisecond.
    """
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_microseconds(moment: datetime) -> int:
    """Convert an aware datetime to microseconds since 1970, in whole numbers."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def to_datetime(at_ms: int) -> datetime:
    """Convert milliseconds since 1970 to an aware datetime."""
    return _EPOCH + timedelta(0, 0, at_ms * 1000)  # a third faster than by `milliseconds`


def corrupt_error(location: str, what: Any) -> CorruptError:
    """Return the error for damaged bytes at a location."""
    return CorruptError(f"{location} is damaged: {what}", place=location)


def shorten(text: str) -> str:
    """Return a stored text for a message. A long text is cut to its beginning and its end.

    Stored text is not trusted: any writer of the store decides its length.
    """
    if len(text) <= _SHOWN_BEGIN + _SHOWN_END:
        return text
    return f"{text[:_SHOWN_BEGIN]}…{text[-_SHOWN_END:]}"


def describe(key: bytes) -> str:
    """Return `document 'plan'` for a key with a name, and the path of any other key.

    A key that is the beginning of all keys of a part is described as the part: `the part 'document'`.
    """
    for part, word in _WORDS.items():
        if key == part:
            return f"the part {word!r}"
        if key.startswith(part):
            return f"{word} {key[len(part) :].decode('utf-8', 'replace')!r}"
    try:
        segments = unpack(key[1:])
    except CorruptError:
        return f"key {key.hex()}"
    if len(segments) == 2 and key.startswith((layout.HEADS, layout.TASKS)):
        return f"{segments[0]!s} {segments[1]!r}"
    if len(segments) == 2 and key.startswith(layout.ASKED):
        return f"the question of approval {segments[1]!r}"
    return "/".join(str(segment) for segment in segments)


def conflict_error(space: str, conflict: Conflict, arguments: Mapping[bytes, str]) -> ConflictError:
    """Return the error for a rejected batch.

    Args:
        space: The name of the space.
        conflict: The answer of the store.
        arguments: The caller's arguments that required a check, by key.
    """
    key, actual = conflict.key, conflict.actual
    if key is None:
        message = (
            f"space {space!r} changed after the transaction listed it (now at revision {actual}). "
            "Run the transaction again, or use transact()"
        )
    else:
        what = f"{describe(key)} of {space!r}"
        # The key and version of a stream's head are internal: callers know streams and positions.
        present = "has events" if key.startswith(layout.HEADS) else f"is at version {actual}"
        found = present if actual else "does not exist"
        if key in arguments:
            message = f"{what} {found}, but {arguments[key]} was required. Read it again"
        else:
            message = f"{what} changed after it was read and now {found}. Read it again and retry"
    return ConflictError(message, space=space, key=key, actual=actual)
