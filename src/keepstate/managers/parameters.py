"""Which values count as equal, and so which parameters of a tool: one name for all that do.

The rule: two values are equal if they would be stored alike, but for the order in which dicts were filled,
at any depth. So types count: 1, 1.0 and True are three values, a list is no tuple, 0.0 is not
-0.0. Sets have no order. All NaN are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError
from keepstate.values import codec
from keepstate.values.builtin import Record

_RULE: Final = 1
"""Stands in each name, so that another rule gives other names."""


def parameters_hash(tool_name: str, parameters: Mapping[str, Any]) -> str:
    """Return the name of what a tool is asked: the same for equal parameters, in every process and version.

    Raises:
        InvalidError: A parameter could not be stored; its path is named.
    """
    if not isinstance(parameters, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"`parameters` is {type(parameters).__name__}; give a dict")
    head = codec.canonical((_RULE, check_text("tool_name", tool_name)))
    return sha256(head + sameness(dict(parameters))).hexdigest()


def sameness(value: object) -> bytes:
    """Return bytes that are the same for values that count as equal.

    Raises:
        InvalidError: The value could not be stored; the path of what is at fault is named.
    """
    return codec.canonical(_ordered(codec.to_builtin(codec.encode(value))))


def _ordered(value: Any) -> Any:
    """Return a value in which every dict is in the order of its encoded keys."""
    form = _FORMS.get(_kind(value))
    return value if form is None else form(value)


def _kind(value: object) -> Any:
    return type(value)


def _dict(group: dict[Any, Any]) -> dict[Any, Any]:
    pairs = sorted(group.items(), key=lambda pair: codec.canonical(pair[0]))
    return {key: _ordered(held) for key, held in pairs}


def _object(form: Record) -> tuple[Any, ...]:
    return ("object", _dict(dict(form)))


def _tuple(items: tuple[Any, ...]) -> tuple[Any, ...]:
    # Marked, so that no tuple of the caller's is taken for an object.
    return ("tuple", *map(_ordered, items))


def _list(items: list[Any]) -> list[Any]:
    return [_ordered(item) for item in items]


def _set(members: set[Any] | frozenset[Any]) -> tuple[Any, ...]:
    return (type(members).__name__, *sorted(codec.canonical(_ordered(member)) for member in members))


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {
    dict: _dict,
    Record: _object,
    tuple: _tuple,
    list: _list,
    set: _set,
    frozenset: _set,
}
