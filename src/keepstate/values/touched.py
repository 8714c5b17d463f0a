"""Marks of the places in a state that one or more commits changed.

A path leads through dicts to the first list, and lists are not entered. For each changed value there is a
*prefix* mark at every dict on its path, and a *whole* mark at the value itself if it was added, removed, or
replaced by another kind or scalar. A list has the lowest index at which old and new differ. A mark is a hash
of three bytes. So an answer may be a false yes, and never a false no.

```
flags       1 byte: 1 the marks are a Bloom filter, 2 any list index may have changed, 4 anything may have
lists       a count in one byte, then for each list the mark of its path and the lowest index
marks       the marks, sorted; or 2,048 bytes of a Bloom filter with two bits for each mark
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, TypeAlias

import msgspec

from keepstate.errors import CorruptError
from keepstate.values.contents import fields, is_container, is_plain_list, open_contents, split, whole
from keepstate.values.diff import Step, unlike_keys
from keepstate.values.merkle import STYLES
from keepstate.values.nodes import LIST_STYLE, Entry, read_children, ref_of
from keepstate.values.refs import Fetching, Kind, name_of, read_number, write_number
from keepstate.values.tree import child_ref, split_root

EXACT: Final = 680
"""Number of marks that are kept exactly."""
LISTS: Final = 64
"""Number of lists whose lowest index is kept."""

_MARK_BYTES: Final = 3
_LONG_NUMBER: Final = 0x80
"""Numbers from here on have more than one byte."""
_BLOOM_BYTES: Final = 2_048
_BLOOM_SHIFT: Final = 10  # 24 bits of a mark to 14 bits of a place in the filter
_FACTOR: Final = 2_654_435_761  # Knuth's multiplicative hash
_IS_BLOOM, _ANY_LIST, _ANYTHING = 1, 2, 4
_PREFIX, _WHOLE = b"p", b"w"

Keys: TypeAlias = tuple[bytes, ...]
"""The encoded keys of a path through dicts."""


class UnloadedError(Exception):
    """An object is not in memory. Thrown into work that continues without it."""


@lru_cache(maxsize=4_096)
def _mark(kind: bytes, keys: Keys) -> bytes:
    # Encoded keys delimit themselves, so two paths never have the same bytes.
    return sha256(kind + b"".join(keys)).digest()[:_MARK_BYTES]


class Touched(msgspec.Struct, frozen=True):
    """The places that may have changed.

    Attributes:
        marks: The marks, without the prefix marks of the paths of `lists`; None if they are in `bloom`.
        lists: The lowest changed index of each list, by the prefix mark of its path.
        bloom: A Bloom filter as an int; 0 if the marks are exact.
        any_list: Whether any index of any list may have changed.
        anything: Whether anything may have changed.
    """

    marks: frozenset[bytes] = frozenset()
    lists: dict[bytes, int] = msgspec.field(default_factory=dict[bytes, int])
    bloom: int = 0
    any_list: bool = False
    anything: bool = False

    def encoding(self) -> bytes:
        """Return the canonical bytes."""
        flags = _IS_BLOOM * bool(self.bloom) | _ANY_LIST * self.any_list | _ANYTHING * self.anything
        if self.anything:
            return bytes((flags,))
        lists = b"".join([mark + write_number(place) for mark, place in sorted(self.lists.items())])
        marks = self.bloom.to_bytes(_BLOOM_BYTES) if self.bloom else b"".join(sorted(self.marks))
        return bytes((flags, len(self.lists))) + lists + marks

    def has(self, mark: bytes) -> bool:
        """Return whether a mark is among these, or may be."""
        if self.bloom:
            bits = _bits(mark)
            return self.bloom & bits == bits
        return mark in self.marks


NOTHING: Final = Touched()
ANYTHING: Final = Touched(anything=True)


def _bits(mark: bytes) -> int:
    number = int.from_bytes(mark)
    return 1 << (number >> _BLOOM_SHIFT) | 1 << ((number * _FACTOR & 0xFFFFFFFF) >> 18)


def touched_of(marks: Iterable[bytes], lists: dict[bytes, int], bloom: int = 0) -> Touched:
    """Return marks and lists in their shortest form. Above their limits, they become less exact."""
    found = frozenset(marks)
    any_list = len(lists) > LISTS
    if any_list:
        found, lists = found | lists.keys(), {}
    found -= lists.keys()
    if bloom or len(found) > EXACT:
        for mark in found:
            bloom |= _bits(mark)
        return Touched(frozenset(), lists, bloom, any_list)
    return Touched(found, lists, 0, any_list)


def fold(parts: Sequence[Touched]) -> Touched:
    """Return the places that any of these touched."""
    marks, lists = frozenset[bytes](), dict[bytes, int]()
    bloom, any_list = 0, False
    for part in parts:
        if part.anything:
            return ANYTHING
        marks, bloom, any_list = marks | part.marks, bloom | part.bloom, any_list or part.any_list
        for mark, place in part.lists.items():
            lists[mark] = min(place, lists.get(mark, place))
    if any_list:
        marks, lists = marks | lists.keys(), {}
    made = touched_of(marks, lists, bloom)
    return msgspec.structs.replace(made, any_list=True) if any_list else made


def read_touched(data: bytes) -> Touched:
    """Return the places that bytes encode.

    Raises:
        CorruptError: The bytes are damaged.
    """
    try:
        flags = data[0]
        if flags & _ANYTHING:
            return ANYTHING
        count, at = data[1], 2
        lists: dict[bytes, int] = {}
        for _ in range(count):
            begin, at = at, at + _MARK_BYTES
            lists[data[begin:at]], at = (
                (data[at], at + 1) if data[at] < _LONG_NUMBER else read_number(data, at)
            )
    except (IndexError, ValueError) as error:
        raise CorruptError(f"the marks of a commit are damaged: {error}") from error
    rest = data[at:]
    is_bloom = bool(flags & _IS_BLOOM)
    if (len(rest) != _BLOOM_BYTES) if is_bloom else len(rest) % _MARK_BYTES:
        raise CorruptError("the marks of a commit are damaged: they are cut off")
    any_list = bool(flags & _ANY_LIST)
    if is_bloom:
        return Touched(frozenset(), lists, int.from_bytes(rest), any_list)
    marks = frozenset([rest[at : at + _MARK_BYTES] for at in range(0, len(rest), _MARK_BYTES)])
    return Touched(marks, lists, 0, any_list)


class MarkedPath:
    """A path to look for in marks.

    Args:
        path: Encoded keys and list indexes.
    """

    def __init__(self, path: Sequence[Step]) -> None:
        keys: list[bytes] = []
        self._index: int | None = None
        for step in path:
            if isinstance(step, int):
                self._index = step
                break
            keys.append(step)
        through = tuple(keys)
        self._prefix = _mark(_PREFIX, through)
        self._wholes = [_mark(_WHOLE, through[:length]) for length in range(1, len(through) + 1)]

    def is_in(self, touched: Touched) -> bool:
        """Return whether the value at the path may have changed."""
        if touched.anything or any(map(touched.has, self._wholes)):
            return True
        lowest = touched.lists.get(self._prefix)
        if self._index is not None:
            return touched.any_list if lowest is None else touched.any_list or self._index >= lowest
        return lowest is not None or touched.has(self._prefix)


def touched_at(path: Sequence[Step]) -> Touched:
    """Return the marks of one value that was added, removed or replaced, or of items from an index on."""
    found = _Marks()
    keys: list[bytes] = []
    for step in path:
        if isinstance(step, int):
            found.list_at(tuple(keys), step)
            return found.made()
        keys.append(step)
    found.whole(tuple(keys))
    return found.made()


# ---- comparing two states


class _Marks:
    """Collects the marks of changes."""

    def __init__(self) -> None:
        self._marks = set[bytes]()
        self._lists: dict[bytes, int] = {}
        self._anything = False

    def prefix(self, keys: Keys) -> None:
        """Mark a dict that differs, and the dicts around it."""
        for length in range(1, len(keys) + 1):
            self._marks.add(_mark(_PREFIX, keys[:length]))

    def whole(self, keys: Keys) -> None:
        """Mark a value that is another one."""
        if not keys:
            self._anything = True
            return
        self.prefix(keys[:-1])
        self._marks.add(_mark(_WHOLE, keys))

    def list_at(self, keys: Keys, place: int) -> None:
        """Mark a list that differs from an index on."""
        if not keys:
            self._anything = True
            return
        self.prefix(keys[:-1])
        self._lists[_mark(_PREFIX, keys)] = place

    def made(self) -> Touched:
        """Return the marked paths."""
        return ANYTHING if self._anything else touched_of(self._marks, self._lists)


class _Missing:
    """Collects the changes that marks do not show."""

    def __init__(self, told: Touched) -> None:
        self._told = told
        self.paths: list[Keys] = []

    def prefix(self, keys: Keys) -> None:
        """Require that the dict is marked."""
        if keys and not MarkedPath(keys).is_in(self._told):
            self.paths.append(keys)

    def whole(self, keys: Keys) -> None:
        """Require that everything below is marked."""
        self.prefix(keys[:-1])
        marks = [_mark(_WHOLE, keys[:length]) for length in range(1, len(keys) + 1)]
        if not self._told.anything and not any(map(self._told.has, marks)):
            self.paths.append(keys)

    def list_at(self, keys: Keys, place: int) -> None:
        """Require that the list is marked from an index on, or from before."""
        if not (MarkedPath(keys).is_in(self._told) and MarkedPath((*keys, place)).is_in(self._told)):
            self.paths.append(keys)


def touched_between(old: bytes, new: bytes) -> Fetching[Touched]:
    """Return the places at which two states differ.

    Reads the nodes that differ, one after the other. What an `UnloadedError` is thrown for is marked as
    changed.
    """
    found = _Marks()
    yield from _compare(old, new, (), found)
    return found.made()


def touched_by(
    replaced: Iterable[tuple[bytes, bytes | None, bytes | None]], appended: Iterable[tuple[bytes, int]]
) -> Fetching[Touched]:
    """Return the places that known changes of a dict touch; the same as `touched_between` its two states.

    Args:
        replaced: The encoded keys, each with the old and the new encoding; None for an absent one.
        appended: The encoded keys of lists that only became longer, each with the old length.
    """
    found = _Marks()
    for key, old, new in replaced:
        if old is None or new is None:
            found.whole((key,))
        else:
            yield from _compare(old, new, (key,), found)
    for key, length in appended:
        found.list_at((key,), length)
    return found.made()


def touched_by_plain(replaced: Iterable[tuple[bytes, bytes | None, bytes | None]]) -> Touched:
    """Return the same for encodings without references, which need no objects."""
    try:
        next(touched_by(replaced, ()))
    except StopIteration as end:
        made: Touched = end.value
        return made
    raise CorruptError("an encoding that should be whole has references")


def untold(told: Touched, old: bytes, new: bytes) -> Fetching[list[Keys]]:
    """Return the paths of values that differ between two states, and may not have changed by these marks."""
    missing = _Missing(told)
    yield from _compare(old, new, (), missing)
    return missing.paths


def _compare(old: bytes, new: bytes, keys: Keys, found: _Marks | _Missing) -> Fetching[None]:
    if old == new:
        return
    kinds = _kind(old), _kind(new)
    if kinds[0] is None or kinds[0] is not kinds[1]:
        found.whole(keys)
    elif kinds[0] is list:
        found.list_at(keys, (yield from lowest_difference(old, new)))
    else:
        found.prefix(keys)
        try:
            pairs = yield from _unlike_fields(old, new)
        except UnloadedError:
            found.whole(keys)
            return
        for key, was, now in pairs:
            below = (*keys, key)
            if was is None or now is None:
                found.whole(below)
                continue
            try:
                earlier, later = yield from _encodings(was, now)
            except UnloadedError:
                found.whole(below)
                continue
            yield from _compare(earlier, later, below, found)


def _kind(encoding: bytes) -> type | None:
    """Return list or dict, or None for any other value."""
    ref = ref_of(encoding)
    if ref is not None:
        style = STYLES.get(ref.kind)
        return None if style is None else dict if style.has_keys else list
    if not is_container(encoding):
        return None
    return list if is_plain_list(encoding) else dict


_Side: TypeAlias = bytes | Entry | None


def _unlike_fields(old: bytes, new: bytes) -> Fetching[list[tuple[bytes, _Side, _Side]]]:
    if ref_of(old) is None and ref_of(new) is None:
        was, now = fields(old), fields(new)
        keys = [key for key in was if was[key] != now.get(key)] + [key for key in now if key not in was]
        return [(key, was.get(key), now.get(key)) for key in keys]
    before = yield from open_contents(old)
    after = yield from open_contents(new)
    pairs = yield from unlike_keys(before, after)
    return [(side.key, one, other) for one, other in pairs if (side := one or other) is not None]


def _encodings(was: bytes | Entry, now: bytes | Entry) -> Fetching[tuple[bytes, bytes]]:
    if isinstance(was, bytes) and isinstance(now, bytes):
        return was, now
    entries = [side for side in (was, now) if not isinstance(side, bytes)]
    loaded = iter((yield from whole(entries)))
    return (
        was if isinstance(was, bytes) else next(loaded),
        now if isinstance(now, bytes) else next(loaded),
    )


# ---- the lowest difference of two lists


class _Part(msgspec.Struct, frozen=True):
    """Items of a list: one item as its bytes, or a node of a tree."""

    level: int
    raw: bytes
    node: Entry | None = None

    @property
    def name(self) -> bytes:
        """The name of the node, or of the item: a large item has one form in a leaf and another in a tail."""
        if self.node is not None:
            return self.node.name
        ref = ref_of(self.raw)
        if ref is not None and ref.kind is Kind.BLOB:
            return ref.name
        return name_of(Kind.BLOB, self.raw)

    def is_same(self, other: _Part) -> bool:
        """Return whether both parts have the same items."""
        if self.level != other.level:
            return False
        return (self.node is None and self.raw == other.raw) or self.name == other.name


def lowest_difference(old: bytes, new: bytes) -> Fetching[int]:
    """Return the lowest index at which two different lists differ, or the length of the shorter one.

    Opens the first nodes that differ only. If one of them is not loaded, returns the index of its first item.
    """
    try:
        olds = yield from _parts(old)
        news = yield from _parts(new)
    except UnloadedError:
        return 0
    place = 0
    while olds and news:
        one, other = olds[-1], news[-1]
        if one.is_same(other):
            olds.pop()
            news.pop()
            place += 1 if one.node is None else one.node.count
            continue
        if one.node is None and other.node is None:
            return place
        try:
            if one.level >= other.level:
                olds[-1:] = yield from _below(one)
            if other.level >= one.level:
                news[-1:] = yield from _below(other)
        except UnloadedError:
            return place
    return place


def _parts(encoding: bytes) -> Fetching[list[_Part]]:
    """Return the parts of a list, the last first."""
    ref = ref_of(encoding)
    if ref is None:
        return [_Part(0, raw) for raw in reversed(split(encoding))]
    items, tails = split_root((yield (ref,))[ref.name])
    parts = [
        _Part(level, b"", entry)
        for level in range(len(tails), 0, -1)
        for entry in read_children(LIST_STYLE, tails[level - 1])
    ]
    return [*parts, *(_Part(0, raw) for raw in split(items))][::-1]


def _below(part: _Part) -> Fetching[Iterator[_Part]]:
    assert part.node is not None
    ref = child_ref(LIST_STYLE, part.node, part.level)
    data = (yield (ref,))[ref.name]
    level = part.level - 1
    if level:
        return (_Part(level, b"", entry) for entry in reversed(read_children(LIST_STYLE, data)))
    return (_Part(0, raw) for raw in reversed(split(data)))
