"""Records: frozen dataclasses that are stored under a name and version.

A field that a later version adds has a default, so that what an older one stored is read with it; a field
that changes its meaning gets the record a new version and an upcaster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from keepstate.engine.kernel.arguments import require_instance, with_article
from keepstate.errors import CorruptError, InvalidError
from keepstate.values.schema import CLASSES

T = TypeVar("T", bound=type)

_PREFIX: Final = "keepstate."


@dataclass_transform(frozen_default=True)
def record(name: str, /, *, version: int = 1) -> Callable[[T], T]:
    """Make a class a frozen dataclass with slots, stored under a name of keepstate's."""

    def made(kind: T) -> T:
        plain: Any = kind
        frozen: Any = dataclass(frozen=True, slots=True)(plain)
        registered: T = CLASSES.register(frozen, _PREFIX + name, version=version)
        return registered

    return made


def member(name: str, /) -> Callable[[T], T]:
    """Let the members of an Enum be stored under a name of keepstate's."""
    return CLASSES.register(_PREFIX + name)


def taken_apart(value: object) -> tuple[str, dict[str, Any]]:
    """Return the name and version of a record, and its fields: each can then be kept by itself."""
    known = CLASSES.of(type(value))
    if known is None:
        raise InvalidError(f"{value!r} is of no registered class; register {type(value).__name__}")
    return str(known), known.shape.fields(value)


def put_together(form: str, fields: Mapping[str, Any]) -> Any:
    """Return the record that was taken apart, as its class is now.

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
    """Raise `InvalidError` for what is no record of this class, or has a field of a type it may not have."""
    require_instance(what, given, kind)
    if not is_dataclass(kind):
        return
    for name, wanted, items in _field_types(kind):
        value = getattr(given, name)
        _admit_kind(name, value, wanted)
        if items and isinstance(value, list):
            for place, item in enumerate(cast("list[object]", value)):
                _admit_kind(f"{name}[{place}]", item, items)


def _admit_kind(what: str, value: object, wanted: tuple[type, ...]) -> None:
    if not isinstance(value, wanted) or (type(value) is bool and bool not in wanted):
        names = " or ".join("None" if one is NoneType else with_article(one.__name__) for one in wanted)
        raise InvalidError(f"`{what}` is {value!r}; give {names}")


@cache
def _field_types(kind: type) -> list[tuple[str, tuple[type, ...], tuple[type, ...]]]:
    """Return the fields of a record whose types can be told, with these and, of a list, its items'."""
    hints = get_type_hints(kind)
    found = [(field.name, hints[field.name]) for field in fields(kind)]
    return [(name, types, _items_of(hint)) for name, hint in found if (types := _types_of(hint))]


def _items_of(hint: Any) -> tuple[type, ...]:
    return _types_of(get_args(hint)[0]) if get_origin(hint) is list else ()


def _types_of(hint: Any) -> tuple[type, ...]:
    """Return the classes of what a hint allows; none where it allows anything."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        each = [_types_of(one) for one in get_args(hint)]
        return tuple(kind for kinds in each for kind in kinds) if all(each) else ()
    if hint is float:
        return (float, int)
    kind = get_origin(hint) or hint
    return (kind,) if isinstance(kind, type) and kind not in (Any, object) else ()


def admit_integers(**given: object) -> None:
    """Raise `InvalidError` unless all are ints."""
    for name, number in given.items():
        if type(number) is not int:
            raise InvalidError(f"`{name}` is {number!r}; give an int")


def admit_counts(of: object, *names: str) -> None:
    """Raise `InvalidError` unless these fields are whole numbers of 0 or more, or None where they may be."""
    for name in names:
        count = getattr(of, name)
        if count is not None and (type(count) is not int or count < 0):
            raise InvalidError(f"`{name}` is {count!r}; it must be a whole number, 0 or more")
