"""Records: frozen dataclasses that are stored under a name and version.

A field that a later version adds has a default, so that records of older versions can be read. If the meaning
of a field changes, the record gets a new version and an upcaster.
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
    """Make a class a frozen dataclass with slots, stored under `keepstate.<name>`."""

    def made(kind: T) -> T:
        plain: Any = kind
        frozen: Any = dataclass(frozen=True, slots=True)(plain)
        registered: T = CLASSES.register(frozen, _PREFIX + name, version=version)
        return registered

    return made


def stored_enum(name: str, /) -> Callable[[T], T]:
    """Store the members of an Enum under `keepstate.<name>`."""
    return CLASSES.register(_PREFIX + name)


def to_fields(value: object) -> tuple[str, dict[str, Any]]:
    """Return a record's stored name with its version, and its fields, which can be stored one by one."""
    known = CLASSES.of(type(value))
    if known is None:
        raise InvalidError(f"{value!r} has no registered class. Register {type(value).__name__}.")
    return str(known), known.shape.fields(value)


def from_fields(form: str, fields: Mapping[str, Any]) -> Any:
    """Build a record from its stored name and fields, as its class is now.

    Raises:
        CorruptError: The form is not a name with a version.
        InvalidError: The class does not accept the fields, or is not registered.
    """
    name, _, version = form.rpartition("@")
    if not name or not version.isdigit():
        raise CorruptError(f"{form!r} is not the name and version of a record", place=form)
    known = CLASSES.named(name, int(version))
    return known.build(CLASSES.upcasted(dict(fields), known, int(version)))


def check_record(what: str, given: object, kind: type) -> None:
    """Raise `InvalidError` for a value of another class, or a field of a type that it may not have."""
    require_instance(what, given, kind)
    if not is_dataclass(kind):
        return
    for name, wanted, items in _field_types(kind):
        value = getattr(given, name)
        _check_type(name, value, wanted)
        if items and isinstance(value, list):
            for index, item in enumerate(cast("list[object]", value)):
                _check_type(f"{name}[{index}]", item, items)


def _check_type(what: str, value: object, wanted: tuple[type, ...]) -> None:
    if not isinstance(value, wanted) or (type(value) is bool and bool not in wanted):
        names = " or ".join("None" if one is NoneType else with_article(one.__name__) for one in wanted)
        raise InvalidError(f"`{what}` is {value!r}. Pass {names}.")


@cache
def _field_types(kind: type) -> list[tuple[str, tuple[type, ...], tuple[type, ...]]]:
    """Return each field with a known type: its name, its classes, and those of a list's items."""
    hints = get_type_hints(kind)
    found = [(field.name, hints[field.name]) for field in fields(kind)]
    return [(name, types, _items_of(hint)) for name, hint in found if (types := _types_of(hint))]


def _items_of(hint: Any) -> tuple[type, ...]:
    return _types_of(get_args(hint)[0]) if get_origin(hint) is list else ()


def _types_of(hint: Any) -> tuple[type, ...]:
    """Return the classes that a hint allows, or an empty tuple if it allows anything."""
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        each = [_types_of(one) for one in get_args(hint)]
        return tuple(kind for kinds in each for kind in kinds) if all(each) else ()
    if hint is float:
        return (float, int)
    kind = get_origin(hint) or hint
    return (kind,) if isinstance(kind, type) and kind not in (Any, object) else ()


def require_integers(**given: object) -> None:
    """Raise `InvalidError` unless all are ints."""
    for name, number in given.items():
        if type(number) is not int:
            raise InvalidError(f"`{name}` is {number!r}. Pass an int.")


def require_counts(of: object, *names: str) -> None:
    """Raise `InvalidError` unless these fields are whole numbers of 0 or more, or None."""
    for name in names:
        count = getattr(of, name)
        if count is not None and (type(count) is not int or count < 0):
            raise InvalidError(f"`{name}` is {count!r}. Pass a whole number, 0 or more.")
