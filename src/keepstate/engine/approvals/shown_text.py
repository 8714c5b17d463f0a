"""The subject of an approval as text, for a form that people read before they answer.

The text is made where the value is, because a browser rounds large numbers and shows some characters as none.
Invariant: a person who reads the text is not deceived about order or presence of characters. What reverses
text, or has no width, is written as `⟨U+202E⟩`. A text that reads like a number or another value, such as
"no", is in quotes. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Set
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, Final, cast
from uuid import UUID

from keepstate.errors import InvalidError
from keepstate.values import limits

_DEPTH: Final = 100
_SAFE_INT: Final = 2**53 - 1
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u27e8\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\uffff\U00016fe4"
    "\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    "|(?<![^\x00-\x22\x24-\x29\x2b-\x2f\x3a-\x7f\\s\u200c\u200d])[\ufe0e\ufe0f]"
    "|(?<![^\x00-\x7f\\s\u200c\u200d])[\u200c\u200d]"
)
"""Characters that reverse text, have no width, or end a line unseen, and the sign that marks them.

Joiners and selectors of a glyph are needed in some scripts, so they are hidden only where they join nothing:
behind a space, another joiner, or an ASCII character, apart from selectors of a keycap such as `1`.
"""
_SPACES: Final = re.compile(r"[^\S\n]{2,}")
"""Spaces that would push what follows onto a line of its own, where it looks like another field."""
_OTHER_VALUE: Final = re.compile(
    r"none|yes|no|\(empty\)|[+-]?s?(nan|inf|infinity)|[+-]?[\d.][\d.,:/_eE+\-TZ ]*|\d+ bytes: .*|['\"].*",
    re.IGNORECASE | re.ASCII,
)
"""Texts that read like a value that is not a text, or like a text in quotes."""
_EXACT: Final[tuple[type, ...]] = (
    int,
    float,
    complex,
    Decimal,
    Fraction,
    date,
    time,
    timedelta,
    UUID,
    Enum,
    range,
    re.Pattern,
)
"""The types whose text says all of a value."""


def reveal(text: str) -> str:
    """Return a text in which hidden characters are written by their numbers."""
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.replace("\r\n", "\n"))


def text_of(value: object) -> str:
    """Return a value as indented text, exact in every number.

    Raises:
        InvalidError: The text would be too long or too deep for a form.
    """
    lines: list[str] = []
    size = 0
    for line in _lines(value, 0):
        size += len(line) + 1
        if size > limits.LINK_SUBJECT_CHARACTERS:
            raise InvalidError(
                f"the subject has over {limits.LINK_SUBJECT_CHARACTERS} characters as text, which is too "
                "long for a form; ask with a shorter subject"
            )
        lines.append(line)
    return "\n".join(lines)


def _lines(value: object, depth: int) -> Iterator[str]:
    if depth > _DEPTH:
        raise InvalidError(f"the subject is over {_DEPTH} levels deep, which is too deep for a form")
    pad = "  " * depth
    parts = _parts(value)
    if parts is None:
        yield from _leaf_lines(pad, _leaf(value))
        return
    for name, part in parts:
        if _parts(part) is None and "\n" not in (leaf := _leaf(part)):
            yield f"{pad}{name} {leaf}"
        else:
            yield f"{pad}{name}"
            yield from _lines(part, depth + 1)


def _leaf_lines(pad: str, leaf: str) -> Iterator[str]:
    """Yield the lines of a text, marked if there are several, so that none looks like another part."""
    mark = "│ " if "\n" in leaf else ""
    yield from (f"{pad}{mark}{line}" for line in leaf.split("\n"))


def _parts(value: object) -> list[tuple[str, object]] | None:
    """Return the named parts of a value, or None if it has no parts."""
    if isinstance(value, Mapping):
        given = cast("Mapping[object, object]", value)
        return [(f"{_name(key)}:", part) for key, part in given.items()] or None
    if isinstance(value, list | tuple | Set):
        return [("-", part) for part in cast("list[object]", value)] or None
    fields = _fields(value)
    return None if fields is None else [(f"{_name(name)}:", part) for name, part in fields.items()] or None


def _fields(value: object) -> dict[str, object] | None:
    """Return an object's fields by name, also those that only this object has; None if its class has none."""
    kind: Any = type(value)
    named: dict[str, object]
    for names in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__", "_fields"):
        if (found := getattr(kind, names, None)) is not None:
            named = {name: getattr(value, name, None) for name in found}
            break
    else:
        attributes = getattr(kind, "__attrs_attrs__", None)
        if attributes is None:
            return None
        named = {each.name: getattr(value, each.name, None) for each in attributes}
    for hidden in ("__pydantic_extra__", "__pydantic_private__"):
        named |= getattr(value, hidden, None) or {}
    return named


def _name(key: object) -> str:
    if _parts(key) is not None or isinstance(key, list | tuple | Set | Mapping):
        return reveal(f"{key!r}")
    text = _leaf(key)
    is_quoted = text[:1] in ("'", '"')
    return repr(text) if not is_quoted and ("\n" in text or ":" in text) else text


def _leaf(value: object) -> str:
    if isinstance(value, str):
        shown = _SPACES.sub(lambda found: f"⟨{len(found[0])} spaces⟩", reveal(value))
        is_plain = value and value.strip() == value and not _OTHER_VALUE.fullmatch(value)
        return shown if is_plain else repr(shown)
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes: {value.hex()}"
    if isinstance(value, list | tuple | Set | Mapping):
        return "(empty)"
    if not isinstance(value, _EXACT):
        raise InvalidError(
            f"the subject has a {type(value).__name__}, which has no exact text; ask with plain values"
        )
    try:
        return reveal(f"{value!s}")
    except ValueError as error:  # an int of more digits than Python writes
        raise InvalidError("the subject has a number of too many digits for a form") from error


def require_plain(schema: object, path: str = "schema") -> None:
    """Raise `InvalidError` if a browser would read another schema than this one."""
    if isinstance(schema, dict):
        for name, part in cast("dict[str, object]", schema).items():
            require_plain(part, f"{path}.{name}"[:200])
    elif isinstance(schema, list):
        for part in cast("list[object]", schema):
            require_plain(part, path)
    elif isinstance(schema, int) and not isinstance(schema, bool):
        if abs(schema) > _SAFE_INT:
            raise _schema_error(path, schema)
    elif isinstance(schema, float):
        if not abs(schema) < float("inf"):
            raise _schema_error(path, schema)
    elif schema is not None and not isinstance(schema, bool | str):
        raise _schema_error(path, schema)


def require_short(schema: object) -> None:
    """Raise `InvalidError` if the JSON of a plain schema would be too long for a form."""
    if len(json.dumps(schema)) > limits.LINK_SUBJECT_CHARACTERS:
        raise InvalidError(
            f"the schema has over {limits.LINK_SUBJECT_CHARACTERS} characters as JSON, which is too long for "
            "a form; answer it in your program, or ask with a shorter schema"
        )


def _schema_error(path: str, value: object) -> InvalidError:
    return InvalidError(
        f"`{path}` has {value!r:.60}, which a browser cannot read exactly; answer it in your program, "
        "or ask with another schema"
    )
