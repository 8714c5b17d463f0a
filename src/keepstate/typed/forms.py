"""Conversion of values to JSON types and back: plain types, dataclasses, msgspec, attrs and pydantic classes.

msgspec converts all classes but pydantic's own. A value that would not come back equal is rejected on write,
and a stored value that does not validate is rejected on read; both errors name the path.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec import inspect

from keepstate.errors import StateError
from keepstate.typed.roundtrip import find_difference, parts, path_to

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


def _kind(value: object) -> Any:
    return type(value)


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
