"""Values as JSON types and back: plain ones, dataclasses, msgspec, attrs and pydantic classes.

msgspec does the work. What would not come back equal is refused when it is written, and what does not
validate when it is read; both name the path.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args, get_origin

import msgspec

from keepstate.errors import StateError

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})
_CLASSES: Final = ("__attrs_attrs__", "__struct_fields__", "__pydantic_fields__")


class _UnfitError(Exception):
    """An object that has no form."""

    def __init__(self, value: object) -> None:
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")
        self.value = value


def written(value: Any, wanted: Any, key: str) -> Any:
    """Returns a value as JSON types.

    Raises:
        StateError: It has no form, is no `wanted`, or would come back different; names the path.
    """
    try:
        raw = msgspec.to_builtins(value, str_keys=True, enc_hook=_form)
    except _UnfitError as error:
        raise _refused(key, _path_to(value, error.value), str(error), "is not written") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(key, "", str(error) or type(error).__name__, "is not written") from error
    if type(value) in _ATOMS and type(value) is wanted:
        return raw
    raw = _without_tuples(raw)
    back = _read(raw, wanted, key, "is not written")
    if back != value and (path := _difference(value, back, "")) is not None:
        raise _refused(key, path, "it would come back different", "is not written")
    return raw


def read(raw: Any, wanted: Any, key: str) -> Any:
    """Returns the value of a type that JSON types stand for; shares nothing with them that can change.

    Raises:
        StateError: They stand for none; names the path.
    """
    return _read(raw, wanted, key, "cannot be read")


def _read(raw: Any, wanted: Any, key: str, what: str) -> Any:
    try:
        return msgspec.convert(raw, wanted, str_keys=True, dec_hook=_value)
    except msgspec.ValidationError as error:
        reason, path = _told(error)
        raise _refused(key, _exactly(raw, wanted) or path, reason, what) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(key, "", str(error) or type(error).__name__, what) from error


def _told(error: msgspec.ValidationError) -> tuple[str, str]:
    reason, _, place = str(error).partition(" - at `")
    return reason, place.removesuffix("`").removeprefix("$")


def _exactly(raw: Any, wanted: Any) -> str | None:
    """Returns where a dict does not fit, by its key, which msgspec does not tell; None of other types."""
    if _kind(raw) is not dict or get_origin(wanted) is not dict:
        return None
    for name, item in raw.items():
        try:
            msgspec.convert(item, get_args(wanted)[1], str_keys=True, dec_hook=_value)
        except msgspec.ValidationError as error:
            return f"[{name!r}]{_exactly(item, get_args(wanted)[1]) or _told(error)[1]}"
    return None


def admit_json(raw: Any, key: str, path: str = "") -> None:
    """Raises `StateError` for what is no JSON, as an `encode` of the application may return it."""
    kind = _kind(raw)
    if kind in _ATOMS:
        return
    if kind is list:
        for index, item in enumerate(raw):
            admit_json(item, key, f"{path}[{index}]")
    elif kind is dict:
        for name, item in raw.items():
            if type(name) is not str:
                raise _refused(key, path, f"JSON has no key {name!r}", "is not written")
            admit_json(item, key, f"{path}.{name}")
    else:
        raise _refused(key, path, f"its `encode` gave a {kind.__name__}; JSON has none", "is not written")


def _refused(key: str, path: str, reason: str, what: str) -> StateError:
    path = path.lstrip(".")
    return StateError(f"{key!r} {what}: {f'{path}: ' if path else ''}{reason}", state_key=key, path=path)


def _kind(value: object) -> Any:
    return type(value)


def _without_tuples(raw: Any) -> Any:
    """Returns the same with lists for tuples, which msgspec takes for JSON."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(raw))
    except (OverflowError, UnicodeEncodeError):  # ints over 64 bits, loose text
        return _listed(raw)


def _listed(raw: Any) -> Any:
    kind = _kind(raw)
    if kind in (list, tuple):
        return [_listed(item) for item in raw]
    return {name: _listed(item) for name, item in raw.items()} if kind is dict else raw


def _form(value: Any) -> Any:
    if hasattr(_kind(value), "__pydantic_fields__"):
        return value.model_dump(mode="json", by_alias=False, round_trip=True)
    raise _UnfitError(value)


def _value(wanted: Any, raw: Any) -> Any:
    if not hasattr(wanted, "__pydantic_fields__"):
        raise TypeError(f"{wanted!r} is of no kind that is made from JSON; write `encode` and `decode`")
    import pydantic

    try:
        return wanted.model_validate(raw, by_name=True, by_alias=False)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a value consists of, and where."""
    kind = _kind(value)
    if issubclass(kind, Mapping):
        yield from ((f"[{name!r}]", item) for name, item in value.items())
    elif issubclass(kind, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif issubclass(kind, set | frozenset):
        yield from (("[…]", item) for item in value)
    elif dataclasses.is_dataclass(value) or any(hasattr(kind, mark) for mark in _CLASSES):
        yield from ((f".{name}", item) for name, item in _fields(value))


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    names = getattr(value, "__struct_fields__", None) or getattr(_kind(value), "__annotations__", {})
    yield from ((name, getattr(value, name)) for name in names if hasattr(value, name))


def _path_to(value: Any, part: object, path: str = "") -> str:
    if value is part:
        return path
    return next((found for step, item in _parts(value) if (found := _path_to(item, part, path + step))), "")


def _difference(old: Any, new: Any, path: str) -> str | None:
    """Returns where two values differ, if they do: what cannot be compared, and NaN, is no difference."""
    if type(old) is not type(new):
        return path
    if isinstance(old, float):
        return None if old == new or (math.isnan(old) and math.isnan(new)) else path
    mine, theirs = list(_parts(old)), list(_parts(new))
    if not mine and not theirs:
        has_no_equality = "__eq__" not in {name for base in type(old).__mro__[:-1] for name in vars(base)}
        return None if old == new or has_no_equality else path
    if isinstance(old, set | frozenset):
        return None if old == new else path
    if [step for step, _ in mine] != [step for step, _ in theirs]:
        return path
    for (step, item), (_, other) in zip(mine, theirs, strict=True):
        if (found := _difference(item, other, path + step)) is not None:
            return found
    return None
