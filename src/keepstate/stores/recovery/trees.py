"""The b-trees of a database that may be damaged: their pages in use, and the records in them.

Format: "B-tree Pages" and "Record Format" of SQLite's file format. Invalid bytes give None for a record, or
nothing. They never make a record larger than its pages have room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from keepstate.stores.recovery.pagefile import PageFile
from keepstate.stores.recovery.remains import Damage

Value: TypeAlias = int | bytes | str | float | None

INDEX_INNER: Final = 2
TABLE_INNER: Final = 5
INDEX_LEAF: Final = 10
TABLE_LEAF: Final = 13
_KINDS: Final = (INDEX_INNER, TABLE_INNER, INDEX_LEAF, TABLE_LEAF)
_INNER: Final = (INDEX_INNER, TABLE_INNER)
_INT_BYTES: Final = (0, 1, 2, 3, 4, 6, 8)
_MOST_PAYLOAD: Final = 16 << 20


_RESERVED_BYTES: Final = 8
_SCHEMA: Final = "the schema"
_ROOTS: Final = {
    "spaces": 2, "sqlite_autoindex_spaces_1": 3, "entries": 4, "sqlite_autoindex_entries_1": 5,
    "entries_by_expiry": 6, "log": 7, "log_by_token": 8, "retries": 9,
}  # fmt: skip
"""The root pages in every file made by `schema.make`, used if the first page is damaged."""
_UNREAD: Final = ("log_by_token", "retries")
"""Trees whose pages are needed, but not their content."""
_COLUMNS: Final = {3: "spaces", 8: "entries", 11: "log"}
"""The tables by their number of columns, to assign a leaf that no page refers to."""


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


class Leaf(NamedTuple):
    """A page with rows of a table; None for an invalid row."""

    page: int
    is_sound: bool
    """Whether the page, and so every record that lies in it alone, is as written."""
    records: list[Record | None]


class Trees:
    """The pages of each table and index, found by the constructor.

    Attributes:
        damaged: The damaged pages in use, each with its table or index.
    """

    def __init__(self, file: PageFile) -> None:
        self._file = file
        self.damaged: dict[int, str] = {}
        self._overflow: set[int] = set()
        self._pages: dict[str, list[int]] = {}
        self._reached: set[int] = set()
        self._broken: set[str] = set()
        roots = self._roots()
        for name, root in roots.items():
            self._pages[name] = self._walk(name, root)
        if self._broken:
            self._adopt()

    # ---- records

    def leaves(self, table: str) -> Iterator[Leaf]:
        """Yield the leaf pages of a table."""
        for number in self._pages.get(table, ()):
            if self._tree(number).kind == TABLE_LEAF:
                yield Leaf(number, number not in self.damaged, list(self._records(number, table)))

    def index(self, name: str) -> Iterator[Record]:
        """Yield an index's entries on sound pages."""
        for number in self._pages.get(name, ()):
            if number not in self.damaged:
                for record in self._records(number, name):
                    if record is not None:
                        self.accept_overflow(record)
                        yield record

    def record(self, number: int, place: int) -> Record | None:
        """Return one record of a page."""
        return list(self._tree(number).records(self._file.page))[place]

    def is_whole(self, name: str) -> bool:
        """Return whether all pages of a table or index are known and as written."""
        return name not in self._broken and name not in self.damaged.values()

    def accept_overflow(self, record: Record) -> None:
        """Accept the overflow pages of a whole record as written, even if they are zeros."""
        self._overflow.update(record.pages)

    def damages(self) -> list[Damage]:
        """Return a damage for each page that is not as written; call it after everything was read."""
        for name in _UNREAD:
            for _ in self.index(name):
                pass
        known = self._free()
        accounted = self._overflow | (known or set())
        found: list[Damage] = []
        if known is None and self._file.is_sound(1):
            found.append(Damage("the list of free pages is damaged", self._file.place(1)))
        for number in range(1, self._file.count + 1):
            use = self.damaged.get(number, "nothing")
            if self._file.is_zeroed(number):
                if number in self.damaged or number not in accounted:
                    what = f"page {number}, in use for {use}, is all zeros"
                    found.append(Damage(what, self._file.place(number)))
            elif number in self.damaged or not self._file.is_sound(number):
                found.append(Damage(f"page {number}, in use for {use}, is damaged", self._file.place(number)))
        return found

    def _records(self, number: int, name: str) -> Iterator[Record | None]:
        for record in self._tree(number).records(self._file.page):
            yield record
            for page in record.pages if record is not None else ():
                self._judge(page, name)

    def _tree(self, number: int) -> Tree:
        return Tree(number, self._file.page(number), self._file.page_bytes - _RESERVED_BYTES)

    # ---- finding the pages

    def _roots(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number in self._walk(_SCHEMA, 1):
            for record in self._tree(number).records(self._file.page) if self._file.is_sound(number) else ():
                match record:
                    case Record(_, (str(), str(name), str(), int(root), *_)):
                        found[name] = root
                    case _:
                        pass
        return {**_ROOTS, **found}

    def _walk(self, name: str, root: int) -> list[int]:
        """Return the pages of a tree that are reachable from its root."""
        is_index = name not in (_SCHEMA, *_COLUMNS.values())
        wanted = (INDEX_INNER, INDEX_LEAF) if is_index else (TABLE_INNER, TABLE_LEAF)
        found: list[int] = []
        ahead = [root]
        while ahead:
            number = ahead.pop()
            if number in self._reached or not 0 < number <= self._file.count:
                self._broken.add(name)
                continue
            tree = self._tree(number)
            is_sound = self._judge(number, name)
            if tree.kind not in wanted:
                self._broken.add(name)
                self.damaged.setdefault(number, name)
                self._reached.add(number)
                continue
            if not is_sound and tree.kind in (INDEX_INNER, TABLE_INNER):
                # Its pointers are not certain. `_adopt` finds the pages below, because no other page refers
                # to them.
                self._broken.add(name)
                self._reached.add(number)
                continue
            self._reached.add(number)
            found.append(number)
            ahead += reversed(tree.children())
        return found

    def _judge(self, number: int, name: str) -> bool:
        if self._file.is_sound(number):
            return True
        if number not in self.damaged:
            self.damaged[number] = name
        return False

    def _adopt(self) -> None:
        """Find the pages in use that no sound page refers to."""
        free = self._free()
        if free is None:
            return
        tops: list[int] = []
        for number in range(2, self._file.count + 1):
            if number in self._reached or number in free or not self._file.is_sound(number):
                continue
            tree = self._tree(number)
            if tree.kind == TABLE_LEAF:
                tops.append(number)
            elif tree.kind in (INDEX_LEAF, INDEX_INNER):
                self._adopt_index(number)
        for number in tops:
            records = [record for record in self._tree(number).records(self._file.page) if record is not None]
            name = _COLUMNS.get(len(records[0].columns)) if records else None
            if name is not None and number not in self._reached:
                self._pages[name].append(number)
                self._reached.add(number)

    def _adopt_index(self, number: int) -> None:
        """Adopt a page of the index of keys; the content of other indexes is known from elsewhere."""
        for record in self._tree(number).records(self._file.page):
            match record:
                case Record(_, (int(), bytes(), int())):
                    self._pages["sqlite_autoindex_entries_1"].append(number)
                    self._reached.add(number)
                    return
                case _:
                    return

    def _free(self) -> set[int] | None:
        """Return the free pages, or None if the list of them is damaged."""
        if not self._file.is_sound(1):
            return None
        first = self._file.page(1)
        trunk, free = int.from_bytes(first[32:36], "big"), set[int]()
        while trunk:
            if trunk in free or not self._file.is_sound(trunk):
                return None
            page = self._file.page(trunk)
            free.add(trunk)
            count = min(int.from_bytes(page[4:8], "big"), len(page) // 4 - 2)
            free.update(int.from_bytes(page[8 + 4 * n : 12 + 4 * n], "big") for n in range(count))
            trunk = int.from_bytes(page[:4], "big")
        return free if len(free) == int.from_bytes(first[36:40], "big") else None
