"""Stored structs and names, opened: what nobody wrote raises `CorruptError` that names its place, alone."""

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


def decode_stored(stored: bytes, type: type[T], place: str) -> T:
    """Return the struct that is stored at this place."""
    try:
        return msgspec.msgpack.decode(stored, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt_error(place, error) from error


def add_checksum(encoded: bytes) -> bytes:
    """Return bytes with their checksum behind them: where nothing else tells that a bit was flipped."""
    return encoded + sha256(encoded).digest()[:_SUM_BYTES]


def strip_checksum(stored: bytes, place: str) -> bytes:
    """Return the bytes whose checksum stands behind them.

    Raises:
        CorruptError: It is another's.
    """
    encoded = stored[:-_SUM_BYTES]
    if add_checksum(encoded) != stored:
        raise corrupt_error(place, "its checksum is another's")
    return encoded


def decode_text(stored: bytes, place: str, *, errors: str = "strict") -> str:
    """Return the text that is stored at this place."""
    try:
        return stored.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise corrupt_error(place, error) from error


def corrupt_error(place: str, what: Any) -> CorruptError:
    """Return the error that tells of it."""
    return CorruptError(f"{place} is damaged: {what}", place=place)
