"""The type of a key's values, read from its type argument, and the default of that type."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from sys import modules
from typing import Annotated, Any, Final, ForwardRef, NewType, TypeVar, Union, get_args, get_origin

from keepstate.errors import StateError

_EMPTY: Final = (list, dict, set, frozenset, tuple)
"""Container types whose default is an empty container."""


def value_type(cls: type, generic: type) -> Any:
    """Return the argument that a class gives for the one parameter of a generic base class.

    Raises:
        StateError: The class gives no argument, or a name that cannot be resolved.
    """
    found = _argument(cls, generic)
    if isinstance(found, str | ForwardRef):
        found = _resolve_name(cls, found)
    if found is None or isinstance(found, TypeVar) or _has_open_choice(found):
        raise StateError(f"{cls.__qualname__} has no type argument. Write {_expected_form(cls)}.")
    return found


def _has_open_choice(found: Any) -> bool:
    """Return whether a type variable with constraints is still open."""
    return any(each.__constraints__ for each in getattr(found, "__parameters__", ()))


def _expected_form(cls: type) -> str:
    """Return an example of the base class with its type arguments."""
    base: Any = next(base for base in cls.__mro__[1:] if getattr(base, "__parameters__", ()))
    return f"{base.__name__}[{', '.join('int' for _ in base.__parameters__)}]"


def _argument(cls: type, generic: type) -> Any:
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if origin is generic:
            return next(iter(get_args(base)), None)
        if isinstance(origin, type) and issubclass(origin, generic):
            found = _argument(origin, generic)
            given = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            return _substitute(found, given)
    return None


def _substitute(found: Any, given: dict[Any, Any]) -> Any:
    if isinstance(found, TypeVar):
        return given.get(found, found)
    wanted = getattr(found, "__parameters__", ())
    if not wanted or isinstance(found, type):
        return found
    return found[tuple(given.get(each, each) for each in wanted)]


def _resolve_name(cls: type, name: str | ForwardRef) -> Any:
    text = name if isinstance(name, str) else name.__forward_arg__
    holder = type("Holder", (), {"__annotations__": {"value": text}, "__module__": cls.__module__})
    names = vars(modules[cls.__module__]) if cls.__module__ in modules else {}
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["value"]
    except (NameError, TypeError, SyntaxError) as error:
        raise StateError(
            f"{cls.__qualname__} names its type {text!r}, which cannot be resolved: {error}"
        ) from error


def default_maker(cls: type, wanted: Any) -> Callable[[], Any]:
    """Return a function that makes the default of a type.

    Raises:
        StateError: The type has no default.
    """
    maker = _maker(wanted)
    reason = "it cannot be created without arguments"
    if maker is not None:
        try:
            maker()
        except Exception as error:  # noqa: BLE001 - reported to the author of the class
            reason = repr(error)
        else:
            return maker
    raise StateError(
        f"{cls.__qualname__} has no default, because {format_type(wanted)} has none ({reason}). Write a "
        "classmethod `default`."
    )


def _maker(wanted: Any) -> Callable[[], Any] | None:
    origin = get_origin(wanted)
    if wanted is None or wanted is type(None):
        return _nothing
    if origin is Annotated:
        return _maker(get_args(wanted)[0])
    if isinstance(wanted, NewType):
        return _maker(wanted.__supertype__)
    if origin in (Union, types.UnionType):
        return _nothing if type(None) in get_args(wanted) else None
    if typing.is_typeddict(wanted):
        return None if wanted.__required_keys__ else dict
    if origin is tuple and get_args(wanted)[1:] != (...,):
        return None
    if origin in _EMPTY:
        empty: Callable[[], Any] = origin
        return empty
    made: Any = wanted if origin is None else origin
    return made if inspect.isclass(made) and made is not object else None


def _nothing() -> None:
    return None


def format_type(wanted: Any) -> str:
    """Return a type as it is written in code."""
    return wanted.__qualname__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted)
