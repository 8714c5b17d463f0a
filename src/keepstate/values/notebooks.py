"""Tables for notebooks: the view of a commit, a document, a task, an event or a listing.

The HTML has no script, and everything from the store is escaped. Signs that are not visible, such as those
that reverse the direction of text, are shown by their numbers. A table has at most 60 rows and 20,000
characters, and says how much more there is. A notebook that does not show HTML shows the `repr` as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

_ROWS: Final = 60
_CHARACTERS: Final = 20_000
_TEXT: Final = 300
"""Characters of one text that are shown."""
_DEPTH: Final = 6
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_INLINE: Final = 8
_PREVIEW: Final = 60
"""Characters of the first values in the line of a folded list or dict."""
_ESCAPED: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;", "\n": "↵ ", "\t": "⇥ "}
)
_STYLE: Final = (
    "<style>.keepstate-table{border-collapse:collapse;font-size:12px}"
    ".keepstate-table th,.keepstate-table td{text-align:left;vertical-align:top;padding:.2em .6em;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 20%,transparent)}"
    ".keepstate-table th{font-weight:600;white-space:nowrap}"
    ".keepstate-table summary{cursor:pointer}.keepstate-table .more{opacity:.65}</style>"
)


class ShownAsTable:
    """A dataclass that a notebook shows as a table of its public attributes."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _Writer().document(type(self).__name__, attributes(self))


class Table(list[T]):
    """A list of commits, differences, events, tasks or other rows that a notebook shows as one table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return _Writer().rows(self)


def table(rows: Iterable[T]) -> Table[T]:
    """Return rows of one kind as a list that a notebook shows as a table.

    Args:
        rows: Commits of a log, documents, events or tasks; dicts are rows as well.
    """
    return Table(rows)


def attributes(shown: Any) -> dict[str, Any]:
    """Return the public attributes of a dataclass, or a copy of a mapping."""
    if is_dataclass(shown):
        return {
            each.name: getattr(shown, each.name) for each in fields(shown) if not each.name.startswith("_")
        }
    named: Any = shown
    return dict(named) if isinstance(shown, Mapping) else {"value": shown}


def state_html(title: str, state: Mapping[str, Any]) -> str:
    """Return the table of a state by its keys."""
    return _Writer().document(title, dict(state))


def visible(text: str) -> str:
    """Return the beginning of a text with visible signs only, escaped for HTML."""
    cut, rest = text[:_TEXT], len(text) - _TEXT
    signs = "".join(sign if sign.isprintable() or sign in "\n\t" else f"\\u{{{ord(sign):x}}}" for sign in cut)
    more = f'<span class="more"> … {rest:,} more characters</span>' if rest > 0 else ""
    return signs.translate(_ESCAPED) + more


class _Writer:
    """Writes one table, and stops where it has enough rows or characters."""

    def __init__(self) -> None:
        self._rows, self._characters = _ROWS, _CHARACTERS

    def document(self, title: str, values: Mapping[str, Any]) -> str:
        """Return a table of named values under a title."""
        return f'{_STYLE}<div class="keepstate-table"><b>{visible(title)}</b>{self._named(values, 0)}</div>'

    def rows(self, rows: Sequence[Any]) -> str:
        """Return a table with a row for each."""
        shown = [attributes(row) for row in rows[: self._rows]]
        columns = list(dict.fromkeys(name for row in shown for name in row))
        columns = [name for name in columns if any(row.get(name) not in (None, (), {}, "") for row in shown)]
        head = "".join(f"<th>{visible(str(name))}</th>" for name in columns)
        lines: list[str] = []
        for row in shown:
            if self._characters <= 0:
                break
            cells = "".join(f"<td>{self._value(_short(row.get(name)), _DEPTH - 2)}</td>" for name in columns)
            lines.append(self._spent(f"<tr>{cells}</tr>"))
        more = _more(len(rows) - len(lines), "rows")
        body = "".join(lines)
        return f'{_STYLE}<table class="keepstate-table"><tr>{head}</tr>{body}</table>{more}'

    def _spent(self, text: str) -> str:
        self._characters -= len(text)
        self._rows -= 1
        return text

    def _named(self, values: Mapping[Any, Any], depth: int) -> str:
        lines: list[str] = []
        for name, value in values.items():
            if self._rows <= 0 or self._characters <= 0:
                break
            key = visible(name if isinstance(name, str) else repr(name))
            lines.append(self._spent(f"<tr><th>{key}</th><td>{self._value(value, depth)}</td></tr>"))
        more = _more(len(values) - len(lines), "entries")
        return f'<table class="keepstate-table">{"".join(lines)}</table>{more}'

    def _value(self, value: Any, depth: int) -> str:
        if (scalar := _scalar(value)) is not None:
            return visible(scalar)
        match value:
            case None:
                return '<span class="more">–</span>'
            case bytes() | bytearray():
                return f'<span class="more">{len(value):,} bytes</span>'
            case Mapping():
                return self._nested("dict", cast("Mapping[Any, Any]", value), depth)  # type: ignore[redundant-cast]
            case list() | tuple() | AbstractSet():
                items = cast("Sequence[Any]", value)
                numbered = dict(zip(range(_ROWS), items, strict=False))
                return self._nested(type(items).__name__, numbered, depth, len(items))
            case _ if is_dataclass(value) and not isinstance(value, type):
                return self._nested(type(value).__name__, attributes(value), depth)
            case _:
                return visible(repr(value))

    def _nested(self, kind: str, values: Mapping[Any, Any], depth: int, count: int | None = None) -> str:
        total = len(values) if count is None else count
        if not total:
            return '<span class="more">–</span>'
        scalars = [_scalar(value) for value in islice(values.values(), _INLINE)]
        known = [text for text in scalars if text is not None]
        preview = ", ".join(text[:_PREVIEW] for text in known)
        is_short = len(known) == total and len(preview) <= _PREVIEW
        if is_short and count is not None:
            return visible(preview)
        label = f"{visible(kind)} of {total:,}"
        begin = f' <span class="more">{visible(preview[:_PREVIEW])}</span>' if preview else ""
        if depth >= _DEPTH or self._rows <= 0 or self._characters <= 0:
            return f'<span class="more">{label}</span>'
        inner = self._named(values, depth + 1)
        more = _more(total - len(values), "items")
        return f"<details><summary>{label}{begin}</summary>{inner}{more}</details>"


def _short(value: Any) -> Any:
    """Return the beginning of a commit's id, and any other value as it is."""
    match value:
        case str() if _COMMIT.fullmatch(value):
            return value[:10]
        case tuple():
            return tuple(map(_short, value))  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return value


def _scalar(value: Any) -> str | None:
    """Return the text of a value that is shown in one line, or None."""
    match value:
        case str():
            return value
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
        case bool() | int() | float():
            return repr(value)
        case _:
            return None


def _more(count: int, what: str) -> str:
    return f'<div class="more">… {count:,} more {what}</div>' if count > 0 else ""
