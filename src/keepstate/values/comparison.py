"""Comparison of two full encodings of a list or dict, before and after a change in place.

Both encodings are complete, without references, so nothing is fetched. The result is made from the encodings
alone: the edits that lead from the old Merkle form to the new one.
"""

from __future__ import annotations

from typing import Final

from keepstate.values.common_affixes import between
from keepstate.values.contents import fields, is_container, is_plain_list, replanted
from keepstate.values.diff import aligned
from keepstate.values.encode_ext import array_count
from keepstate.values.merkle import TREE_BYTES, MerkleValue
from keepstate.values.patch import Edits

_ORDERED: Final = TREE_BYTES // 2
"""A dict of more items is a tree, whose order is its own."""


def compared(old: bytes, new: bytes) -> Edits | MerkleValue | None:
    """Return the edits from `old` to `new`; None if nothing changed."""
    if old == new:
        return None
    if len(old) > TREE_BYTES and len(new) > TREE_BYTES and is_container(old) and is_container(new):
        if is_plain_list(old) and is_plain_list(new):
            return _list_edits(old, new)
        if not is_plain_list(old) and not is_plain_list(new):
            return _dict_edits(fields(old), fields(new))
    return replanted(new)


def _dict_edits(old: dict[bytes, bytes], new: dict[bytes, bytes]) -> Edits:
    edits = Edits(removed=set(old.keys() - new.keys()))
    for key, encoding in new.items():
        before = old.get(key)
        _put(edits, key, replanted(encoding) if before is None else compared(before, encoding))
    if len(new) <= _ORDERED:
        edits.order = list(new)
    return edits


def _list_edits(old: bytes, new: bytes) -> Edits:
    edits = Edits()
    head, was, now = between(old, new, array_count(new))
    for begin, end, new_begin, new_end in aligned(was, now):
        if end - begin == new_end - new_begin:
            for place, new_place in zip(range(begin, end), range(new_begin, new_end), strict=True):
                _put(edits, head + place, compared(was[place], now[new_place]))
            continue
        edits.removed.update(range(head + begin, head + end))
        if new_begin < new_end:
            edits.inserted[head + begin] = [replanted(one) for one in now[new_begin:new_end]]
    return edits


def _put(edits: Edits, step: int | bytes, verdict: Edits | MerkleValue | None) -> None:
    if isinstance(verdict, Edits):
        edits.inside[step] = verdict
    elif verdict is not None:
        edits.puts[step] = verdict
