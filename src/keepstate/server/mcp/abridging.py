"""Abridging of JSON values to a number of characters, so that a result fits into the context of a model.

A large value stays JSON: small parts are kept whole, and what is left out is marked with its path. Invariant:
the result has at most the given number of characters, or is a single mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from keepstate.values.builtin import TYPE

CUT: Final = "@cut"
"""The member of an object that stands for something left out."""
_LEAST: Final = 240
"""Characters that a part gets at least. Below that, parts at the end are left out instead."""


def json_text(value: object) -> str:
    """Return a value of JSON types as JSON."""
    return msgspec.json.encode(value).decode()


def mark(kind: str, path: Sequence[Any] | None, most: int = 1 << 16, **facts: Any) -> dict[str, Any]:
    """Return what stands for a value that was left out.

    Args:
        kind: The kind of value, such as `list`.
        path: The path by which the tool `state` reads the value, if there is one.
        most: The number of characters of the mark with the path. Without room, the path is left out.
        facts: The number of its items or characters.
    """
    made = {CUT: {"kind": kind, **facts}}
    if path is not None:
        told = {CUT: {"kind": kind, **facts, "path": list(path)}}
        if len(json_text(told)) <= most:
            return told
    return made


def abridge(
    value: Any, most: int, path: Sequence[Any] | None = None, *, first: int = 0, total: int | None = None
) -> Any:
    """Return a value of JSON types with at most `most` characters of JSON.

    Args:
        value: The value.
        most: The number of characters.
        path: The path of the value in a state, which marks name. None if it is not part of a state.
        first: The place of its first item or character in the value at the path.
        total: The number of all items at the path, if there are more.
    """
    size = len(json_text(value))
    if size <= most:
        return value
    if isinstance(value, str):
        return _abridge_text(value, most, path, first)
    if isinstance(value, list):
        items: list[Any] = cast("Any", value)
        return _abridge_list(items, most, path, first, first + len(items) if total is None else total)
    if isinstance(value, dict) and TYPE not in value:
        members = cast("dict[str, Any]", value)
        return _abridge_dict(members, most, path, first, first + len(members) if total is None else total)
    return mark("value", path, most, characters=size)  # the parts of a tagged form are not steps of a path


def last_shown(value: Any) -> int | None:
    """Return the place of the last item that an abridged list or dict shows; None if it shows all."""
    items: list[Any] = cast("Any", value) if isinstance(value, list) else [value]
    last = items[-1] if items else None
    told = cast("Any", last).get(CUT) if isinstance(last, dict) else None
    after = cast("Any", told).get("after") if isinstance(told, dict) else None
    return after if isinstance(after, int) else None


def _abridge_text(text: str, most: int, path: Sequence[Any] | None, first: int) -> Any:
    told = mark("text", path, most, characters=first + len(text))
    room = most - len(json_text(told)) - 40
    if room < _LEAST // 2:
        return told
    kept = text[:room]
    while (over := len(json_text(kept)) - room) > 0:  # some characters are longer in JSON
        kept = kept[: -max(1, over // 6)]
    told[CUT]["after"] = first + len(kept)
    return {"text": kept, **told}


def _abridge_list(items: list[Any], most: int, path: Sequence[Any] | None, first: int, total: int) -> Any:
    rest = mark("list", path, most // 2, items=total, after=total)
    sizes = [len(json_text(item)) + 1 for item in items]
    count, share = _shares(sizes, most - len(json_text(rest)) - 3)
    if not count:
        return mark("list", path, most, items=total)
    kept = [
        abridge(item, share - 1, None if path is None else [*path, first + step])
        for step, item in enumerate(items[:count])
    ]
    rest[CUT]["after"] = first + count - 1
    return kept if count == len(items) else [*kept, rest]


def _abridge_dict(
    members: dict[str, Any], most: int, path: Sequence[Any] | None, first: int, total: int
) -> Any:
    rest = mark("dict", path, most // 2, items=total, after=total)
    lengths = [len(json_text(name)) + 2 for name in members]
    sizes = [length + len(json_text(part)) for length, part in zip(lengths, members.values(), strict=True)]
    count, share = _shares(sizes, most - len(json_text(rest)) - 3)
    if not count:
        return mark("dict", path, most, items=total)
    kept: dict[str, Any] = {}
    for (name, part), length in zip([*members.items()][:count], lengths, strict=False):
        kept[name] = abridge(part, share - length, None if path is None else [*path, name])
    rest[CUT]["after"] = first + count - 1
    return kept if count == len(members) else kept | rest


def _shares(sizes: Sequence[int], room: int) -> tuple[int, int]:
    """Return how many parts have room, from the first on, and the largest size that one of them may have."""
    count = 0
    while count < len(sizes) and _level(sizes[: count + 1], room) >= min(_LEAST, max(sizes[: count + 1])):
        count += 1
    return count, _level(sizes[:count], room) if count else 0


def _level(sizes: Sequence[int], room: int) -> int:
    """Return the size to which parts have to be cut so that all of them have room."""
    left, level = room, 0
    for place, size in enumerate(sorted(sizes)):
        level = left // (len(sizes) - place)
        if size > level:
            return level
        left -= size
    return max(sizes, default=0)
