"""A list or dict as a tree of content-addressed nodes: lookups, and edits.

The items of a dict are in the order of their encoded keys.

A node ends where the hash of an entry says so (`Style.ends`), at every level. So the tree depends on its
items alone, not on the edits that led to them, and an edit creates only the nodes around it, up to the root.
The entries after the last end of a level are not a node yet: these *tails* are stored in the root, so an
append changes only the root. The cutting follows the prolly trees of Noms and Dolt, but ends at entries, not
bytes.

Objects are requested by generators (`refs.Fetching`), so nothing here waits or does I/O. Indexes count items
from the beginning of the tree; at a level above the items, they are the indexes of the first items of its
nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeVar, cast

import msgspec

from keepstate.errors import CorruptError
from keepstate.values.encode_ext import array_head
from keepstate.values.nodes import (
    INLINE_BYTES,
    Entry,
    Style,
    blob,
    node,
    node_kind,
    packed_bytes,
    read_children,
    read_items,
    read_node,
    totals,
    write_node,
)
from keepstate.values.refs import Fetching, Ref, name_of, together

_T = TypeVar("_T")


class Tail:
    """The entries after the last complete node of a level.

    Its bytes grow with it, so an append is cheap.
    """

    __slots__ = ("count", "entries", "form", "is_deep", "size_bytes")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self.form = b"".join([entry.form for entry in entries])
        self.count, self.size_bytes, self.is_deep = totals(entries)

    def followed(self, entry: Entry) -> Tail:
        """Return a tail of these entries and one more."""
        tail = Tail.__new__(Tail)
        tail.entries, tail.form = (*self.entries, entry), self.form + entry.form
        tail.count, tail.size_bytes = self.count + entry.count, self.size_bytes + entry.size_bytes
        tail.is_deep = self.is_deep or entry.is_deep
        return tail


_EMPTY = Tail(())


class Tree:
    """The root of a tree: the tails of its levels, lowest first. Immutable.

    Attributes:
        style: The kind of tree.
        tails: The tails, without empty ones at the end.
    """

    def __init__(self, style: Style, tails: Sequence[Tail] = ()) -> None:
        self.style = style
        self.tails = tuple(tails)
        begin = 0
        begins: list[int] = []
        for tail in reversed(self.tails):
            begins.append(begin)
            begin += tail.count
        self.begins = begins[::-1]
        """Where the tail of each level begins."""
        self.count = begin

    @cached_property
    def encoding(self) -> bytes:
        """The bytes of the root: the tails' in an array, the lowest an array of its items."""
        lowest, *upper = self.tails or (_EMPTY,)
        items = len(lowest.entries) * (1 + self.style.has_keys)
        parts = [array_head(1 + len(upper)), array_head(items), lowest.form]
        for tail in upper:
            parts += (b"\xc5", len(tail.form).to_bytes(2), tail.form)
        return b"".join(parts)

    @cached_property
    def ref(self) -> Ref:
        """Return the reference to the tree."""
        size_bytes, is_deep = 0, False
        for tail in self.tails:
            size_bytes, is_deep = size_bytes + tail.size_bytes, is_deep or tail.is_deep
        return Ref(self.style.root, name_of(self.style.root, self.encoding), self.count, size_bytes, is_deep)


def read_tree(style: Style, data: bytes, *, is_deep: bool) -> Tree:
    """Return the tree of a root's bytes.

    Raises:
        CorruptError: The bytes are not a root.
    """
    items, forms = split_root(data)
    lowest = Tail(read_items(style, items, is_deep=is_deep))
    return Tree(style, (lowest, *(Tail(read_children(style, form)) for form in forms)))


_raws = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...]).decode
_bytes = msgspec.msgpack.Decoder(bytes).decode


def split_root(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the bytes of a root's tails: the lowest, which is an array of items, and those above.

    Raises:
        CorruptError: The bytes are not a root.
    """
    try:
        items, *tails = _raws(data)
        return bytes(items), [_bytes(tail) for tail in tails]
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptError(f"the root of a tree is damaged: {error}") from error


class Stretch(NamedTuple):
    """The entries of one node, or of a tail, and the indexes at which they begin and end."""

    begin: int
    end: int
    entries: Sequence[Entry]
    is_tail: bool

    def split(self, index: int) -> tuple[Sequence[Entry], Sequence[Entry]]:
        """Return the entries before an index and those from it on."""
        if index >= self.end:
            return self.entries, ()
        at = self.begin
        for number, entry in enumerate(self.entries):
            if at >= index:
                return self.entries[:number], self.entries[number:]
            at += entry.count
        raise CorruptError(f"a tree has fewer items than it counts: none at {index}")


def child_ref(style: Style, entry: Entry, level: int) -> Ref:
    """Return the reference to a node, given as an entry of `level`, which is at least 1."""
    return Ref(node_kind(style, level - 1), entry.name, entry.count, entry.size_bytes, entry.is_deep)


def stretch_at(tree: Tree, index: int, level: int = 0) -> Fetching[Stretch]:
    """Return the stretch of a level that contains an index; after the last node that is the tail."""
    if level >= len(tree.tails):
        return Stretch(0, 0, (), True)
    begins = tree.begins
    if index >= begins[level]:
        tail = tree.tails[level]
        return Stretch(begins[level], begins[level] + tail.count, tail.entries, True)
    above = next(height for height in range(level + 1, len(begins)) if begins[height] <= index)
    at, end, entries = begins[above], tree.count, tree.tails[above].entries
    for height in range(above, level, -1):
        at, entry = _holding(entries, at, index)
        end = at + entry.count
        ref = child_ref(tree.style, entry, height)
        objects = yield (ref,)
        entries = tuple(read_node(tree.style, objects[ref.name], height - 1, is_deep=ref.is_deep))
    return Stretch(at, end, entries, False)


def _holding(entries: Iterable[Entry], begin: int, index: int) -> tuple[int, Entry]:
    for entry in entries:
        if index < begin + entry.count:
            return begin, entry
        begin += entry.count
    raise CorruptError(f"a tree has fewer items than it counts: none at {index}")


class _Cut:
    """Entries that are being cut into nodes."""

    def __init__(self, style: Style, level: int, begun: Iterable[Entry]) -> None:
        self._style, self._level = style, level
        self.rest = [*begun]  # the beginning of a node, in which none ends
        self.nodes: list[list[Entry]] = []

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.rest.append(entry)
            if self._style.ends(entry, len(self.rest), self._level):
                self.nodes.append(self.rest)
                self.rest = []


class Editing:
    """Edits of one tree, and the objects that they created; the original tree is unchanged."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        """The tree as it is now."""
        self._nodes: dict[bytes, tuple[bytes, Sequence[Entry]]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._read: dict[bytes, bytes] = {}

    def reading(self, work: Fetching[_T]) -> Fetching[_T]:
        """Return the result of work on the current tree, serving objects that exist only here."""
        try:
            wanted = next(work)
            while True:
                here = {ref.name: self._at_hand(ref.name) for ref in wanted}
                missing = [ref for ref in wanted if here[ref.name] is None]
                if missing:
                    fetched: Mapping[bytes, bytes] = yield missing
                    self._read.update(fetched)
                    here.update(fetched)
                wanted = work.send(cast("dict[bytes, bytes]", here))
        except StopIteration as end:
            return cast("_T", end.value)

    def _at_hand(self, name: bytes) -> bytes | None:
        if name in self._nodes:
            return self._nodes[name][0]
        return self._blobs.get(name) or self._read.get(name)

    def splice(self, begin: int, end: int, items: Sequence[Entry]) -> Fetching[None]:
        """Replace the items from `begin` to before `end`."""
        if begin == end == self.tree.count and len(items) == 1 and self._append(items[0]):
            return
        yield from self.reading(self._splice_all(begin, end, items))

    def _append(self, item: Entry) -> bool:
        """Append an item to the tail of a list; return False, without a change, if a node would end there."""
        style, tails = self.tree.style, self.tree.tails
        if style.has_keys or not tails or style.ends(item, len(tails[0].entries) + 1, 0):
            return False
        assert item.encoding is not None
        if item.value_bytes > INLINE_BYTES:
            self._blobs[item.name] = item.encoding
        self.tree = Tree(style, (tails[0].followed(item), *tails[1:]))
        return True

    def _splice_all(self, begin: int, end: int, items: Sequence[Entry]) -> Fetching[None]:
        for item in items:
            assert item.encoding is not None
            if item.value_bytes > INLINE_BYTES:
                self._blobs[item.name] = item.encoding
        tails = list(self.tree.tails)
        level, fresh = 0, items
        while fresh or begin < end:
            begin, end, fresh = yield from self._splice(tails, level, begin, end, fresh)
            level += 1
        while tails and not tails[-1].entries:
            tails.pop()
        self.tree = Tree(self.tree.style, tails)

    def _splice(
        self, tails: list[Tail], level: int, begin: int, end: int, fresh: Sequence[Entry]
    ) -> Fetching[tuple[int, int, Sequence[Entry]]]:
        """Change one level; return the range that changes in the level above, and its new entries."""
        stretch = yield from stretch_at(self.tree, begin, level)
        first, begins_in_tail = stretch.begin, stretch.is_tail
        cut = _Cut(self.tree.style, level, stretch.split(begin)[0])
        cut.feed(fresh)
        if end > stretch.end or (end == stretch.end and not stretch.is_tail and end > begin):
            stretch = yield from stretch_at(self.tree, end, level)
        rest = stretch.split(end)[1]
        while cut.rest or end != stretch.begin:  # otherwise the nodes from here on do not change
            cut.feed(rest)
            end = stretch.end
            if stretch.is_tail:
                end = stretch.begin
                self._set_tail(tails, level, cut.rest)
                if level == 0 and not begins_in_tail:
                    self._name_items(cut.rest)
                break
            if not cut.rest:
                break
            stretch = yield from stretch_at(self.tree, end, level)
            rest = stretch.entries
        nodes = yield from self._made(level, cut.nodes)
        return first, max(end, first), nodes

    def _set_tail(self, tails: list[Tail], level: int, entries: Sequence[Entry]) -> None:
        while len(tails) <= level:
            tails.append(_EMPTY)
        tails[level] = Tail(entries)

    def _name_items(self, entries: Iterable[Entry]) -> None:
        """Create objects for large items that are now in the tail, because items inside a leaf have none."""
        there = {entry.name for entry in self.tree.tails[0].entries}
        for entry in entries:
            if entry.encoding is not None and entry.value_bytes > INLINE_BYTES and entry.name not in there:
                self._blobs[entry.name] = entry.encoding

    def _made(self, level: int, nodes: Sequence[Sequence[Entry]]) -> Fetching[list[Entry]]:
        """Return the entries of new nodes; items that the tail held by name are fetched."""
        if level == 0:
            nodes = yield from self._with_items(nodes)
        made: list[Entry] = []
        for entries in nodes:
            data = write_node(self.tree.style, entries, level)
            name = name_of(node_kind(self.tree.style, level), data)
            self._nodes[name] = data, entries
            made.append(node(self.tree.style, level, name, entries))
        return made

    def _with_items(self, nodes: Sequence[Sequence[Entry]]) -> Fetching[Sequence[Sequence[Entry]]]:
        missing = {
            entry.name: blob(entry)
            for entries in nodes
            for entry in entries
            if entry.encoding is None and entry.value_bytes <= packed_bytes(self.tree.style)
        }
        if not missing:
            return nodes
        found = yield tuple(missing.values())
        return [
            [
                msgspec.structs.replace(entry, encoding=found[entry.name])
                if entry.name in missing and entry.encoding is None
                else entry
                for entry in entries
            ]
            for entries in nodes
        ]

    def objects(self) -> dict[bytes, bytes]:
        """Return the created objects that are part of the current tree, including its root, by name."""
        kept = {self.tree.ref.name: self.tree.encoding}
        for level, tail in enumerate(self.tree.tails):
            self._keep(kept, tail.entries, level, INLINE_BYTES)
        return kept

    def _keep(
        self, kept: dict[bytes, bytes], entries: Iterable[Entry], level: int, inline_bytes: int
    ) -> None:
        for entry in entries:
            if level == 0:
                if entry.name in self._blobs and entry.value_bytes > inline_bytes:
                    kept[entry.name] = self._blobs[entry.name]
            elif entry.name in self._nodes and entry.name not in kept:
                data, below = self._nodes[entry.name]
                kept[entry.name] = data
                self._keep(kept, below, level - 1, packed_bytes(self.tree.style))


def build(style: Style, items: Sequence[Entry]) -> Editing:
    """Return a new tree of items, and its objects. The items of a dict may be in any order."""
    editing = Editing(Tree(style))
    if style.has_keys:
        items = sorted(items, key=lambda entry: entry.key)
    for _ in editing.splice(0, 0, items):
        raise AssertionError("a new tree requests no object")
    return editing


def change_keys(editing: Editing, changes: Mapping[bytes, Entry | None]) -> Fetching[set[bytes]]:
    """Set the item of each key of a dict, or remove it if it is None. Return the keys that existed before."""
    existed: set[bytes] = set()
    # From the last to the first, because a change does not move the items before it.
    for key in sorted(changes, reverse=True):
        entry = changes[key]
        index, old = yield from editing.reading(find_key(editing.tree, key))
        if old is not None:
            existed.add(key)
        elif entry is None:
            continue
        yield from editing.splice(index, index + (old is not None), () if entry is None else (entry,))
    return existed


# ---- reading


def item_at(tree: Tree, index: int) -> Fetching[Entry | None]:
    """Return the item at an index, or None if there is none."""
    if not 0 <= index < tree.count:
        return None
    stretch = yield from stretch_at(tree, index)
    return stretch.entries[index - stretch.begin]


def items_between(tree: Tree, begin: int, end: int) -> Fetching[list[Entry]]:
    """Return the items from an index to before another one, in one round of fetching for each level."""
    works = [
        _items_between(tree.style, tree.tails[level].entries, level, tree.begins[level], begin, end)
        for level in reversed(range(len(tree.tails)))
    ]
    return [entry for entries in (yield from together(works)) for entry in entries]


def _items_between(
    style: Style, entries: Sequence[Entry], level: int, at: int, begin: int, end: int
) -> Fetching[Sequence[Entry]]:
    """Return the items between two indexes, of those below entries of `level` that begin at an index."""
    while True:
        ends = [*accumulate((entry.count for entry in entries), initial=at)]
        first = max(bisect_right(ends, begin) - 1, 0)
        last = max(bisect_left(ends, end), first)
        at, entries = ends[first], entries[first:last]
        if not level or not entries:
            return entries
        refs = [child_ref(style, entry, level) for entry in entries]
        objects = yield refs
        level -= 1
        entries = [
            below for ref in refs for below in read_node(style, objects[ref.name], level, is_deep=ref.is_deep)
        ]


def find_key(tree: Tree, key: bytes) -> Fetching[tuple[int, Entry | None]]:
    """Return the index of the first item whose key is not below `key`, and that item if it has this key."""
    for height in range(len(tree.tails) - 1, -1, -1):
        index, entry = _first_from(tree.tails[height].entries, tree.begins[height], key)
        if entry is None:
            continue
        for level in range(height, 0, -1):
            ref = child_ref(tree.style, entry, level)
            data = (yield (ref,))[ref.name]
            entries = read_node(tree.style, data, level - 1, is_deep=ref.is_deep)
            index, entry = _first_from(entries, index, key)
            if entry is None:
                raise CorruptError(f"object {ref.name.hex()} lacks its last key")
        return index, entry if entry.key == key else None
    return tree.count, None


def _first_from(entries: Sequence[Entry], index: int, key: bytes) -> tuple[int, Entry | None]:
    for entry in entries:
        if entry.key >= key:
            return index, entry
        index += entry.count
    return index, None


def items_below(style: Style, entries: Sequence[Entry], level: int) -> Fetching[Sequence[Entry]]:
    """Return the items below some entries of `level`, in order, in one round of fetching for each level."""
    while level and entries:
        refs = [child_ref(style, entry, level) for entry in entries]
        objects = yield refs
        level -= 1
        entries = [
            below for ref in refs for below in read_node(style, objects[ref.name], level, is_deep=ref.is_deep)
        ]
    return entries


def all_items(tree: Tree) -> Fetching[list[Entry]]:
    """Return all items, in order."""
    items: list[Entry] = []
    for level in range(len(tree.tails) - 1, -1, -1):
        items += yield from items_below(tree.style, tree.tails[level].entries, level)
    return items
