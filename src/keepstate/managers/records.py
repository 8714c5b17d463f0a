"""Records: frozen dataclasses that are stored under a name and version.

A field that a later version adds has a default, so that records of older versions can be read. If the meaning
of a field changes, the record gets a new version and an upcaster.

Two values are equal if they would be stored alike, apart from the order in which dicts were filled, at any
depth. So types count: 1, 1.0 and True are three values, a list is not a tuple, 0.0 is not -0.0. Sets have no
order. All NaN are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
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

from keepstate.engine.kernel.arguments import check_text, require_instance, with_article
from keepstate.errors import CorruptError, InvalidError
from keepstate.values import codec
from keepstate.values.builtin import UNSET, Record
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
    return known.build(CLASSES.upcast_fields(dict(fields), known, int(version)))


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


# ---- equality


_RULE_VERSION: Final = 1
"""Version of the rule, part of each hash, so that another rule gives other hashes."""


def parameters_hash(tool_name: str, parameters: Mapping[str, Any]) -> str:
    """Return the hash of a tool call's parameters: the same for equal ones, in every process and version.

    Raises:
        InvalidError: A parameter cannot be stored; the message has its path.
    """
    if not isinstance(parameters, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"`parameters` is {type(parameters).__name__}. Pass a dict.")
    head = codec.canonical((_RULE_VERSION, check_text("tool_name", tool_name)))
    return sha256(head + encode_canonical(dict(parameters))).hexdigest()


def encode_canonical(value: object) -> bytes:
    """Encode a value to bytes that are the same for equal values.

    Raises:
        InvalidError: The value cannot be stored; the message has the path of the part at fault.
    """
    return codec.canonical(_normalize(codec.to_builtin(codec.encode(value))))


def _normalize(value: Any) -> Any:
    """Return a value in which every dict is in the order of its encoded keys."""
    form = _FORMS.get(_kind(value))
    return value if form is None else form(value)


def _kind(value: object) -> Any:
    return type(value)


def _normalize_dict(group: dict[Any, Any]) -> dict[Any, Any]:
    pairs = sorted(group.items(), key=lambda pair: codec.canonical(pair[0]))
    return {key: _normalize(held) for key, held in pairs}


def _normalize_object(form: Record) -> tuple[Any, ...]:
    return ("object", _normalize_dict({name: value for name, value in form.items() if name != UNSET}))


def _normalize_tuple(items: tuple[Any, ...]) -> tuple[Any, ...]:
    # Marked, so that a tuple of the caller is never equal to an object.
    return ("tuple", *map(_normalize, items))


def _normalize_list(items: list[Any]) -> list[Any]:
    return [_normalize(item) for item in items]


def _normalize_set(members: set[Any] | frozenset[Any]) -> tuple[Any, ...]:
    return (type(members).__name__, *sorted(codec.canonical(_normalize(member)) for member in members))


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {
    dict: _normalize_dict,
    Record: _normalize_object,
    tuple: _normalize_tuple,
    list: _normalize_list,
    set: _normalize_set,
    frozenset: _normalize_set,
}
