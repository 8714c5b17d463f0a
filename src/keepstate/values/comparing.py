"""What was changed inside a list or dict that the caller has, told by two encodings: of before and of now.

Both are encodings of the whole, without references, so that nothing is fetched and only what differs is made
into objects. What comes out are the edits that lead from the one Merkle form to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from keepstate.values.contents import fields, is_container, is_plain_list
from keepstate.values.diff import aligned
from keepstate.values.merkle import TREE_BYTES, Planted
from keepstate.values.patch import Edits
from keepstate.values.unlike import between

Plant = Callable[[object], Planted]

_ORDERED: Final = TREE_BYTES // 2
"""A dict of more items is a tree, whose order is its own."""


def compared(old: bytes, new: bytes, value: Any, plant: Plant) -> Edits | Planted | None:
    """Returns what to do to a value whose encoding was `old`; None if nothing has changed.

    Args:
        old: The encoding before.
        new: The encoding now.
        value: What `new` encodes.
        plant: Makes objects of a part of it.
    """
    if old == new:
        return None
    if len(old) > TREE_BYTES and len(new) > TREE_BYTES and is_container(old):
        kind = _kind(value)
        if kind is list and is_plain_list(old):
            return _list_edits(old, new, value, plant)
        if kind is dict and not is_plain_list(old):
            return dict_edits(fields(old), fields(new), value, plant)
    return plant(value)


def dict_edits(
    old: dict[bytes, bytes], new: dict[bytes, bytes], value: dict[Any, Any], plant: Plant
) -> Edits:
    """Returns what leads from one dict's items to another's, by the encodings of their keys."""
    edits = Edits(removed=set(old.keys() - new.keys()))
    for (key, encoding), item in zip(new.items(), value.values(), strict=True):
        before = old.get(key)
        _put(edits, key, plant(item) if before is None else compared(before, encoding, item, plant))
    if len(new) <= _ORDERED:
        edits.order = list(new)
    return edits


def _list_edits(old: bytes, new: bytes, value: Sequence[Any], plant: Plant) -> Edits:
    edits = Edits()
    head, was, now = between(old, new, len(value))
    for begin, end, new_begin, new_end in aligned(was, now):
        if end - begin == new_end - new_begin:
            for place, new_place in zip(range(begin, end), range(new_begin, new_end), strict=True):
                verdict = compared(was[place], now[new_place], value[head + new_place], plant)
                _put(edits, head + place, verdict)
            continue
        edits.removed.update(range(head + begin, head + end))
        if new_begin < new_end:
            edits.inserted[head + begin] = [plant(value[head + place]) for place in range(new_begin, new_end)]
    return edits


def _kind(value: object) -> Any:
    return type(value)


def _put(edits: Edits, step: int | bytes, verdict: Edits | Planted | None) -> None:
    if isinstance(verdict, Edits):
        edits.inside[step] = verdict
    elif verdict is not None:
        edits.puts[step] = verdict
