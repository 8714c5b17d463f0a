"""Typed reads: a decoded value converted to the requested type, or rejected with the path of the mismatch.

msgspec converts. Two cases are handled here: msgspec does not accept an Enum member for its own type, and
does not look into existing objects.
"""

from __future__ import annotations

import enum
import types as python_types
from collections.abc import Collection, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    Final,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.schema import Registration
from keepstate.values.types import kind_of

_SEQUENCES: Final = (list, Sequence, MutableSequence, Collection, Iterable)
_SETS: Final = (set, frozenset)
_MAPPINGS: Final = (dict, Mapping, MutableMapping)
_UNIONS: Final = (Union, python_types.UnionType)


class _UnknownTypeError(InvalidError):
    """The type is not supported, so no value can be checked against it."""


class _UntoldError(Exception):
    """The same error, in a class that msgspec does not intercept."""


def fit(value: Any, wanted: Any, path: str = "") -> Any:
    """Return the value as the requested type: itself, or converted without loss (a list to a tuple).

    Raises:
        InvalidError: The value does not fit; the error names the path.
    """
    if _mentions_enum(wanted):
        return _fit_enums(value, wanted, path)
    try:
        return msgspec.convert(value, wanted, dec_hook=_convert)
    except msgspec.ValidationError as error:
        reason, _, told = str(error).partition(" - at `")
        # Of a key msgspec says "at `key` in `$.data`", from within outwards.
        place, *keys = reversed(told.removesuffix("`").split("` in `"))
        raise _refusal(" ".join([path + place.removeprefix("$"), *keys]), reason) from error
    except (TypeError, _UntoldError) as error:
        reason = f"{_describe(wanted)} cannot be asked for: {error}"
        raise _refusal(path, reason, _UnknownTypeError) from error
    except (AttributeError, UnicodeEncodeError) as error:  # numpy scalars as mappings, loose text
        kind = type(value).__name__
        raise _refusal(path, f"Expected `{_describe(wanted)}`, got `{kind}`") from error
    except RecursionError:
        raise _refusal(path, "it nests too deep to be checked") from None


def _refusal(path: str, reason: str, kind: type[InvalidError] = InvalidError) -> InvalidError:
    path = path.lstrip(". ")
    return kind(f"{path or 'the value'}: {reason}", path=path)


def fit_fields(known: Registration, fields: dict[str, Any]) -> dict[str, Any]:
    """Return an object's fields as the types that its class declares; fields of a model are only validated.

    Raises:
        InvalidError: A field does not fit; the error names class and field.
    """
    if hasattr(known.kind, "__pydantic_fields__"):
        _check_model(known, fields)
        return fields
    fitted = dict(fields)
    for name, wanted in _hints(known.kind).items():
        if name in fields:
            try:
                fitted[name] = fit(fields[name], wanted, f"{known}.{name}")
            except _UnknownTypeError:
                continue
    return fitted


def _check_model(known: Registration, fields: Mapping[str, Any]) -> None:
    model: Any = known.kind
    public = {name: value for name, value in fields.items() if name not in model.__private_attributes__}
    try:
        model.model_validate(public, by_name=True, by_alias=False)
    except ValueError as error:
        raise InvalidError(f"{known}: {error}", path=str(known)) from error


def _fit_enums(value: Any, wanted: Any, path: str) -> Any:
    """Convert as msgspec does, down to the parts without an Enum."""
    origin: Any = get_origin(wanted)
    arguments = get_args(wanted)
    kind = kind_of(value)
    if _is_enum(wanted):
        return _fit_member(value, wanted, path)
    if origin is Annotated:
        return fit(value, arguments[0], path)
    if origin in _UNIONS:
        return _fit_one(value, arguments, path)
    if kind is list and origin in _SEQUENCES:
        return [fit(item, arguments[0], f"{path}[{index}]") for index, item in enumerate(value)]
    if kind is origin and kind in _SETS:
        return origin([fit(item, arguments[0], f"{path}[…]") for item in value])
    if kind is tuple and origin is tuple:
        each = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
        if len(each) == len(value):
            return tuple([fit(item, each[index], f"{path}[{index}]") for index, item in enumerate(value)])
    if kind is dict and origin in _MAPPINGS:
        keys, values = arguments
        return {fit(k, keys, f"{path} key"): fit(v, values, f"{path}[{k!r}]") for k, v in value.items()}
    if kind is dict and is_typeddict(wanted):
        return _fit_typed_dict(value, wanted, path)
    raise _refusal(path, f"expected {_describe(wanted)}, got {kind.__name__}")


def _fit_typed_dict(value: dict[str, Any], wanted: Any, path: str) -> dict[str, Any]:
    extras = get_type_hints(wanted, include_extras=True)
    # The class itself does not see `NotRequired` where annotations are text.
    optional = {name for name, hint in extras.items() if get_origin(hint) is NotRequired}
    if missing := sorted(wanted.__required_keys__ - optional - value.keys()):
        raise _refusal(path, f"{_describe(wanted)} needs {missing}")
    hints = get_type_hints(wanted)
    return {name: fit(value[name], hints[name], f"{path}.{name}") for name in value if name in hints}


def _fit_member(value: Any, wanted: type[enum.Enum], path: str) -> Any:
    if type(value) is wanted:
        return value
    try:
        return wanted(value)
    except ValueError as error:
        raise _refusal(path, str(error)) from error


def _fit_one(value: Any, choices: tuple[Any, ...], path: str) -> Any:
    """Try the choices in order, beginning with choices that need no conversion."""
    for choice in sorted(choices, key=lambda choice: kind_of(value) is not _class_of(choice)):
        try:
            return fit(value, choice, path)
        except InvalidError:
            continue
    names = " | ".join(map(_describe, choices))
    raise _refusal(path, f"expected {names}, got {type(value).__name__}")


def _mentions_enum(wanted: Any) -> bool:
    try:
        return _names_enum(wanted)
    except TypeError:  # An unhashable annotation; msgspec takes these.
        return False


@lru_cache(maxsize=1024)
def _names_enum(wanted: Any) -> bool:
    if _is_enum(wanted):
        return True
    parts: Iterable[Any] = get_type_hints(wanted).values() if is_typeddict(wanted) else get_args(wanted)
    return any(_names_enum(part) for part in parts if isinstance(part, type) or get_origin(part) is not None)


@lru_cache(maxsize=1024)
def _hints(kind: type) -> Mapping[str, Any]:
    """Return the field types of a class; empty if an annotation cannot be resolved."""
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _convert(wanted: Any, value: Any) -> Any:
    """Convert types that msgspec does not know: other classes accept their own objects, models also dicts."""
    try:
        if isinstance(value, _class_of(wanted)):
            return value
    except TypeError as error:
        raise _UntoldError(str(error)) from error
    if kind_of(value) is dict and hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    raise ValueError(f"expected {_describe(wanted)}, got {type(value).__name__}")


def _is_enum(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, enum.Enum)


def _class_of(wanted: Any) -> Any:
    origin: Any = get_origin(wanted)
    return wanted if origin is None else origin


def _describe(wanted: Any) -> str:
    return wanted.__qualname__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted)
