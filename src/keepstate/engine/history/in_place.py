"""Brings lists and dicts that were handed out to another value in place: who holds one sees the change."""

from __future__ import annotations

from typing import Any

from keepstate.values.codec import STATES, Codec
from keepstate.values.diff import aligned


def brought(live: Any, value: Any, codec: Codec = STATES) -> Any:
    """Return `live`, made equal to `value` in place; `value` itself where that cannot be."""
    kind = kind_of(live)
    if kind is not kind_of(value):
        return value
    if kind is dict:
        items = {key: brought(live[key], item, codec) if key in live else item for key, item in value.items()}
        live.clear()
        live.update(items)
        return live
    if kind is list:
        live[:] = _items(live, value, codec)
        return live
    return live if codec.canonical(live) == codec.canonical(value) else value


def kind_of(value: object) -> Any:
    """Return the class of a value, which tells nothing of what is in it."""
    return type(value)


def _items(live: list[Any], value: list[Any], codec: Codec) -> list[Any]:
    """Return the items of a list, those that stand there already as they are."""
    items: list[Any] = []
    at = 0
    old, new = [codec.canonical(item) for item in live], [codec.canonical(item) for item in value]
    for begin, end, new_begin, new_end in aligned(old, new):
        items += live[at:begin]
        if end - begin == new_end - new_begin:
            pairs = zip(live[begin:end], value[new_begin:new_end], strict=True)
            items += [brought(item, now, codec) for item, now in pairs]
        else:
            items += value[new_begin:new_end]
        at = end
    return items + live[at:]
