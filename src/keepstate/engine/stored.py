"""Stored structs and names, opened: what nobody wrote raises `CorruptError` that names its place, alone."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from keepstate.errors import CorruptError

T = TypeVar("T")

StoredMs: TypeAlias = Annotated[int, msgspec.Meta(ge=-62_135_596_800_000, lt=253_402_300_800_000)]
"""Milliseconds since 1970 that a datetime can hold."""
StampIndex: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]


def opened(stored: bytes, type: type[T], place: str) -> T:
    """Returns the struct that is stored at this place."""
    try:
        return msgspec.msgpack.decode(stored, type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(place, error) from error


def text(stored: bytes, place: str, *, errors: str = "strict") -> str:
    """Returns the text that is stored at this place."""
    try:
        return stored.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise damaged(place, error) from error


def damaged(place: str, what: Any) -> CorruptError:
    """Returns the error that tells of it."""
    return CorruptError(f"{place} is damaged: {what}", place=place)
