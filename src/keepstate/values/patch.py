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
    split,
    split_objects,
    whole,
)
from keepstate.values.diff import Change, Path, Step, align
from keepstate.values.encode_ext import array_count, array_head
from keepstate.values.merkle import TREE_BYTES, MerkleValue
from keepstate.values.nodes import Entry, item, ref_of, refs_in
from keepstate.values.refs import Fetching, together
from keepstate.values.tree import Editing, change_keys


class Edits(msgspec.Struct):
    """Edits of one list or dict; indexes are those before all edits.

    Attributes:
        puts: The new value of an existing item, or of a dict's key.
        removed: Keys, or indexes of a list.
        inserted: Items to insert before an index of a list, in order.
        inside: Edits of an item.
        order: All keys of a small dict in their new order.
    """

    puts: dict[Step, MerkleValue] = msgspec.field(default_factory=dict)
    removed: set[Step] = msgspec.field(default_factory=set)
    inserted: dict[int, list[MerkleValue]] = msgspec.field(default_factory=dict)
    inside: dict[Step, Edits] = msgspec.field(default_factory=dict)
    order: Sequence[bytes] = ()

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
        raise InvalidError(f"a list of {contents.count} items is to be changed behind its end")
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
    if contents.tree is not None:
        editing = Editing(contents.tree)
        yield from change_keys(editing, {**changes, **dict.fromkeys(removed)})
        planted = yield from close_tree(editing)
        if not edits.order or ref_of(planted.encoding) is not None:
            return planted  # a tree has an order of its own
        contents = yield from open_contents(planted.encoding)
        changes, removed = {}, set[bytes]()
    entries = {entry.key: entry for entry in contents.entries} | changes
    order = edits.order or [key for key in entries if key not in removed]
    if not entries.keys() >= {*order, *removed}:
        raise InvalidError("a dict lacks keys that are to be put in order or removed")
    return (yield from close_contents(contents.style, [entries[key] for key in order]))


def _item(encoding: bytes, key: bytes = b"") -> Entry:
    return item(encoding, is_deep=bool(refs_in(encoding)), key=key)


# ---- the changes of a diff


def apply_changes(encoding: bytes, changes: Sequence[Change]) -> Fetching[MerkleValue]:
    """Return the other side of a diff, with only the objects that the edits create.

    Raises:
        InvalidError: The changes do not belong to this value.
    """
    if not changes:
        return MerkleValue(encoding, {})
    edits = Edits()
    for change in changes:
        if not change.path and change.kind == "changed":
            return MerkleValue(change.new or b"", {})
    _gather(edits, changes, 0)
    return (yield from apply_edits(encoding, edits))


class _OldIndexes:
    """The old indexes of a new list's items, derived from the removed and added items."""

    def __init__(self, changes: Sequence[Change], depth: int) -> None:
        here = [(change.kind, change.path[depth]) for change in changes if len(change.path) == depth + 1]
        self._removed = sorted(step for kind, step in here if kind == "removed" and isinstance(step, int))
        self._added = sorted(step for kind, step in here if kind == "added" and isinstance(step, int))

    def before(self, index: int) -> int:
        """Return the old index of an item, or of the item that a new one precedes."""
        index -= bisect_left(self._added, index)
        for gone in self._removed:
            index += gone <= index
        return index


def _gather(edits: Edits, changes: Sequence[Change], depth: int) -> None:
    """Add changes to the edits of the container at the first `depth` steps of their paths."""
    old_indexes = _OldIndexes(changes, depth)
    inner: dict[Step, list[Change]] = {}
    for change in changes:
        path, new = change.path[depth:], MerkleValue(change.new or b"", {})
        if not path:
            edits.order = split(new.encoding)
            continue
        step = path[0]
        is_inner = len(path) > 1 or change.kind == "reordered"
        # The path of a removal has the old index, every other path has the new one.
        has_old_index = change.kind == "removed" and not is_inner
        old = step if isinstance(step, bytes) or has_old_index else old_indexes.before(step)
        if is_inner:
            inner.setdefault(old, []).append(change)
        elif change.kind == "removed":
            edits.removed.add(old)
        elif change.kind == "added" and isinstance(old, int):
            edits.inserted.setdefault(old, []).append(new)
        else:
            edits.puts[old] = new
    for old, below in inner.items():
        _gather(edits.inside.setdefault(old, Edits()), below, depth + 1)


_ORDERED: Final = TREE_BYTES // 2
"""A dict of more items is a tree, whose order is its own."""


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
    edits = Edits(removed=set(old.keys() - new.keys()))
    for key, encoding in new.items():
        before = old.get(key)
        _put(edits, key, split_objects(encoding) if before is None else find_edits(before, encoding))
    if len(new) <= _ORDERED:
        edits.order = list(new)
    return edits


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
