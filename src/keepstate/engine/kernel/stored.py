"""Decoding of stored structs and texts. Damaged bytes raise `CorruptError` with their location."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from keepstate.errors import CorruptError

T = TypeVar("T")

_SUM_BYTES: Final = 8

StoredMs: TypeAlias = Annotated[int, msgspec.Meta(ge=-62_135_596_800_000, lt=253_402_300_800_000)]
"""Milliseconds since 1970 that a datetime can hold."""
StampIndex: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


def decode_stored(stored: bytes, type: type[T], location: str) -> T:
    """Decode a stored struct. `location` names it in errors."""
    try:
        return msgspec.msgpack.decode(stored, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt_error(location, error) from error


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


def decode_text(stored: bytes, location: str, *, errors: str = "strict") -> str:
    """Decode a stored text. `location` names it in errors."""
    try:
        return stored.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise corrupt_error(location, error) from error


def corrupt_error(location: str, what: Any) -> CorruptError:
    """Return the error for damaged bytes at a location."""
    return CorruptError(f"{location} is damaged: {what}", place=location)
