"""Values in a listing that this process cannot read: raised, left out, or shown as they are stored.

A value is unreadable if it is damaged, if its class is not registered or has a newer version, or if its class
rejects it. Invariant: nothing is left out unless the caller asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeAlias

from keepstate.errors import (
    CorruptError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    UnsupportedError,
)
from keepstate.values import codec
from keepstate.values.nodes import classes_in
from keepstate.values.types import MISSING, Missing

IfUnreadable: TypeAlias = Literal["raise", "skip", "raw"]
"""The choice of a listing: end with the error, leave the value out, or give an `Unreadable` in its place."""
_CHOICES: Final = ("raise", "skip", "raw")

UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""The errors of a value that stays unreadable however often it is read."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A stored value that this process cannot read, in the place of the value.

    Attributes:
        value: The value in builtin form, which can be written back; None if it is damaged.
        classes: The classes of its objects as they are stored, as `name@version`, in order.
        code: The `code` of the error, such as `unsupported`.
        reason: The message of the error.
    """

    value: Any
    classes: tuple[str, ...]
    code: str
    reason: str


def check_unreadable(given: object) -> IfUnreadable:
    """Return the argument `unreadable` of a listing.

    Raises:
        InvalidError: It is none of the choices.
    """
    for choice in _CHOICES:
        if given == choice:
            return choice
    raise InvalidError(f"`unreadable` is {given!r}; it is one of {', '.join(_CHOICES)}")


def stand_in(unreadable: IfUnreadable, encoded: bytes | None, error: KeepstateError) -> Unreadable | Missing:
    """Return the stand-in for an unreadable value; `MISSING` if it is left out.

    Args:
        unreadable: The caller's choice.
        encoded: The encoded value, if it could be read from the store.
        error: The error.
    """
    if unreadable == "raise":
        raise_listed(error)
    if unreadable == "skip":
        return MISSING
    form, classes = None, tuple[str, ...]()
    if encoded is not None:
        try:
            form = codec.to_builtin(encoded)
            if not encoded.startswith(codec.SIGNED):
                classes = tuple(sorted(classes_in(codec.body_of(encoded))))
        except UNREADABLE:
            form = None
    return Unreadable(form, classes, error.code, str(error))


def raise_listed(error: KeepstateError) -> NoReturn:
    """Raise an error of one value of a listing, which says how to list the others."""
    message, facts = error.message, error.facts
    told = (
        "Listings and searches of documents, events, tasks, approvals, messages and memories go on around it "
        'with unreadable="skip" or "raw"'
    )
    raise type(error)(f"{message}. {told}", **facts) from error
