"""Canonical encoding of values, and the hash of a tool's parameters.

Two values are equal if they would be stored alike, apart from the order in which dicts were filled, at any
depth. So types count: 1, 1.0 and True are three values, a list is not a tuple, 0.0 is not -0.0. Sets have no
order. All NaN are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError
from keepstate.values import codec
from keepstate.values.builtin import Record

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
    return ("object", _normalize_dict(dict(form)))


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
