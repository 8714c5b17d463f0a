"""Conversion of values to JSON types and back: plain types, dataclasses, msgspec, attrs and pydantic classes.

msgspec converts all classes but pydantic's own. A value that would not come back equal is rejected on write,
and a stored value that does not validate is rejected on read; both errors name the path.

Equal means the same type in every part. Plain equality is too weak: an `IntEnum` equals an int, a time in a
zone equals one with its offset, and a field excluded from comparison equals any value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime, time, timezone, tzinfo
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec import inspect

from keepstate.errors import StateError

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


_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


class _UnfitError(Exception):
    """An object has no JSON form."""

    def __init__(self, value: object) -> None:
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")
        self.value = value


class _InvalidError(ValueError):
    """A validation error of pydantic, with its path."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(reason)
        self.path = path


def to_json(value: Any, wanted: Any, key: str) -> Any:
    """Return a value as JSON types.

    Raises:
        StateError: The value has no JSON form, is not of the type `wanted`, or would not come back equal; the
            error names the path.
    """
    try:
        raw = msgspec.to_builtins(value, str_keys=True, enc_hook=_pydantic_to_json)
    except _UnfitError as error:
        raise _error(key, path_to(value, error.value), str(error), "is not written") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _error(key, "", str(error) or type(error).__name__, "is not written") from error
    if type(value) in _ATOMS and type(value) is wanted:
        return raw
    raw = _without_tuples(raw)
    back = _convert(raw, wanted, key, "is not written")
    if (found := find_difference(value, back)) is not None:
        raise _error(key, *found, "is not written")
    return raw


def from_json(raw: Any, wanted: Any, key: str) -> Any:
    """Return the value of a type from JSON types, without shared mutable objects.

    Raises:
        StateError: The JSON does not validate; the error names the path.
    """
    return _convert(raw, wanted, key, "cannot be read")


def _convert(raw: Any, wanted: Any, key: str, what: str) -> Any:
    try:
        value = msgspec.convert(raw, wanted, str_keys=True, dec_hook=_pydantic_from_json)
        if _may_need_validation(wanted):
            _validate(value)
        return value
    except msgspec.ValidationError as error:
        reason, path = _split_reason(error)
        raise _error(key, _dict_path(raw, wanted) or path, reason, what) from error
    except _InvalidError as error:
        raise _error(key, error.path, str(error), what) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _error(key, "", str(error) or type(error).__name__, what) from error


def _split_reason(error: msgspec.ValidationError) -> tuple[str, str]:
    reason, _, path = str(error).partition(" - at `")
    inner = error.__cause__.path if isinstance(error.__cause__, _InvalidError) else ""
    return reason, path.removesuffix("`").removeprefix("$") + inner


def _dict_path(raw: Any, wanted: Any) -> str | None:
    """Return the path of an error inside a dict, with its key, which msgspec omits; None for other types."""
    if _kind(raw) is not dict or get_origin(wanted) is not dict:
        return None
    for name, item in raw.items():
        try:
            msgspec.convert(item, get_args(wanted)[1], str_keys=True, dec_hook=_pydantic_from_json)
        except msgspec.ValidationError as error:
            return f"[{name!r}]{_dict_path(item, get_args(wanted)[1]) or _split_reason(error)[1]}"
    return None


def require_json(raw: Any, key: str, path: str = "") -> None:
    """Raise `StateError` for values that are not JSON types, as an application's `encode` may return."""
    kind = _kind(raw)
    if kind in _ATOMS:
        return
    if kind is list:
        for index, item in enumerate(raw):
            require_json(item, key, f"{path}[{index}]")
    elif kind is dict:
        for name, item in raw.items():
            if type(name) is not str:
                raise _error(key, path, f"JSON has no key {name!r}", "is not written")
            require_json(item, key, f"{path}.{name}")
    else:
        raise _error(
            key, path, f"encode() returned a {kind.__name__}, which is not a JSON type", "is not written"
        )


def _error(key: str, path: str, reason: str, what: str) -> StateError:
    path = path.lstrip(".")
    return StateError(f"Key {key!r} {what}: {f'{path}: ' if path else ''}{reason}", state_key=key, path=path)


def _without_tuples(raw: Any) -> Any:
    """Return the same JSON types with lists in place of tuples."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(raw))
    except (OverflowError, UnicodeEncodeError):  # ints over 64 bits, lone surrogates
        return _as_lists(raw)


def _as_lists(raw: Any) -> Any:
    kind = _kind(raw)
    if kind in (list, tuple):
        return [_as_lists(item) for item in raw]
    return {name: _as_lists(item) for name, item in raw.items()} if kind is dict else raw


def _pydantic_to_json(value: Any) -> Any:
    if hasattr(_kind(value), "__pydantic_fields__"):
        return value.model_dump(mode="json", by_alias=False, round_trip=True)
    raise _UnfitError(value)


def _pydantic_from_json(wanted: Any, raw: Any) -> Any:
    if not hasattr(wanted, "__pydantic_fields__"):
        raise TypeError(f"{wanted!r} cannot be created from JSON. Write `encode` and `decode`.")
    import pydantic

    try:
        return wanted.model_validate(raw, by_name=True, by_alias=False)
    except pydantic.ValidationError as error:
        raise _first_error(error, "") from error


def _first_error(error: Any, path: str) -> _InvalidError:
    """Return pydantic's first error, with its path appended to `path`."""
    first = error.errors(include_url=False)[0]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return _InvalidError(first["msg"], path + "".join(steps))


# ---- dataclasses of pydantic, which msgspec fills without validation


def _may_need_validation(wanted: Any) -> bool:
    """Return whether values of a type may contain dataclasses of pydantic."""
    try:
        return _has_pydantic_dataclass(wanted)
    except TypeError:  # a type that cannot be hashed
        return True


@cache
def _has_pydantic_dataclass(wanted: Any) -> bool:
    seen: set[int] = set()
    left: list[Any] = [inspect.type_info(wanted)]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, inspect.DataclassType) and _is_pydantic_dataclass(part.cls):
            return True
        if isinstance(part, tuple):
            left.extend(_all_of(part))
        elif isinstance(part, inspect.Type | inspect.Field):
            left.extend(getattr(part, name) for name in part.__struct_fields__)
    return False


def _all_of(items: Any) -> list[Any]:
    return list(items)


def _is_pydantic_dataclass(kind: type) -> bool:
    return getattr(kind, "__is_pydantic_dataclass__", False) is True


def _validate(value: Any, path: str = "") -> None:
    """Raise `_InvalidError` if a pydantic dataclass in the value does not validate."""
    if _is_pydantic_dataclass(_kind(value)):
        import pydantic

        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        try:
            _adapter(_kind(value)).validate_python(given, by_name=True, by_alias=False)
        except pydantic.ValidationError as error:
            raise _first_error(error, path) from error
    for step, item in parts(value):
        _validate(item, path + step)


@cache
def _adapter(kind: type) -> Any:
    import pydantic

    return pydantic.TypeAdapter(kind)
