"""Validation of the arguments of typed state, before any work. Errors name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from keepstate.errors import InvalidError

T = TypeVar("T")

_ONE: Final = (str, bytes, bytearray, Mapping)
"""Iterable types that are a single value, not a list of values."""


def check_list(what: str, given: Iterable[T]) -> list[T]:
    """Return an iterable of values as a list.

    Raises:
        InvalidError: The argument is a single value.
    """
    asked: Any = given
    if isinstance(asked, _ONE) or not isinstance(asked, Iterable):
        raise InvalidError(f"`{what}` is {given!r}. Pass a list.")
    return list(given)


def check_messages(messages: Sequence[object]) -> None:
    """Raise `InvalidError` unless the argument is a sequence of messages; a text is not."""
    given: Any = messages
    if isinstance(given, _ONE) or not isinstance(given, Sequence):
        raise InvalidError(f"`messages` is {messages!r}. Pass a list of messages.")
