"""Contents of a b-tree page: pointers to other pages, and records.

Format: "B-tree Pages" and "Record Format" of SQLite's file format. Invalid bytes give None for a record, or
nothing. They never make a record larger than its pages have room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

Value: TypeAlias = int | bytes | str | float | None

INDEX_INNER: Final = 2
TABLE_INNER: Final = 5
INDEX_LEAF: Final = 10
TABLE_LEAF: Final = 13
_KINDS: Final = (INDEX_INNER, TABLE_INNER, INDEX_LEAF, TABLE_LEAF)
_INNER: Final = (INDEX_INNER, TABLE_INNER)
_INT_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)
_MOST_PAYLOAD: Final = 16 << 20


class Record(NamedTuple):
    """A row of a table, or an entry of an index (whose `row` is 0)."""

    row: int
    columns: tuple[Value, ...]
    pages: tuple[int, ...]
    """The overflow pages on which the record continues."""


class Tree(NamedTuple):
    """One page of a b-tree."""

    number: int
    data: bytes
    usable_bytes: int

    @property
    def kind(self) -> int:
        """Return the kind of the page, or 0 if it is not one of the four kinds."""
        start = 100 if self.number == 1 else 0
        return self.data[start] if len(self.data) > start + 8 and self.data[start] in _KINDS else 0

    def children(self) -> list[int]:
        """Return the child pages in order."""
        if self.kind not in _INNER:
            return []
        start = 100 if self.number == 1 else 0
        found = [int.from_bytes(self.data[at : at + 4], "big") for at in self._cells()]
        return [*found, int.from_bytes(self.data[start + 8 : start + 12], "big")]

    def records(self, page: Callable[[int], bytes]) -> Iterator[Record | None]:
        """Yield the records of this page; None for an invalid one.

        Args:
            page: Returns another page, for a record that continues there.
        """
        if self.kind in (0, TABLE_INNER):
            return
        for at in self._cells():
            try:
                yield self._record(at, page)
            except (ValueError, IndexError):
                yield None

    def _cells(self) -> list[int]:
        start = 100 if self.number == 1 else 0
        first = start + (12 if self.kind in _INNER else 8)
        count = int.from_bytes(self.data[start + 3 : start + 5], "big")
        count = min(count, (len(self.data) - first) // 2)
        offsets = (int.from_bytes(self.data[first + 2 * n : first + 2 * n + 2], "big") for n in range(count))
        return [at for at in offsets if at < self.usable_bytes]

    def _record(self, at: int, page: Callable[[int], bytes]) -> Record:
        at += 4 if self.kind == INDEX_INNER else 0
        size, at = _varint(self.data, at)
        row = 0
        if self.kind == TABLE_LEAF:
            row, at = _varint(self.data, at)
        if size > _MOST_PAYLOAD:
            raise ValueError("a record is larger than any that keepstate writes")
        here = self._bytes_here(size)
        payload, pages = self.data[at : at + here], list[int]()
        following = int.from_bytes(self.data[at + here : at + here + 4], "big") if here < size else 0
        while len(payload) < size:
            if following == 0 or following in pages:
                raise ValueError("the overflow pages of a record end early")
            pages.append(following)
            more = page(following)[: self.usable_bytes]
            following = int.from_bytes(more[:4], "big")
            payload += more[4 : 4 + size - len(payload)]
        return Record(row - (1 << 64 if row >> 63 else 0), _columns(payload), tuple(pages))

    def _bytes_here(self, size: int) -> int:
        """Return the number of a record's bytes on its own page."""
        usable = self.usable_bytes
        most = usable - 35 if self.kind == TABLE_LEAF else (usable - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (usable - 12) * 32 // 255 - 23
        here = least + (size - least) % (usable - 4)
        return here if here <= most else least


def _columns(payload: bytes) -> tuple[Value, ...]:
    head_bytes, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < head_bytes:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Value] = []
    for kind in kinds:
        value, at = _column(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise ValueError("a record's columns do not fill it")
    return tuple(values)


def _column(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind < 7:
        end = at + _INT_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind < 12:
        raise ValueError("a column is of a kind that keepstate does not write")
    end = at + (kind - 12) // 2
    if end > len(payload):
        raise ValueError("a column is cut off")
    data = payload[at:end]
    return (data.decode(), end) if kind % 2 else (data, end)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(8):
        byte = data[at + index]
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, at + index + 1
    return number << 8 | data[at + 8], at + 9
