"""Reads a damaged database row by row, without SQLite, which gives up at the first page that it distrusts.

A row counts if its seal says so, and if its page is sound or the index of keys, on other pages, knows it too.
Where a page above others is damaged, those below it are found because nothing else, nor the list of free
pages, has them. The log, if it is whole, tells which rows are older than what was written last.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import apsw
import msgspec

from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.protocol import Entry, Leap
from keepstate.stores.recovery.cells import Record
from keepstate.stores.recovery.pagefile import MAGIC, PageFile
from keepstate.stores.recovery.remains import Damage, SpaceRemains
from keepstate.stores.recovery.trees import Leaf, Trees
from keepstate.stores.sqlite import changes, schema
from keepstate.stores.sqlite.durable_mark import certain_row, is_bare
from keepstate.stores.sqlite.lock import FileLock
from keepstate.stores.sqlite.statements import execute_on

_Key: TypeAlias = tuple[int, bytes]
_LOCK_WAIT_S = 10.0
_FIRST_HEADER = 100
_RESERVED_AT = 20
"""Where a database says how many bytes at the end of each page are kept free: for checksums, here."""
_MOST_FOUND = 20
_KEYS = "sqlite_autoindex_entries_1"


class _Row(NamedTuple):
    """Where an entry stands, and what is known of it beside its value."""

    version: int
    created: int
    expires_at_ms: int | None
    page: int
    place: int
    """Which record of its page it is."""


class _Change(NamedTuple):
    """The last change of a key that the log has."""

    revision: int
    deleted: bool
    new: bytes | None


class _Head:
    """How far a space had come."""

    def __init__(self) -> None:
        self.revision = self.now_ms = self.floor = 0
        self.logged: set[int] = set()
        self.last_missing = 0
        """The newest revision that the log lacks."""


class DatabaseRemains:
    """What is whole of a database and its log.

    Args:
        path: The database: one that nobody writes to, or a copy.
        name: What to call it in damages, where it is a copy.

    Raises:
        CorruptError: It is somebody else's database.
        UnsupportedError: A newer keepstate made it.
    """

    def __init__(self, path: str, *, name: str | None = None) -> None:
        self.path = name or path
        self._lock_path = f"{path}.lock"
        self.file = PageFile(path, name=self.path)
        try:
            self._refuse_others()
        except BaseException:
            self.file.close()
            raise
        self._trees = Trees(self.file)
        self.damages: list[Damage] = self.file.damages
        self._names: dict[int, bytes | None] = {}
        self._leaps: dict[int, Leap | None] = {}
        self._indexed: dict[_Key, int] = {}
        self._expiries: set[tuple[int, int, int]] = set()
        self._heads: defaultdict[int, _Head] = defaultdict(_Head)
        self._rows: dict[_Key, _Row] = {}
        self._from_log: dict[_Key, Entry] = {}
        self._last: dict[_Key, _Change] = {}
        self._lost: set[_Key] = set()
        self._read_all()

    def close(self) -> None:
        """Let go of the files."""
        self.file.close()

    # ---- what is there

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces, also dropped ones, in the order of their names' bytes."""
        found: list[SpaceRemains] = []
        for number, name in self._names.items():
            if name is not None:
                head = self._heads[number]
                exists, leap = head.revision > head.floor, self._leaps.get(number)
                found.append(SpaceRemains(name.decode(), head.revision, head.now_ms, exists, leap))
        return sorted(found, key=lambda space: space.name.encode())

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield what is whole of a space, in key order, expired or not."""
        number = self._numbers[space]
        for key in self._keys.get(number, ()):
            entry = self._entry((number, key))
            if entry is not None:
                yield entry

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys asked, None for what is absent or not whole."""
        number = self._numbers[space]
        return [self._entry((number, key)) for key in keys]

    def _entry(self, key: _Key) -> Entry | None:
        if key in self._from_log:
            return self._from_log[key]
        row = self._rows.get(key)
        if row is None:
            return None
        record = self._trees.record(row.page, row.place)
        assert record is not None
        value = record.columns[7]
        assert isinstance(value, bytes)
        return Entry(key[1], value, row.version, row.created, row.expires_at_ms)

    # ---- reading all

    def _refuse_others(self) -> None:
        first = self.file.page(1)
        if len(first) < _FIRST_HEADER:
            return
        layout, owner = (int.from_bytes(first[at : at + 4], "big") for at in (60, 68))
        # One without room for checksums, and with another's id, never was keepstate's: what is damaged once
        # has one of both.
        is_other = first.startswith(MAGIC) and first[_RESERVED_AT] == 0 and owner != schema.APPLICATION_ID
        if not self.file.is_sound(1) and not is_other:
            return
        if is_bare(first):
            what = "the file holds none of its tables: they were in its log, and are lost or damaged there"
            self.file.damages.append(Damage(what, self.path))
            return
        if owner != schema.APPLICATION_ID:
            raise CorruptError(
                f"{self.path} is a database, but none of keepstate's; give the file of one", place=self.path
            )
        if layout > schema.LAYOUT:
            raise UnsupportedError(f"{self.path} has layout {layout}, made by a newer keepstate: upgrade")

    def _read_all(self) -> None:
        for record in self._trees.index(_KEYS):
            match record.columns:
                case (int(space), bytes(key), int(row)):
                    self._indexed[space, key] = row
                case _:
                    pass
        for record in self._trees.index("entries_by_expiry"):
            match record.columns:
                case (int(space), int(expires), int(row)):
                    self._expiries.add((space, expires, row))
                case _:
                    pass
        self._read_names()
        for leaf in self._trees.leaves("entries"):
            self._read_entries(leaf)
        for leaf in self._trees.leaves("log"):
            self._read_log(leaf)
        self._compare()
        self.damages += self._trees.damages()

    def _read_names(self) -> None:
        for record in self._trees.index("sqlite_autoindex_spaces_1"):
            match record.columns:
                case (bytes() | None as name, int(number)):
                    self._names[number] = name
                case _:
                    pass
        for leaf in self._trees.leaves("spaces"):
            for found in leaf.records:
                match found:
                    case Record(row, (None, bytes() | None as name, bytes() | None as leap)) if leaf.is_sound:
                        self._names[row], self._leaps[row] = name, schema.decode_leap(leap)
                    case _:
                        pass

    def _read_entries(self, leaf: Leaf) -> None:
        for place, record in enumerate(leaf.records):
            match record:
                case Record(
                    row,
                    (
                        None, int(space), bytes(key), int(version), int(created),
                        int() | None as expires, int(seal), bytes(value),
                    ),
                ) if seal == schema.entry_seal(key, value, version, expires):  # fmt: skip
                    self._trees.vouch(record)
                    if not leaf.is_sound:
                        created = version  # the seal does not tell, and nothing is older than that is certain
                        is_known = self._indexed.get((space, key)) == row
                        if not is_known or (expires and (space, expires, row) not in self._expiries):
                            continue
                    known = self._rows.get((space, key))
                    if known is None or known.version < version:
                        self._rows[space, key] = _Row(version, created, expires, leaf.page, place)
                    head = self._heads[space]
                    head.revision = max(head.revision, version)
                case Record(_, (None, int(space), bytes(key), *_)) if leaf.is_sound:
                    what = f"the entry in page {leaf.page} is not what was written"
                    self.damages.append(Damage(what, self.file.place(leaf.page), self._name(space), key))
                case _:
                    if leaf.is_sound:
                        what = f"a record in page {leaf.page} makes no sense"
                        self.damages.append(Damage(what, self.file.place(leaf.page)))

    def _read_log(self, leaf: Leaf) -> None:
        for record in leaf.records:
            match record:
                case Record(
                    row,
                    (
                        None, int(now_ms), int(floor), int(), int() | None, int(), bytes() | None,
                        bytes(nonce), bytes(), int(seal), bytes(encoded),
                    ),
                ) if seal == schema.log_seal(row, nonce, encoded):  # fmt: skip
                    self._trees.vouch(record)
                    head = self._heads[row >> schema.REVISION_BITS]
                    revision = row & schema.LAST_REVISION
                    head.logged.add(revision)
                    if revision >= head.revision:
                        head.revision = revision
                        if leaf.is_sound:
                            head.now_ms, head.floor = now_ms, floor
                    self._take_changes(row, encoded)
                case Record(row, _) if leaf.is_sound:
                    name = self._name(row >> schema.REVISION_BITS)
                    what = f"the log's revision {row & schema.LAST_REVISION} is not what was written"
                    self.damages.append(Damage(what, self.file.place(leaf.page), name))
                case _:
                    pass

    def _take_changes(self, row: int, encoded: bytes) -> None:
        space, revision = row >> schema.REVISION_BITS, row & schema.LAST_REVISION
        try:
            found = changes.decode(encoded, revision)
        except msgspec.MsgspecError:
            self.damages.append(
                Damage(f"the log's revision {revision} makes no sense", self.path, self._name(space))
            )
            return
        for change in found:
            known = self._last.get((space, change.key))
            if known is None or known.revision <= revision:
                self._last[space, change.key] = _Change(revision, change.deleted, change.new)

    # ---- what belongs together

    def _compare(self) -> None:
        """Hold rows, index and log against one another: the newest that any of them has is what counts."""
        self._is_indexed_whole, self._is_log_whole = self._trees.is_whole(_KEYS), self._trees.is_whole("log")
        for number in {space for space, _ in self._rows} - set(self._names):
            self._names[number] = b"recovered/%d" % number
            self.damages.append(
                Damage(f"the name of space number {number} is lost", self.path, f"recovered/{number}")
            )
        self._refuse_lost_end()
        for number, head in self._heads.items():
            head.last_missing = _last_missing(head)
            self._refuse_gaps(number, head)
        for key, change in self._last.items():
            self._compare_with_log(key, change)
        for key in self._indexed:
            if self._names.get(key[0]) is None or key in self._rows or key in self._lost:
                continue
            if (last := self._last.get(key)) is None or not last.deleted:
                self._lose(key, "the entry is lost")
        self._last.clear()
        self._numbers = {name.decode(): number for number, name in self._names.items() if name is not None}
        self._keys: defaultdict[int, list[bytes]] = defaultdict(list)
        for number, stored in sorted({*self._rows, *self._from_log}):
            self._keys[number].append(stored)

    def _compare_with_log(self, key: _Key, change: _Change) -> None:
        row = self._rows.get(key)
        if self._names.get(key[0]) is None or (row is not None and row.version >= change.revision):
            return
        if change.deleted:
            if row is not None:
                del self._rows[key]
                self._lose(key, f"the entry was deleted at revision {change.revision}, and its page is older")
            return
        is_last = self._is_last(key[0], change.revision)
        if row is None and key not in self._indexed and (self._is_indexed_whole or not is_last):
            return  # deleted, by a revision that the log has lost
        self._rows.pop(key, None)
        if change.new is not None and is_last:
            self._from_log[key] = Entry(key[1], change.new, change.revision, change.revision)
            what = f"the entry is lost; its value was read from the log's revision {change.revision}"
        else:
            what = f"the entry as of revision {change.revision} or later is lost"
        self._lose(key, what)

    def _is_last(self, number: int, revision: int) -> bool:
        """Return whether the log has all that a space came to behind this revision."""
        return self._is_log_whole and revision >= self._heads[number].last_missing

    def _refuse_lost_end(self) -> None:
        """Name the end of the log that is gone, if the note of the newest revision tells of it."""
        row = certain_row(self._lock_path)
        number, revision = row >> schema.REVISION_BITS, row & schema.LAST_REVISION
        if row and not self._names:
            what = (
                f"no space is left, and one had come to revision {revision}: the file was cut off or replaced"
            )
            self.damages.append(Damage(what, self.path))
        if self._names.get(number) is not None and self._heads[number].revision < revision:
            what = f"what was acknowledged up to revision {revision} is lost from revision "
            what += str(self._heads[number].revision + 1)
            self.damages.append(Damage(what, f"{self.path}-wal", self._name(number)))
            self._heads[number].revision = revision

    def _refuse_gaps(self, number: int, head: _Head) -> None:
        if self._names.get(number) is None:
            return
        there = sum(head.floor < revision <= head.revision for revision in head.logged)
        count = head.revision - head.floor - there
        if count > 0:
            missing = (r for r in range(head.floor + 1, head.revision + 1) if r not in head.logged)
            some = ", ".join(map(str, islice(missing, 5))) + (" …" if count > 5 else "")
            self.damages.append(
                Damage(f"the log lacks {count} revisions: {some}", self.path, self._name(number))
            )

    def _lose(self, key: _Key, what: str) -> None:
        self._lost.add(key)
        self.damages.append(Damage(what, self.path, self._name(key[0]), key[1]))

    def _name(self, number: int) -> str:
        name = self._names.get(number)
        return f"number {number}" if name is None else name.decode(errors="replace")


def _last_missing(head: _Head) -> int:
    """Return the newest revision that the log lacks; the head itself is logged or lost."""
    revision = head.revision
    while revision in head.logged:
        revision -= 1
    return revision


def copied(path: str, folder: str) -> str:
    """Return the path of a copy of a database, its log and its note, made while nobody writes.

    The note too: the original's goes on with its writers, and tells of rows that no copy can have.

    A process that has the database open must not call this: it would lose the locks that it holds.

    Raises:
        StoreUnavailableError: A process kept the lock file for ten seconds.
    """
    lock = FileLock(path) if os.path.exists(f"{path}.lock") else None
    copy = os.path.join(folder, "copy.db")
    try:
        if lock is not None:
            lock.acquire(_LOCK_WAIT_S)
        try:
            for end in ("", "-wal", ".lock"):
                if os.path.exists(path + end):
                    shutil.copyfile(path + end, copy + end)
        finally:
            if lock is not None:
                lock.release()
    finally:
        if lock is not None:
            lock.close()
    return copy


def integrity(file: PageFile, folder: str) -> list[Damage]:
    """Return what SQLite itself finds wrong with the database, looked at in a copy without a log."""
    image = os.path.join(folder, "image.db")
    file.write_image(image)
    connection = apsw.Connection(
        f"file:{quote(image)}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )
    try:
        found = [str(row[0]) for row in execute_on(connection)(f"PRAGMA integrity_check({_MOST_FOUND})")]
    except apsw.Error as error:
        found = [str(error)]
    finally:
        connection.close()
    return [Damage(f"SQLite says: {' '.join(line.split())}", file.path) for line in found if line != "ok"]
