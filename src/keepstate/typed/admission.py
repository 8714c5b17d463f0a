"""Refuses what a call on typed state cannot take, before anything is done, in words that name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from keepstate.errors import InvalidError

T = TypeVar("T")

_ONE: Final = (str, bytes, bytearray, Mapping)
"""What can be gone through, and is one thing where several are asked for."""


def admit_many(what: str, given: Iterable[T]) -> list[T]:
    """Return several things as a list.

    Raises:
        InvalidError: It is one thing.
    """
    asked: Any = given
    if isinstance(asked, _ONE) or not isinstance(asked, Iterable):
        raise InvalidError(f"`{what}` is {given!r}; give a list")
    return list(given)


def admit_messages(messages: Sequence[object]) -> None:
    """Raise `InvalidError` for what is no sequence of messages: a text would be one for each letter."""
    given: Any = messages
    if isinstance(given, _ONE) or not isinstance(given, Sequence):
        raise InvalidError(f"`messages` is {messages!r}; give a list of them")
