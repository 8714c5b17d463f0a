"""Plain forms of values of a graph: data that a process reads which knows none of the graph's classes.

A value that has no plain form is replaced by its class and its `repr`, so that a reader sees that it is
not the value itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast
from uuid import UUID

_SCALARS: Final = frozenset(
    {str, int, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID}
)
_ROWS: Final = list, tuple, set, frozenset, deque
_DEPTH: Final = 40
_TEXT: Final = 2_000
"""The most characters of the text of a value without a plain form."""


def plain(value: object, depth: int = 0) -> Any:
    """Return a value as dicts, lists and scalars.

    Objects of pydantic and dataclasses become dicts of their fields. An object of another class becomes
    `{"class": its name, "text": its repr}`; so does whatever is over 40 levels deep.
    """
    if type(value) in _SCALARS:
        return _scalar(value)
    if depth > _DEPTH:
        return _text(value)
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {_key(key): plain(each, depth + 1) for key, each in pairs}
    if isinstance(value, _ROWS):
        return [plain(each, depth + 1) for each in cast("list[object]", value)]
    try:
        return plain(_fields(value), depth + 1)
    except Exception:  # noqa: BLE001 - whatever a class of the caller raises; it has no plain form then
        return _text(value)


def _scalar(value: Any) -> Any:
    if type(value) is str:  # a reader cannot encode a lone surrogate
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def _key(key: object) -> Any:
    if type(key) in _SCALARS:
        return _scalar(key)
    return _text(key)["text"]


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, type):
        if callable(dump := getattr(value, "model_dump", None)):
            return cast("dict[str, Any]", dump())
        if is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"a {type(value).__name__} has no fields that are data")


def _text(value: object) -> dict[str, str]:
    kind = type(value)
    try:
        said = repr(value)
    except Exception as error:  # noqa: BLE001 - a class of the caller
        said = f"<{kind.__name__} whose repr raised {type(error).__name__}>"
    cut = said if len(said) <= _TEXT else f"{said[:_TEXT]}…"
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "text": cut.encode("utf-8", "backslashreplace").decode(),
    }
