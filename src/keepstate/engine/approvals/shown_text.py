"""The subject of an approval as text, for a form that people read before they answer.

The text is made where the value is, because a browser rounds large numbers and shows some characters as none.
Invariant: a person who reads the text is not deceived about order or presence of characters. What reverses
text, or has no width, is written as `⟨U+202E⟩`. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final, cast

from keepstate.errors import InvalidError
from keepstate.values import limits

_DEPTH: Final = 100
_SAFE_INT: Final = 2**53 - 1
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff]"
)
"""Characters that reverse text, have no width, or end a line unseen. Joiners are not: scripts need them."""


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
    return None if fields is None else [(f"{name}:", getattr(value, name, None)) for name in fields] or None


def _fields(value: object) -> list[str] | None:
    """Return the names of an object's fields, or None if its class declares none."""
    kind: Any = type(value)
    for names in ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__", "_fields"):
        if (found := getattr(kind, names, None)) is not None:
            return [*found]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [each.name for each in attributes]


def _name(key: object) -> str:
    text = _leaf(key)
    return repr(text) if "\n" in text or ":" in text else text


def _leaf(value: object) -> str:
    if isinstance(value, str):
        return reveal(value) if value.strip() == value and value else repr(reveal(value))
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes: {value.hex()}"
    if isinstance(value, list | tuple | Set | Mapping):
        return "(empty)"
    return reveal(str(value))


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


def _schema_error(path: str, value: object) -> InvalidError:
    return InvalidError(
        f"`{path}` has {value!r:.60}, which a browser cannot read exactly; answer it in your program, "
        "or ask with another schema"
    )
