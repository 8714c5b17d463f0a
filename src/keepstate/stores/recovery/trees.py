"""The b-trees of a database that may be damaged: their pages in use, and the records in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from keepstate.stores.recovery.cells import INDEX_INNER, INDEX_LEAF, TABLE_INNER, TABLE_LEAF, Record, Tree
from keepstate.stores.recovery.pagefile import PageFile
from keepstate.stores.recovery.remains import Damage

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
