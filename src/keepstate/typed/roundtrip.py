"""Round-trip equality: whether a value comes back equal, with the same type in every part.

Plain equality is too weak: an `IntEnum` equals an int, a time in a zone equals one with its offset, and a
field excluded from comparison equals any value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime, time, timezone, tzinfo
from functools import cache
from typing import Any, Final

_EXACT: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Types whose values are the same if they are equal."""


def is_same(old: Any, new: Any) -> bool:
    """Return whether two values are the same. Values without equality, and NaN, count as the same."""
    kind = _kind(old)
    if kind is not _kind(new):
        return False
    if kind in _EXACT:
        return bool(old == new or (old != old and new != new))
    if kind is list:
        return len(old) == len(new) and (_are_equal_atoms(old, new) or all(map(is_same, old, new)))
    if kind is dict:
        return is_same(list(old), list(new)) and is_same(list(old.values()), list(new.values()))
    if (names := _field_names(kind)) is not None:
        return all(is_same(getattr(old, name, None), getattr(new, name, None)) for name in names)
    return _is_same_other(kind, old, new)


def find_difference(old: Any, new: Any, path: str = "") -> tuple[str, str] | None:
    """Return the path and the reason of the first difference between two values, or None."""
    if is_same(old, new):
        return None
    if type(old) is type(new) and not isinstance(old, set | frozenset):
        for (step, item), (_, other) in zip(parts(old), parts(new), strict=False):
            if (found := find_difference(item, other, path + step)) is not None:
                return found
    return path, _reason(old, new)


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its path."""
    kind = _kind(value)
    if issubclass(kind, Mapping):
        yield from ((f"[{name!r}]", item) for name, item in value.items())
    elif issubclass(kind, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif issubclass(kind, set | frozenset):
        yield from (("[…]", item) for item in value)
    elif hasattr(kind, "__pydantic_fields__") and not dataclasses.is_dataclass(kind):
        yield from ((f".{name}", item) for name, item in _model_fields(value).items())
    else:
        names = [name for name in _field_names(kind) or () if hasattr(value, name)]
        yield from ((f".{name}", getattr(value, name)) for name in names)


def path_to(value: Any, part: object, path: str = "") -> str:
    """Return the path of an object in a value; empty if it is absent."""
    if value is part:
        return path
    return next((found for step, item in parts(value) if (found := path_to(item, part, path + step))), "")


def _are_equal_atoms(old: list[Any], new: list[Any]) -> bool:
    kinds = list(map(type, old))
    return _EXACT.issuperset(kinds) and kinds == list(map(type, new)) and old == new


def _is_same_other(kind: Any, old: Any, new: Any) -> bool:
    if issubclass(kind, tuple):
        return len(old) == len(new) and all(map(is_same, old, new))
    if issubclass(kind, set | frozenset):
        there = {member: member for member in new}
        return len(there) == len(old) and all(
            member in there and is_same(member, there[member]) for member in old
        )
    if issubclass(kind, datetime | time):
        has_zone = _is_same_zone(old, new)
        return has_zone and old == new and (old.tzinfo is not None or old.fold == new.fold)
    if hasattr(kind, "__pydantic_fields__"):
        return is_same(_model_fields(old), _model_fields(new))
    if issubclass(kind, Mapping):
        return is_same(dict(old.items()), dict(new.items()))
    has_equality = kind.__eq__ is not object.__eq__
    return not has_equality or bool(old == new)


def _is_same_zone(old: datetime | time, new: datetime | time) -> bool:
    if _is_offset(old.tzinfo) and _is_offset(new.tzinfo):
        return old.utcoffset() == new.utcoffset()
    return type(old.tzinfo) is type(new.tzinfo) and old.tzinfo == new.tzinfo


def _is_offset(zone: tzinfo | None) -> bool:
    """Return whether a zone is only an offset; pydantic uses a class of its own for parsed offsets."""
    return type(zone) is timezone or type(zone).__module__.startswith("pydantic_core")


@cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the field names of a class; None if it has no declared fields."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(field.name for field in kind.__attrs_attrs__)
    names: tuple[str, ...] | None = getattr(kind, "__struct_fields__", None)
    return names


def _model_fields(model: Any) -> dict[str, Any]:
    """Return the contents of a pydantic model: its fields, extra fields and private attributes."""
    return {
        **{name: getattr(model, name) for name in _kind(model).__pydantic_fields__ if hasattr(model, name)},
        **(model.__pydantic_extra__ or {}),
        **(model.__pydantic_private__ or {}),
    }


def _reason(old: Any, new: Any) -> str:
    if type(old) is not type(new):
        return f"{_kind(old).__qualname__} would come back as {_kind(new).__qualname__}"
    if isinstance(old, datetime | time) and not _is_same_zone(old, new):
        return f"its time zone {old.tzinfo!r} would come back as {new.tzinfo!r}"
    return "it would come back different"


def _kind(value: object) -> Any:
    return type(value)
