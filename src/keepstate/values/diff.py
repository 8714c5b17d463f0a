"""The differences between two values in Merkle form; of two trees only the differing nodes are read.

Equal parts have equal names. Both sides are expanded from their roots, shared nodes are skipped, and the rest
is opened level by level, in one round of fetching each, however many items differ.

Lists are aligned by their items' digests: first the common beginning and end, then as in `difflib`. Where
both sides have equally many differing items, these are compared pairwise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence, Set
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from keepstate.values.contents import Contents, both, is_container, open_contents, read_order, whole
from keepstate.values.merkle import compose
from keepstate.values.nodes import LIST_STYLE, Entry, Style, read_node
from keepstate.values.order import OrderEditing, cut_places, find_places
from keepstate.values.refs import Fetching, together
from keepstate.values.tree import child_ref

Step: TypeAlias = int | bytes
"""A list index, or the encoding of a dict key."""
Path: TypeAlias = tuple[Step, ...]
Kind: TypeAlias = Literal["added", "removed", "changed", "reordered"]
_Mark: TypeAlias = tuple[int, bytes, bytes]
"""The level, name and key of a part of a dict; equal ones contain the same items."""

_ALIGNED: Final = 4_000_000
"""Pairs of items that are compared to align two lists. Longer lists are first divided at items that occur
once in each."""


class Change(msgspec.Struct, frozen=True):
    """One difference.

    Attributes:
        path: The path in the new value; of a removed item, the place at which it is missing.
        old_path: The path in the old value; of an added item, the place before which it was added.
        kind: The kind of difference. `reordered` means that the keys which both dicts have are in another
            relative order, with the lists of all keys as old and new.
        old: The encoding before; None for an addition.
        new: The encoding after; None for a removal.
    """

    path: Path
    old_path: Path
    kind: Kind
    old: bytes | None
    new: bytes | None


class Block(msgspec.Struct, frozen=True):
    """Items of one side that correspond to items of the other; either side may be empty."""

    begin: int
    old: Sequence[Entry]
    new_begin: int
    new: Sequence[Entry]


class _Place(NamedTuple):
    """The paths of two compared values: of the new one and of the old one."""

    path: Path
    old_path: Path

    def below(self, step: Step, old_step: Step) -> _Place:
        return _Place((*self.path, step), (*self.old_path, old_step))


def diff(
    old: bytes, new: bytes, path: Path = (), old_path: Path = (), limit: int | None = None
) -> Fetching[list[Change]]:
    """Return the differences between two encodings.

    Args:
        old: The encoding before.
        new: The encoding after.
        path: The path of the new value, with which all paths begin.
        old_path: The path of the old value.
        limit: The largest number of differences; the values of others are not fetched.
    """
    return (yield from _diff(old, new, _Place(path, old_path), limit))


def _diff(old: bytes, new: bytes, at: _Place, limit: int | None) -> Fetching[list[Change]]:
    if old == new:
        return []
    if is_container(old) and is_container(new):
        before, after = yield from both(open_contents(old), open_contents(new))
        if before.style is after.style:
            compare = _diff_dicts if before.style.has_keys else _diff_lists
            return (yield from compare(before, after, at, limit))
    return [Change(*at, "changed", old, new)]


def _diff_lists(before: Contents, after: Contents, at: _Place, limit: int | None) -> Fetching[list[Change]]:
    works: list[Fetching[list[Change]]] = []
    for block in (yield from unlike(before, after)):
        begin, new_begin, is_paired = block.begin, block.new_begin, len(block.old) == len(block.new)
        if is_paired:
            works += [
                _diff_items(a, b, at.below(new_begin + n, begin + n), limit)
                for n, (a, b) in enumerate(zip(block.old, block.new, strict=True))
            ]
            continue
        end = begin + len(block.old)
        works += [_removal(one, at.below(new_begin, begin + n)) for n, one in enumerate(block.old)]
        works += [_addition(one, at.below(new_begin + n, end)) for n, one in enumerate(block.new)]
    return (yield from _first(works, limit))


def _diff_dicts(before: Contents, after: Contents, at: _Place, limit: int | None) -> Fetching[list[Change]]:
    works: list[Fetching[list[Change]]] = []
    removed: list[bytes] = []
    added: list[bytes] = []
    for old, new in (yield from unlike_keys(before, after)):
        if old is not None and new is not None:
            works.append(_diff_items(old, new, at.below(new.key, old.key), limit))
        elif old is not None:
            removed.append(old.key)
            works.append(_removal(old, at.below(old.key, old.key)))
        elif new is not None:
            added.append(new.key)
            works.append(_addition(new, at.below(new.key, new.key)))
    changes = yield from _first(works, limit)
    if (limit is None or len(changes) < limit) and (yield from is_reordered(before, after, removed, added)):
        was, now = yield from both(before.keys(), after.keys())
        changes.append(Change(*at, "reordered", compose(was), compose(now)))
    return changes


def _first(works: Sequence[Fetching[list[Change]]], limit: int | None) -> Fetching[list[Change]]:
    """Return the first changes of works, each of which returns one at least."""
    found = yield from together(works[:limit])
    return [change for changes in found for change in changes][:limit]


def _diff_items(old: Entry, new: Entry, at: _Place, limit: int | None) -> Fetching[list[Change]]:
    a, b = yield from whole((old, new))
    return (yield from _diff(a, b, at, limit))


def _removal(entry: Entry, at: _Place) -> Fetching[list[Change]]:
    (encoding,) = yield from whole((entry,))
    return [Change(*at, "removed", encoding, None)]


def _addition(entry: Entry, at: _Place) -> Fetching[list[Change]]:
    (encoding,) = yield from whole((entry,))
    return [Change(*at, "added", None, encoding)]


def is_reordered(
    before: Contents, after: Contents, removed: Collection[bytes], added: Collection[bytes]
) -> Fetching[bool]:
    """Return whether the keys that two dicts share are in another relative order.

    Args:
        before: One dict.
        after: The other one.
        removed: The keys of the first that the second does not have.
        added: The keys of the second that the first does not have.
    """
    if before.tree is None or after.tree is None:
        was, now = yield from both(before.keys(), after.keys())
        gone, new = set(removed), set(added)
        return [key for key in was if key not in gone] != [key for key in now if key not in new]
    if before.order is not None and after.order is not None:
        if before.order == after.order:
            return False
        one, other = yield from both(read_order(before.order), read_order(after.order))
        blocks = yield from unlike(Contents(LIST_STYLE, one), Contents(LIST_STYLE, other))
        old = {entry.name for block in blocks for entry in block.old}
        return any(entry.name in old for block in blocks for entry in block.new)
    order, only = (after, added) if before.order is None else (before, removed)
    if order.order is None:
        return False
    editing = OrderEditing((yield from read_order(order.order)), order.descents)
    places = yield from find_places(editing.editing.tree, only)
    yield from editing.apply(cut_places(places.values()))
    return editing.descents > 0


# ---- what two containers do not share


class _Span(msgspec.Struct, frozen=True):
    """An entry of any level; level 0 is an item."""

    level: int
    entry: Entry

    @property
    def mark(self) -> Hashable:
        """Return the identity of a span: trees that share a node share everything below it."""
        return self.level, self.entry.name, self.entry.key


class _Gap(msgspec.Struct, frozen=True):
    """Spans of one side that correspond to spans of the other, and the indexes at which they begin."""

    begin: int
    old: Sequence[_Span]
    new_begin: int
    new: Sequence[_Span]

    @property
    def level(self) -> int:
        """The highest level of its spans."""
        return max((span.level for span in (*self.old, *self.new)), default=0)


def unlike(before: Contents, after: Contents) -> Fetching[list[Block]]:
    """Return the blocks in which two lists differ, in order."""
    return [
        Block(gap.begin, [span.entry for span in gap.old], gap.new_begin, [span.entry for span in gap.new])
        for gap in (yield from _gaps(before, after))
    ]


def unlike_keys(before: Contents, after: Contents) -> Fetching[list[tuple[Entry | None, Entry | None]]]:
    """Return the differing items of two dicts by key, in order; None for a side without the key."""
    # A key occurs once on each side, so parts that both sides have are equal wherever they stand.
    style, old, new = before.style, _parts(before), _parts(after)
    while True:
        shared = old.keys() & new.keys()
        level = 0
        for mark in (*old, *new):
            if mark[0] > level and mark not in shared:
                level = mark[0]
        if not level:
            break
        refs = [
            child_ref(style, entry, level)
            for mark, entry in (*old.items(), *new.items())
            if mark[0] == level and mark not in shared
        ]
        objects: Mapping[bytes, bytes] = yield refs
        old, new = (_opened(style, side, shared, level, objects) for side in (old, new))
    was = {entry.key: entry for mark, entry in old.items() if mark not in shared}
    now = {entry.key: entry for mark, entry in new.items() if mark not in shared}
    return [(was.get(key), now.get(key)) for key in sorted(was.keys() | now.keys())]


def _parts(contents: Contents) -> dict[_Mark, Entry]:
    if contents.tree is None:
        return {(0, entry.name, entry.key): entry for entry in contents.entries}
    return {
        (level, entry.name, entry.key): entry
        for level, tail in enumerate(contents.tree.tails)
        for entry in tail.entries
    }


def _opened(
    style: Style, parts: Mapping[_Mark, Entry], shared: Set[_Mark], level: int, objects: Mapping[bytes, bytes]
) -> dict[_Mark, Entry]:
    """Return the parts that are not shared; a part of `level` is replaced by its children."""
    opened: dict[_Mark, Entry] = {}
    for mark, entry in parts.items():
        if mark in shared:
            continue
        if mark[0] < level:
            opened[mark] = entry
            continue
        for child in read_node(style, objects[entry.name], level - 1, is_deep=entry.is_deep):
            opened[level - 1, child.name, child.key] = child
    return opened


def _gaps(before: Contents, after: Contents) -> Fetching[list[_Gap]]:
    """Return the gaps between the shared parts, expanded down to the items."""
    gaps = list(_split(_Gap(0, _spans(before), 0, _spans(after))))
    while level := max((gap.level for gap in gaps), default=0):
        opened = yield from together([_open_gap(before.style, gap, level) for gap in gaps])
        gaps = [smaller for gap in opened for smaller in _split(gap)]
    return gaps


def _spans(contents: Contents) -> list[_Span]:
    if contents.tree is None:
        return [_Span(0, entry) for entry in contents.entries]
    tails = contents.tree.tails
    return [_Span(level, entry) for level in reversed(range(len(tails))) for entry in tails[level].entries]


def _open_gap(style: Style, gap: _Gap, level: int) -> Fetching[_Gap]:
    """Return a gap with the entries of `level` replaced by their children."""
    refs = [child_ref(style, span.entry, level) for span in (*gap.old, *gap.new) if span.level == level]
    objects: Mapping[bytes, bytes] = (yield refs) if refs else {}

    def below(span: _Span) -> list[_Span]:
        if span.level < level:
            return [span]
        data, is_deep = objects[span.entry.name], span.entry.is_deep
        return [_Span(level - 1, entry) for entry in read_node(style, data, level - 1, is_deep=is_deep)]

    return _Gap(
        gap.begin,
        [lower for span in gap.old for lower in below(span)],
        gap.new_begin,
        [lower for span in gap.new for lower in below(span)],
    )


def _split(gap: _Gap) -> Iterator[_Gap]:
    """Yield the parts of a gap in which its two sides differ."""
    old, new = [span.mark for span in gap.old], [span.mark for span in gap.new]
    old_begins = [*accumulate((span.entry.count for span in gap.old), initial=gap.begin)]
    new_begins = [*accumulate((span.entry.count for span in gap.new), initial=gap.new_begin)]
    for a, b, c, d in align(old, new):
        yield _Gap(old_begins[a], gap.old[a:b], new_begins[c], gap.new[c:d])


def align(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the parts `old[a:b]` and `new[c:d]` that correspond to each other, in order."""
    return _align(old, new, are_unique=False)


def align_keys(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the same for sequences without repeated items. The parts are as short as possible."""
    return _align(old, new, are_unique=True)


def _align(
    old: Sequence[Hashable], new: Sequence[Hashable], *, are_unique: bool
) -> Iterator[tuple[int, int, int, int]]:
    least = min(len(old), len(new))
    head = next((index for index in range(least) if old[index] != new[index]), least)
    tail = next((n for n in range(least - head) if old[-1 - n] != new[-1 - n]), least - head)
    middle, new_middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if are_unique or len(middle) * len(new_middle) > _ALIGNED:
        parts = _between_anchors(middle, new_middle)
    else:
        codes = SequenceMatcher(None, middle, new_middle, autojunk=False).get_opcodes()
        parts = ((a, b, c, d) for what, a, b, c, d in codes if what != "equal")
    for a, b, c, d in parts:
        yield head + a, head + b, head + c, head + d


def _between_anchors(old: Sequence[Hashable], new: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int]]:
    """Align long lists by the items that occur once in each, then the parts between these anchors.

    As in Bram Cohen's patience diff, the anchors are a longest increasing subsequence of the indexes. The
    cost is n log n however the lists differ. A window that moves over a list changes both of its ends.
    """
    told, new_told = Counter(old), Counter(new)
    indexes = {item: index for index, item in enumerate(new) if new_told[item] == 1}
    once = ((index, indexes[item]) for index, item in enumerate(old) if told[item] == 1 and item in indexes)
    anchors = _longest_rising([*once])
    if not anchors:
        yield 0, len(old), 0, len(new)
        return
    begin = new_begin = 0
    for end, new_end in [*anchors, (len(old), len(new))]:
        if end > begin or new_end > new_begin:
            for a, b, c, d in align(old[begin:end], new[new_begin:new_end]):
                yield begin + a, begin + b, new_begin + c, new_begin + d
        begin, new_begin = end + 1, new_end + 1


def _longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a longest subsequence that rises in the second number, of pairs that rise in the first."""
    least_ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, index) in enumerate(pairs):
        length = bisect_left(least_ends, index)
        before.append(last[length - 1] if length else -1)
        if length == len(last):
            least_ends.append(index)
            last.append(number)
        else:
            least_ends[length], last[length] = index, number
    rising: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        rising.append(pairs[number])
        number = before[number]
    return rising[::-1]
