"""Reader of a damaged database, row by row, without SQLite, which stops at the first damaged page.

A row counts if its seal fits, and if its page is sound or the index of keys, on other pages, has it too. If
an inner page is damaged, the pages below it are found because no other page, nor the list of free pages, has
them. The log, if it is whole, shows which rows are older than the last write.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import apsw
import msgspec

from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Entry, Leap
from keepstate.stores.recovery.pagefile import MAGIC, PageFile
from keepstate.stores.recovery.remains import Damage, RevisionTimes, SpaceRemains
from keepstate.stores.recovery.trees import Leaf, Record, Trees
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.connection import execute_on
from keepstate.stores.sqlite.durable_mark import certain_row, is_bare
from keepstate.stores.sqlite.files import FileLock

_Key: TypeAlias = tuple[int, bytes]
_LOCK_WAIT_S = 10.0
_FIRST_HEADER = 100
_RESERVED_AT = 20
"""Offset of the number of bytes reserved at the end of each page, which hold checksums here."""
_MOST_FOUND = 20
_KEYS = "sqlite_autoindex_entries_1"


class _Row(NamedTuple):
    """The location of an entry, and its fields without the value."""

    version: int
    created: int
    expires_at_ms: int | None
    page: int
    place: int
    """The index of the record in its page."""


class _Change(NamedTuple):
    """The last logged change of a key."""

    revision: int
    deleted: bool
    new: bytes | None


class _Head:
    """The recovered head of a space."""

    def __init__(self) -> None:
        self.revision = self.now_ms = self.floor = 0
        self.sizes: tuple[int, bytes] = (0, b"")
        """A revision, and the encoded sizes of the space's parts at that revision."""
        self.logged: set[int] = set()
        self.times = RevisionTimes()
        self.last_missing = 0
        """The newest revision that the log lacks."""


class DatabaseRemains:
    """The whole parts of a database and its log.

    Args:
        path: The database, without writers, or a copy.
        name: The name of the database in damages, if `path` is a copy.

    Raises:
        CorruptError: The file is a database of another program.
        UnsupportedError: A newer keepstate created it.
    """

    def __init__(self, path: str, *, name: str | None = None) -> None:
        self.path = name or path
        self._lock_path = f"{path}.lock"
        self.file = PageFile(path, name=self.path)
        try:
            self._require_keepstate()
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
        """Close the files."""
        self.file.close()

    # ---- recovered content

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces, dropped ones included, in the order of their names' bytes."""
        found: list[SpaceRemains] = []
        for number, name in self._names.items():
            if name is not None:
                head = self._heads[number]
                exists, leap = head.revision > head.floor, self._leaps.get(number)
                sizes = None
                if head.sizes[0] == head.revision and not self.damages:
                    with suppress(msgspec.MsgspecError):
                        sizes = PartSizes.decode(head.sizes[1])
                found.append(
                    SpaceRemains(
                        name.decode(), head.revision, head.now_ms, exists, leap, sizes, times=head.times
                    )
                )
        return sorted(found, key=lambda space: space.name.encode())

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield the whole entries of a space, in key order, expired ones included."""
        number = self._numbers[space]
        for key in self._keys.get(number, ()):
            entry = self._entry((number, key))
            if entry is not None:
                yield entry

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys, None for absent and damaged ones."""
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

    def _require_keepstate(self) -> None:
        first = self.file.page(1)
        if len(first) < _FIRST_HEADER:
            return
        layout, owner = (int.from_bytes(first[at : at + 4], "big") for at in (60, 68))
        # A file without room for checksums and with another id was never keepstate's: a single damage
        # changes only one of the two.
        is_other = first.startswith(MAGIC) and first[_RESERVED_AT] == 0 and owner != schema.APPLICATION_ID
        if not self.file.is_sound(1) and not is_other:
            return
        if is_bare(first):
            what = "the file does not hold its tables: they were in its log, and are lost or damaged there"
            self.file.damages.append(Damage(what, self.path))
            return
        if owner != schema.APPLICATION_ID:
            raise CorruptError(
                f"{self.path} is a database of another program. Pass the file of a keepstate store.",
                place=self.path,
            )
        if layout > schema.LAYOUT:
            raise UnsupportedError(
                f"{self.path} has layout {layout} of a newer keepstate. Upgrade keepstate."
            )

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
                    self._trees.accept_overflow(record)
                    if not leaf.is_sound:
                        created = version  # the seal does not cover `created`, and only `version` is certain
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
                        bytes(nonce), bytes(), bytes(sizes), int(seal), bytes(encoded),
                    ),
                ) if seal == schema.log_seal(row, nonce, encoded):  # fmt: skip
                    self._trees.accept_overflow(record)
                    head = self._heads[row >> schema.REVISION_BITS]
                    revision = row & schema.LAST_REVISION
                    head.logged.add(revision)
                    if leaf.is_sound:  # the seal does not cover the time
                        head.times.add(revision, now_ms)
                    if revision >= head.revision:
                        head.revision = revision
                        if leaf.is_sound:
                            head.now_ms, head.floor, head.sizes = now_ms, floor, (revision, sizes)
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
            found = schema.decode_changes(encoded, revision)
        except msgspec.MsgspecError:
            self.damages.append(
                Damage(f"the log's revision {revision} makes no sense", self.path, self._name(space))
            )
            return
        for change in found:
            known = self._last.get((space, change.key))
            if known is None or known.revision <= revision:
                self._last[space, change.key] = _Change(revision, change.deleted, change.new)

    # ---- comparing rows, index and log

    def _compare(self) -> None:
        """Compare rows, index and log; the newest of the three counts."""
        self._is_indexed_whole, self._is_log_whole = self._trees.is_whole(_KEYS), self._trees.is_whole("log")
        for number in {space for space, _ in self._rows} - set(self._names):
            self._names[number] = b"recovered/%d" % number
            self.damages.append(
                Damage(f"the name of space number {number} is lost", self.path, f"recovered/{number}")
            )
        self._report_lost_end()
        for number, head in self._heads.items():
            head.last_missing = _last_missing(head)
            self._report_gaps(number, head)
        for key, change in self._last.items():
            self._compare_with_log(key, change)
        for key in self._indexed:
            if self._names.get(key[0]) is None or key in self._rows or key in self._lost:
                continue
            if (last := self._last.get(key)) is None or not last.deleted:
                self._report_lost(key, "the entry is lost")
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
                self._report_lost(
                    key, f"the entry was deleted at revision {change.revision}, and its page is older"
                )
            return
        is_last = self._is_last(key[0], change.revision)
        if row is None and key not in self._indexed and (self._is_indexed_whole or not is_last):
            return  # deleted by a revision that is missing in the log
        self._rows.pop(key, None)
        if change.new is not None and is_last:
            self._from_log[key] = Entry(key[1], change.new, change.revision, change.revision)
            what = f"the entry is lost; its value was read from the log's revision {change.revision}"
        else:
            what = f"the entry as of revision {change.revision} or later is lost"
        self._report_lost(key, what)

    def _is_last(self, number: int, revision: int) -> bool:
        """Return whether the log has every revision of a space after this one."""
        return self._is_log_whole and revision >= self._heads[number].last_missing

    def _report_lost_end(self) -> None:
        """Report a lost end of the log, if the note of the newest revision shows it."""
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

    def _report_gaps(self, number: int, head: _Head) -> None:
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

    def _report_lost(self, key: _Key, what: str) -> None:
        self._lost.add(key)
        self.damages.append(Damage(what, self.path, self._name(key[0]), key[1]))

    def _name(self, number: int) -> str:
        name = self._names.get(number)
        return f"number {number}" if name is None else name.decode(errors="replace")


def _last_missing(head: _Head) -> int:
    """Return the newest revision that is missing in the log; the head itself is logged or lost."""
    revision = head.revision
    while revision in head.logged:
        revision -= 1
    return revision


def copy_database(path: str, folder: str) -> str:
    """Copy a database, its log and its note while it is locked, and return the path of the copy.

    The note is copied too, because the original's changes with its writers and would name rows that the copy
    cannot have.

    A process that has the database open must not call this: it would lose its locks.

    Raises:
        StoreUnavailableError: A process held the lock file for ten seconds.
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


def check_integrity(file: PageFile, folder: str) -> list[Damage]:
    """Return the damages that SQLite's own check finds in a copy of the database with its log applied."""
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
