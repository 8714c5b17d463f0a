"""What is whole of a damaged database is read row by row, and nothing that was never written, or is older."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.protocol import Applied, Batch, Delete, Entry, Put, Write
from keepstate.stores.recovery.sqlite import DatabaseRemains, check_integrity, copy_database
from keepstate.stores.recovery.trees import TABLE_LEAF
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.sqlite import connection as connections

PAGE_BYTES = 4096
MOST_ON_A_PAGE = 4
"""Values of about a thousand bytes."""

Row = tuple[str, bytes, int, bytes]


@dataclass(frozen=True, slots=True)
class Whole:
    """A database, its log (empty if all of it stands in the database), and what it holds."""

    database: bytes
    log: bytes
    rows: frozenset[Row]

    @property
    def pages(self) -> int:
        return len(self.database) // PAGE_BYTES


def key(number: int) -> bytes:
    return b"\x02\x02doc\x00key %03d" % number


def apply(store: SqliteStore, space: str, *writes: Write) -> None:
    (outcome,) = finish(store.apply([Batch(space, writes)]))
    assert isinstance(outcome, Applied)


def fill(store: SqliteStore, numbers: Iterable[int]) -> None:
    """Write, writes over, and delete; so that pages are freed and used again."""
    for number in numbers:
        apply(store, "run", Put(key(number % 150), b"%05d" % number * 200))
        apply(store, "run", Put(b"\x01event %05d" % number, b"e" * 900))
        if number % 3 == 0:
            apply(store, "run", Delete(key((number + 70) % 150)), Delete(b"\x01event %05d" % (number - 90)))
        if number % 50 == 0:
            apply(store, "timed", Put(b"\x02%d" % number, b"t", ttl_ms=10**9), Put(b"\x00part", bytes(9_000)))


def held(remains: DatabaseRemains) -> frozenset[Row]:
    return frozenset(
        (space.name, entry.key, entry.version, entry.value)
        for space in remains.spaces()
        for entry in remains.entries(space.name)
    )


def read(folder: Path, database: bytes, log: bytes = b"") -> DatabaseRemains:
    path = folder / "damaged.db"
    path.write_bytes(database)
    if log:
        path.with_name("damaged.db-wal").write_bytes(log)
    return DatabaseRemains(str(path))


def open_at(path: Path) -> SqliteStore:
    return finish(SqliteStore(path, durability="normal", runner=ThreadRunner()).open())


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A database whose log was moved into it."""
    path = tmp_path_factory.mktemp("closed") / "whole.db"
    store = open_at(path)
    fill(store, range(180))
    finish(store.close())
    return whole(path)


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A database with newer pages in its log, as a crash leaves it."""
    path = tmp_path_factory.mktemp("logged") / "whole.db"
    store = open_at(path)
    fill(store, range(160))
    finish(store.close())
    store = open_at(path)
    fill(store, range(160, 180))
    copy = tmp_path_factory.mktemp("crashed") / "whole.db"
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    finish(store.close())
    return whole(copy)


def connect_plainly(path: Path) -> apsw.Connection:
    """Open a database as keepstate does not: pages written by it have their checksums all the same."""
    return apsw.Connection(str(path), vfs=connections.file_system())


def whole(path: Path) -> Whole:
    log = path.with_name(f"{path.name}-wal")
    remains = DatabaseRemains(str(path))
    assert remains.damages == []
    rows = held(remains)
    assert len(rows) > 100
    remains.close()
    return Whole(path.read_bytes(), log.read_bytes() if log.exists() else b"", rows)


def turned(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_what_is_read_is_what_the_store_reads(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(60))
    told: list[Entry] = []
    for section in range(3):
        told += finish(store.scan("run", bytes((section,)), limit=1000)).entries
    finish(store.close())

    remains = DatabaseRemains(str(path))

    assert list(remains.entries("run")) == told
    assert remains.read("run", [told[0].key, b"\x01nothing"]) == [told[0], None]
    assert [(space.name, space.revision, space.exists) for space in remains.spaces()] == [
        ("run", 140, True), ("timed", 2, True),
    ]  # fmt: skip
    remains.close()


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data())
def test_any_turned_bit_in_the_file_is_found_and_costs_one_row_at_the_most(
    closed: Whole, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bit = data.draw(st.integers(0, 8 * len(closed.database) - 1))

    remains = read(tmp_path_factory.mktemp("bit"), turned(closed.database, bit))
    rows = held(remains)

    assert remains.damages
    assert rows <= closed.rows
    assert len(closed.rows - rows) <= 1
    remains.close()


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_any_turned_bit_in_the_log_is_found_and_brings_nothing_older_back(
    logged: Whole, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bit = data.draw(st.integers(0, 8 * len(logged.log) - 1))

    remains = read(tmp_path_factory.mktemp("bit"), logged.database, turned(logged.log, bit))
    rows = held(remains)

    assert rows <= logged.rows
    # One row, or those of one page: where the bit is in the head of a frame, its page may be lost.
    assert len(logged.rows - rows) <= MOST_ON_A_PAGE
    assert remains.damages or rows == logged.rows  # a log begins again in front of what is left of the last
    remains.close()


@pytest.mark.slow
def test_a_destroyed_page_costs_its_own_rows_and_no_other(closed: Whole, tmp_path: Path) -> None:
    for number in {*range(1, 12), *range(12, closed.pages + 1, 3)}:
        at = (number - 1) * PAGE_BYTES
        page = closed.database[at : at + PAGE_BYTES]
        damaged = closed.database[:at] + b"\xa5" * PAGE_BYTES + closed.database[at + PAGE_BYTES :]

        remains = read(tmp_path, damaged)
        rows = held(remains)

        assert any(damage.place.endswith(f"at byte {at}") for damage in remains.damages), number
        assert rows <= closed.rows, number
        most = MOST_ON_A_PAGE if page[0] == TABLE_LEAF else 1  # a page of a long value has part of one row
        assert len(closed.rows - rows) <= most, number
        remains.close()


@pytest.mark.slow
def test_a_zeroed_page_that_is_in_use_is_named_and_costs_no_other_rows(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(60))
    large = [b"\x02large %d" % number for number in range(4)]
    apply(store, "run", *(Put(key, b"l" * 9_000) for key in large))
    apply(store, "run", *(Delete(key) for key in large))
    finish(store.close())
    before = whole(path)
    passed = 0
    for number in range(1, before.pages + 1):
        at = (number - 1) * PAGE_BYTES
        page = before.database[at : at + PAGE_BYTES]
        damaged = before.database[:at] + bytes(PAGE_BYTES) + before.database[at + PAGE_BYTES :]

        remains = read(tmp_path, damaged)
        rows = held(remains)
        told = {damage.place for damage in remains.damages if "all zeros" in damage.what}

        assert rows <= before.rows, number
        if remains.damages:
            assert f"{tmp_path / 'damaged.db'} at byte {at}" in told or number in free_list(before.database)
            assert len(told) <= 2 or number == 1, number  # without the first page nobody knows what is free
            most = MOST_ON_A_PAGE if page[0] == TABLE_LEAF else 1
            assert len(before.rows - rows) <= most, number
        else:
            passed += 1
            assert check_integrity(remains.file, str(fresh(tmp_path))) == [], number
            assert rows == before.rows, number
        remains.close()

    assert passed, "free pages, and the ends of long zeros"


def free_list(first: bytes) -> set[int]:
    """Return the page at which the list of free ones begins."""
    return {int.from_bytes(first[32:36], "big")}


def fresh(folder: Path) -> Path:
    """Return a folder without an image of an earlier look."""
    (folder / "image.db").unlink(missing_ok=True)
    return folder


def test_a_file_of_zeros_behind_its_first_page_is_damaged(closed: Whole, tmp_path: Path) -> None:
    zeros = bytes(len(closed.database) - PAGE_BYTES)

    remains = read(tmp_path, closed.database[:PAGE_BYTES] + zeros)

    assert held(remains) == frozenset()
    named = {damage.what for damage in remains.damages}
    assert {
        f"page {number}, in use for {use}, is all zeros" for number, use in ((4, "entries"), (7, "log"))
    } <= named
    remains.close()


def test_an_empty_file_is_damaged_if_its_lock_file_knows_of_a_revision(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(3))
    crashed = tmp_path / "crashed.db"
    shutil.copyfile(f"{path}.lock", f"{crashed}.lock")
    crashed.touch()
    (tmp_path / "new.db").touch()
    finish(store.close())

    remains, new = DatabaseRemains(str(crashed)), DatabaseRemains(str(tmp_path / "new.db"))

    assert "no space is left" in remains.damages[0].what
    assert new.damages == []
    remains.close()
    new.close()


def test_lost_rows_are_named_by_space_and_key(closed: Whole, tmp_path: Path) -> None:
    starts = range(0, len(closed.database), PAGE_BYTES)
    at = next(
        at for at in starts if closed.database[at] == TABLE_LEAF and b"e" * 900 in closed.database[at:][:4096]
    )
    damaged = closed.database[:at] + b"\xa5" * PAGE_BYTES + closed.database[at + PAGE_BYTES :]

    remains = read(tmp_path, damaged)
    lost = closed.rows - held(remains)

    assert lost
    assert {(space, key) for space, key, *_ in lost} <= {(d.space, d.key) for d in remains.damages}
    remains.close()


@pytest.mark.parametrize("kept", [0.3, 0.8])
def test_a_file_cut_off_gives_the_pages_that_it_has(closed: Whole, tmp_path: Path, kept: float) -> None:
    size = int(closed.pages * kept) * PAGE_BYTES + 100

    remains = read(tmp_path, closed.database[:size])
    rows = held(remains)

    assert remains.damages
    assert rows <= closed.rows
    assert len(rows) > len(closed.rows) * kept / 2
    remains.close()


def test_random_bytes_are_damage_and_no_rows(tmp_path: Path) -> None:
    remains = read(tmp_path, b"this is no database at all " * 2_000)

    assert remains.damages
    assert held(remains) == frozenset()
    remains.close()


def test_another_programs_database_and_a_later_layout_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    finish(open_at(path).close())
    connection = connect_plainly(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UnsupportedError, match="layout 99"):
        DatabaseRemains(str(path))

    connection = connect_plainly(path)
    connection.execute("PRAGMA application_id = 7")
    connection.close()
    with pytest.raises(CorruptError, match="is a database of another program"):
        DatabaseRemains(str(path))


def test_another_programs_database_without_checksums_is_not_told_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs(id); INSERT INTO theirs VALUES(1)")
    connection.close()

    with pytest.raises(CorruptError, match="is a database of another program"):
        DatabaseRemains(str(path))


def test_a_copy_is_made_while_nobody_writes_and_named_as_the_original(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(30))

    folder = tmp_path / "copy"
    folder.mkdir()
    remains = DatabaseRemains(copy_database(str(path), str(folder)), name=str(path))
    found = check_integrity(remains.file, str(folder))

    assert remains.path == str(path)
    assert remains.damages == found == []
    remains.close()
    finish(store.close())


def test_what_is_written_after_the_copy_is_not_missed_in_it(tmp_path: Path) -> None:
    path, folder = tmp_path / "whole.db", tmp_path / "copy"
    folder.mkdir()
    store = open_at(path)
    fill(store, range(20))
    finish(store.close())
    copy = copy_database(str(path), str(folder))
    store = open_at(path)
    fill(store, range(20, 40))

    remains = DatabaseRemains(copy, name=str(path))

    assert remains.damages == []
    remains.close()
    finish(store.close())


def test_what_only_sqlite_knows_to_be_wrong_is_told(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(30))
    finish(store.close())
    connection = connect_plainly(path)
    connection.execute("PRAGMA writable_schema = 1")
    connection.execute("UPDATE sqlite_schema SET rootpage = 9 WHERE name = 'log_by_token'")
    connection.close()

    remains = DatabaseRemains(str(path))

    assert any("SQLite says" in damage.what for damage in check_integrity(remains.file, str(tmp_path)))
    remains.close()


def test_a_lost_name_gives_the_space_another_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(30))
    finish(store.close())
    connection = connect_plainly(path)
    connection.execute("DELETE FROM spaces WHERE name = ?", (b"run",))
    connection.close()

    remains = DatabaseRemains(str(path))

    names = [space.name for space in remains.spaces()]
    assert len(names) == 2
    assert names[0].startswith("recovered/")
    assert len(list(remains.entries(names[0]))) > 30
    assert [(d.what, d.space) for d in remains.damages] == [
        (f"the name of space number {names[0].rpartition('/')[2]} is lost", names[0])
    ]
    remains.close()


def test_rows_of_a_dropped_space_stay_dropped(tmp_path: Path) -> None:
    path = tmp_path / "whole.db"
    store = open_at(path)
    fill(store, range(300))
    finish(store.drop("run"))
    apply(store, "run", Put(b"\x01new", b"1"))
    finish(store.close())

    remains = DatabaseRemains(str(path))

    assert remains.damages == []
    assert [entry.key for entry in remains.entries("run")] == [b"\x01new"]
    remains.close()


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_much_damage_at_once_brings_nothing_back_that_was_replaced_or_deleted(
    closed: Whole, logged: Whole, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    before = data.draw(st.sampled_from([closed, logged]))
    database = bytearray(before.database)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(database) - 1))
        size = data.draw(st.sampled_from([1, 300, PAGE_BYTES, 3 * PAGE_BYTES]))
        database[at : at + size] = data.draw(st.sampled_from([b"\0", b"\xa5"])) * len(
            database[at : at + size]
        )
    if data.draw(st.booleans()):
        del database[data.draw(st.integers(PAGE_BYTES, len(database) - 1)) :]

    remains = read(tmp_path_factory.mktemp("much"), bytes(database), before.log)

    named = {row for row in held(remains) if not row[0].startswith("recovered/")}
    assert named <= before.rows
    remains.close()
