"""Values as JSON types and back: plain ones, dataclasses, msgspec, attrs and pydantic classes.

msgspec does the work, and pydantic that of its own classes. What would not come back the same is refused
when it is written, and what does not validate when it is read; both name the path.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec import inspect

from keepstate.errors import StateError
from keepstate.typed.roundtrip import difference, parts, path_to

_ATOMS: Final = frozenset({str, int, float, bool, type(None)})


class _UnfitError(Exception):
    """An object that has no form."""

    def __init__(self, value: object) -> None:
        super().__init__(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")
        self.value = value


class _InvalidError(ValueError):
    """What pydantic says of an object, and where in it."""

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(reason)
        self.path = path


def written(value: Any, wanted: Any, key: str) -> Any:
    """Return a value as JSON types.

    Raises:
        StateError: It has no form, is no `wanted`, or would come back different; names the path.
    """
    try:
        raw = msgspec.to_builtins(value, str_keys=True, enc_hook=_form)
    except _UnfitError as error:
        raise _refused(key, path_to(value, error.value), str(error), "is not written") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(key, "", str(error) or type(error).__name__, "is not written") from error
    if type(value) in _ATOMS and type(value) is wanted:
        return raw
    raw = _without_tuples(raw)
    back = _read(raw, wanted, key, "is not written")
    if (found := difference(value, back)) is not None:
        raise _refused(key, *found, "is not written")
    return raw


def read(raw: Any, wanted: Any, key: str) -> Any:
    """Return the value of a type that JSON types stand for; shares nothing with them that can change.

    Raises:
        StateError: They stand for none; names the path.
    """
    return _read(raw, wanted, key, "cannot be read")


def _read(raw: Any, wanted: Any, key: str, what: str) -> Any:
    try:
        value = msgspec.convert(raw, wanted, str_keys=True, dec_hook=_value)
        if _holds_validated(wanted):
            _validate(value)
        return value
    except msgspec.ValidationError as error:
        reason, path = _told(error)
        raise _refused(key, _exactly(raw, wanted) or path, reason, what) from error
    except _InvalidError as error:
        raise _refused(key, error.path, str(error), what) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(key, "", str(error) or type(error).__name__, what) from error


def _told(error: msgspec.ValidationError) -> tuple[str, str]:
    reason, _, place = str(error).partition(" - at `")
    inner = error.__cause__.path if isinstance(error.__cause__, _InvalidError) else ""
    return reason, place.removesuffix("`").removeprefix("$") + inner


def _exactly(raw: Any, wanted: Any) -> str | None:
    """Return where a dict does not fit, by its key, which msgspec does not tell; None of other types."""
    if _kind(raw) is not dict or get_origin(wanted) is not dict:
        return None
    for name, item in raw.items():
        try:
            msgspec.convert(item, get_args(wanted)[1], str_keys=True, dec_hook=_value)
        except msgspec.ValidationError as error:
            return f"[{name!r}]{_exactly(item, get_args(wanted)[1]) or _told(error)[1]}"
    return None


def admit_json(raw: Any, key: str, path: str = "") -> None:
    """Raise `StateError` for what is no JSON, as an `encode` of the application may return it."""
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
    """Return the same with lists for tuples, which msgspec takes for JSON."""
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
        raise _first(error, "") from error


def _first(error: Any, path: str) -> _InvalidError:
    """Return the first of what pydantic found, with its place behind a path."""
    first = error.errors(include_url=False)[0]
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return _InvalidError(first["msg"], path + "".join(steps))


# ---- dataclasses of pydantic, which msgspec fills like any other


def _holds_validated(wanted: Any) -> bool:
    """Whether values of a type may have dataclasses of pydantic in them."""
    try:
        return _looked_through(wanted)
    except TypeError:  # a type that cannot be hashed
        return True


@cache
def _looked_through(wanted: Any) -> bool:
    seen: set[int] = set()
    left: list[Any] = [inspect.type_info(wanted)]
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, inspect.DataclassType) and _is_validated(part.cls):
            return True
        if isinstance(part, tuple):
            left.extend(_all_of(part))
        elif isinstance(part, inspect.Type | inspect.Field):
            left.extend(getattr(part, name) for name in part.__struct_fields__)
    return False


def _all_of(items: Any) -> list[Any]:
    return list(items)


def _is_validated(kind: type) -> bool:
    return getattr(kind, "__is_pydantic_dataclass__", False) is True


def _validate(value: Any, path: str = "") -> None:
    """Raise `_InvalidError` for what a dataclass of pydantic does not take."""
    if _is_validated(_kind(value)):
        import pydantic

        given = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        try:
            _adapter(_kind(value)).validate_python(given, by_name=True, by_alias=False)
        except pydantic.ValidationError as error:
            raise _first(error, path) from error
    for step, item in parts(value):
        _validate(item, path + step)


@cache
def _adapter(kind: type) -> Any:
    import pydantic

    return pydantic.TypeAdapter(kind)
