"""Edits of a value in Merkle form, at any depth, and their computation from two full encodings.

An edit reads and writes only the nodes around it. A comparison gets two encodings without references, before
and after a change in place, so it fetches nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

import msgspec

from keepstate.errors import CorruptError, InvalidError
from keepstate.values.contents import (
    Contents,
    close_contents,
    close_tree,
    fields,
    is_container,
    is_plain_list,
    open_contents,
    split_objects,
    whole,
)
from keepstate.values.diff import Path, Step, align, align_keys
from keepstate.values.encode_ext import array_count, array_head
from keepstate.values.merkle import TREE_BYTES, MerkleValue
from keepstate.values.nodes import Entry, item, refs_in
from keepstate.values.order import KeyOrder, edit_order
from keepstate.values.refs import Fetching, together
from keepstate.values.tree import Editing, change_keys


class Edits(msgspec.Struct):
    """Edits of one list or dict; indexes are those before all edits.

    Attributes:
        puts: The new value of an existing item, or of a dict's key.
        removed: Keys, or indexes of a list.
        inserted: Items to insert before an index of a list, in order.
        inside: Edits of an item.
        order: The new order of a dict's keys. Without it, new keys follow in the order of `puts`.
        is_sorted: Whether the keys of a dict are sorted by their encodings, whatever their order was.
    """

    puts: dict[Step, MerkleValue] = msgspec.field(default_factory=dict)
    removed: set[Step] = msgspec.field(default_factory=set)
    inserted: dict[int, list[MerkleValue]] = msgspec.field(default_factory=dict)
    inside: dict[Step, Edits] = msgspec.field(default_factory=dict)
    order: KeyOrder | None = None
    is_sorted: bool = False

    def at(self, path: Path) -> Edits:
        """Return the edits of the value at a path, to be added to."""
        edits = self
        for step in path:
            edits = edits.inside.setdefault(step, Edits())
        return edits


def apply_edits(encoding: bytes, edits: Edits) -> Fetching[MerkleValue]:
    """Return the edited value, and its new objects.

    Raises:
        InvalidError: An edited value is not a list or dict, or does not have the item.
    """
    if not is_container(encoding):
        raise InvalidError("Only a list or dict can be edited inside.")
    contents = yield from open_contents(encoding)
    puts, objects = yield from _with_inner(contents, edits)
    change = _edit_dict if contents.style.has_keys else _edit_list
    planted = yield from change(contents, edits, puts)
    return MerkleValue(planted.encoding, {**objects, **planted.objects})


def _with_inner(contents: Contents, edits: Edits) -> Fetching[tuple[dict[Step, bytes], dict[bytes, bytes]]]:
    """Return all new items by step, and the objects that they refer to."""
    steps = list(edits.inside)
    found = yield from together([contents.find(step) for step in steps])
    entries: list[Entry] = []
    for step, entry in zip(steps, found, strict=True):
        if entry is None:
            raise InvalidError(f"there is nothing at {step!r} to be changed inside")
        entries.append(entry)
    encodings = yield from whole(entries)
    inner = yield from together(
        [apply_edits(encoding, edits.inside[step]) for step, encoding in zip(steps, encodings, strict=True)]
    )
    planted = {**edits.puts, **dict(zip(steps, inner, strict=True))}
    objects: dict[bytes, bytes] = {}
    for part in (*planted.values(), *(new for news in edits.inserted.values() for new in news)):
        objects.update(part.objects)
    return {step: part.encoding for step, part in planted.items()}, objects


def _edit_list(contents: Contents, edits: Edits, puts: Mapping[Step, bytes]) -> Fetching[MerkleValue]:
    splices = [*_splices(edits, puts)]
    if splices and max(end for _, end, _ in splices) > contents.count:
        raise InvalidError(f"a list of {contents.count} items is to be changed after its end")
    if contents.tree is None:
        entries = list(contents.entries)
        for begin, end, items in reversed(splices):
            entries[begin:end] = items
        return (yield from close_contents(contents.style, entries))
    editing = Editing(contents.tree)
    for begin, end, items in reversed(splices):  # a change after an index does not move it
        yield from editing.splice(begin, end, items)
    return (yield from close_tree(editing))


def _splices(edits: Edits, puts: Mapping[Step, bytes]) -> Iterable[tuple[int, int, list[Entry]]]:
    """Yield replacements of ranges, first to last; adjacent ones are joined."""
    begin = end = 0
    items: list[Entry] = []
    touched = {step for step in (*puts, *edits.removed, *edits.inserted) if isinstance(step, int)}
    for index in sorted(touched):
        if index != end:
            if items or begin < end:
                yield begin, end, items
            begin, end, items = index, index, []
        items += [_item(new.encoding) for new in edits.inserted.get(index, ())]
        if index in puts:
            items.append(_item(puts[index]))
        end = index + (index in puts or index in edits.removed)
    if items or begin < end:
        yield begin, end, items


def _edit_dict(contents: Contents, edits: Edits, puts: Mapping[Step, bytes]) -> Fetching[MerkleValue]:
    changes = {key: _item(new, key) for key, new in puts.items() if isinstance(key, bytes)}
    removed = {key for key in edits.removed if isinstance(key, bytes)}
    if contents.tree is None:
        entries = {entry.key: entry for entry in contents.entries} | changes
        if not entries.keys() >= removed:
            raise InvalidError("a dict lacks keys that are to be removed")
        kept = [key for key in entries if key not in removed]
        keys = sorted(kept) if edits.is_sorted else edits.order.keys if edits.order else kept
        if keys is not kept and sorted(keys) != sorted(kept):
            raise InvalidError("the order of a dict's keys has other keys than the dict")
        return (yield from close_contents(contents.style, [entries[key] for key in keys]))
    editing = Editing(contents.tree)
    existed = yield from change_keys(editing, {**changes, **dict.fromkeys(removed)})
    if not existed >= removed:
        raise InvalidError("a dict lacks keys that are to be removed")
    if edits.is_sorted:
        return (yield from close_tree(editing))
    added = [key for key in changes if key not in existed and key not in removed]
    ref = editing.tree.ref
    if edits.order is None and not added and not removed and ref.size_bytes > TREE_BYTES:
        ref = msgspec.structs.replace(ref, order=contents.order, descents=contents.descents)
        return MerkleValue(ref.encoding(), editing.objects())
    order, descents = yield from edit_order(contents, editing, added, removed, edits.order)
    return (yield from close_tree(editing, order, descents))


def _item(encoding: bytes, key: bytes = b"") -> Entry:
    return item(encoding, is_deep=bool(refs_in(encoding)), key=key)


# ---- from two full encodings


def find_edits(old: bytes, new: bytes) -> Edits | MerkleValue | None:
    """Return the edits from `old` to `new`; None if nothing changed."""
    if old == new:
        return None
    if len(old) > TREE_BYTES and len(new) > TREE_BYTES and is_container(old) and is_container(new):
        if is_plain_list(old) and is_plain_list(new):
            return _list_edits(old, new)
        if not is_plain_list(old) and not is_plain_list(new):
            return _dict_edits(fields(old), fields(new))
    return split_objects(new)


def _dict_edits(old: dict[bytes, bytes], new: dict[bytes, bytes]) -> Edits:
    edits = Edits(removed=set(old.keys() - new.keys()), order=compare_orders([*old], [*new]))
    for key, encoding in new.items():
        before = old.get(key)
        _put(edits, key, split_objects(encoding) if before is None else find_edits(before, encoding))
    return edits


def compare_orders(old: Sequence[bytes], new: Sequence[bytes]) -> KeyOrder | None:
    """Return the change from one order of keys to another; None if they are the same."""
    if old == new:
        return None
    if new[: len(old)] == old:  # the common case, at the speed of a comparison of lists
        return KeyOrder(new, [(len(old), len(old), new[len(old) :])])
    return KeyOrder(new, [(begin, end, new[at:to]) for begin, end, at, to in align_keys(old, new)])


def _list_edits(old: bytes, new: bytes) -> Edits:
    edits = Edits()
    head, was, now = trim_common(old, new, array_count(new))
    for begin, end, new_begin, new_end in align(was, now):
        if end - begin == new_end - new_begin:
            for index, new_index in zip(range(begin, end), range(new_begin, new_end), strict=True):
                _put(edits, head + index, find_edits(was[index], now[new_index]))
            continue
        edits.removed.update(range(head + begin, head + end))
        if new_begin < new_end:
            edits.inserted[head + begin] = [split_objects(one) for one in now[new_begin:new_end]]
    return edits


def _put(edits: Edits, step: int | bytes, verdict: Edits | MerkleValue | None) -> None:
    if isinstance(verdict, Edits):
        edits.inside[step] = verdict
    elif verdict is not None:
        edits.puts[step] = verdict


_raw: Final = msgspec.msgpack.Decoder(msgspec.Raw).decode
_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def trim_common(old: bytes, new: bytes, count: int) -> tuple[int, Sequence[bytes], Sequence[bytes]]:
    """Return the number of common leading items, and the items of each list before the common end.

    Args:
        old: The encoding of a list.
        new: The encoding of another list.
        count: The number of items of the other list.

    Raises:
        CorruptError: One of them is not the encoding of a list.
    """
    try:
        return _trim_common(old, new, count)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"a list is damaged: {error}") from error


def _trim_common(old: bytes, new: bytes, count: int) -> tuple[int, Sequence[bytes], Sequence[bytes]]:
    raws = _raws(old)
    begin, new_begin = len(array_head(len(raws))), len(array_head(count))
    borders = [*accumulate(map(len, raws), initial=begin)]
    same = _count_equal(old, begin, new, new_begin, 1)
    head = bisect_right(borders, begin + same) - 1
    at, new_at = borders[head], new_begin + borders[head] - begin
    same = min(_count_equal(old, len(old), new, len(new), -1), len(old) - at, len(new) - new_at)
    last = max(bisect_left(borders, len(old) - same), len(raws) + head - min(len(raws), count))
    # Bytes that end alike are equal items only if one begins there on both sides: a text may look like some.
    for end in (last, len(raws)):
        new_end = len(new) - (len(old) - borders[end])
        try:
            fresh = _split(new, new_at, new_end, count - head - (len(raws) - end))
        except msgspec.MsgspecError:
            if end == len(raws):
                raise
            continue
        return head, [bytes(raw) for raw in raws[head:end]], fresh
    raise AssertionError("the second turn returns or raises")


def _split(data: bytes, begin: int, end: int, count: int) -> list[bytes]:
    items = memoryview(data)[begin:end]
    if count == 1:  # which may be all there is, and is not copied to be looked at
        return [bytes(_raw(items))]
    return [bytes(raw) for raw in _raws(b"".join((array_head(count), items)))]


def _count_equal(old: bytes, begin: int, new: bytes, new_begin: int, way: int) -> int:
    """Return the number of equal bytes after two offsets, or before them if `way` is -1."""
    view = memoryview(old)
    most = min(len(old) - begin, len(new) - new_begin) if way > 0 else min(begin, new_begin)
    low, high = 0, most
    while low < high:  # each byte is compared about once: the halves get shorter
        some = (low + high + 1) // 2
        index, new_index = (begin + low, new_begin + low) if way > 0 else (begin - some, new_begin - some)
        if new.startswith(view[index : index + some - low], new_index):
            low = some
        else:
            high = some - 1
    return low
