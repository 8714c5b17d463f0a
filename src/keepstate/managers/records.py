"""Records: frozen dataclasses that are stored under a name and version.

A field that a later version adds has a default, so that what an older one stored is read with it; a field
that changes its meaning gets the record a new version and an upcaster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, dataclass_transform

from keepstate.errors import CorruptError, InvalidError
from keepstate.values.schema import CLASSES

T = TypeVar("T", bound=type)

_PREFIX: Final = "keepstate."


@dataclass_transform(frozen_default=True)
def record(name: str, /, *, version: int = 1) -> Callable[[T], T]:
    """Makes a class a frozen dataclass with slots, stored under a name of keepstate's."""

    def made(kind: T) -> T:
        plain: Any = kind
        frozen: Any = dataclass(frozen=True, slots=True)(plain)
        registered: T = CLASSES.register(frozen, _PREFIX + name, version=version)
        return registered

    return made


def member(name: str, /) -> Callable[[T], T]:
    """Lets the members of an Enum be stored under a name of keepstate's."""
    return CLASSES.register(_PREFIX + name)


def taken_apart(value: object) -> tuple[str, dict[str, Any]]:
    """Returns the name and version of a record, and its fields: each can then be kept by itself."""
    known = CLASSES.of(type(value))
    if known is None:
        raise InvalidError(f"{value!r} is of no registered class; register {type(value).__name__}")
    return str(known), known.shape.fields(value)


def put_together(form: str, fields: Mapping[str, Any]) -> Any:
    """Returns the record that was taken apart, as its class is now.

    Raises:
        CorruptError: The form is none.
        InvalidError: The class does not take the fields, or is not registered.
    """
    name, _, version = form.rpartition("@")
    if not name or not version.isdigit():
        raise CorruptError(f"{form!r} is no form of a record", place=form)
    known = CLASSES.named(name, int(version))
    return known.build(CLASSES.upcasted(dict(fields), known, int(version)))


def admit_record(what: str, given: object, kind: type) -> None:
    """Raises `InvalidError` for what is no record of this class."""
    if not isinstance(given, kind):
        raise InvalidError(f"`{what}` is {given!r}; give a {kind.__name__}")


def admit_counts(of: object, *names: str) -> None:
    """Raises `InvalidError` unless these fields are whole numbers of 0 or more, or None where they may be."""
    for name in names:
        count = getattr(of, name)
        if count is not None and (type(count) is not int or count < 0):
            raise InvalidError(f"`{name}` is {count!r}; it must be a whole number, 0 or more")
