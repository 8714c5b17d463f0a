"""A write-ahead log with a gap, and a database that was copied without its log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.recovery.pagefile import PageFile
from keepstate.stores.recovery.sqlite import DatabaseRemains
from keepstate.stores.sqlite import SqliteStore, files

FRAME = 24 + 4096
HEAD = 32


def write(store: SqliteStore, number: int) -> None:
    (outcome,) = finish(store.apply([Batch("run", [Put(b"\x01%04d" % number, b"%04d " % number * 180)])]))
    assert isinstance(outcome, Applied)


def crashed(folder: Path, count: int) -> Path:
    """A database whose writes all stand in its log, as a kill leaves it, without its lock file."""
    path = folder / "store.db"
    store = finish(SqliteStore(path, durability="normal", runner=ThreadRunner()).open())
    for number in range(count):
        write(store, number)
    (folder / "copy").mkdir()
    for end in ("", "-wal"):
        shutil.copyfile(f"{path}{end}", folder / "copy" / f"store.db{end}")
    finish(store.close())
    return folder / "copy" / "store.db"


def damage(path: Path, first: int, count: int, filling: bytes) -> None:
    """Overwrite frames of the log; the head too if `first` is 0."""
    log = path.with_name("store.db-wal")
    data = bytearray(log.read_bytes())
    start = HEAD + first * FRAME if first else 0
    end = HEAD + (first + count) * FRAME
    assert end < len(data)
    data[start:end] = (filling * (end - start))[: end - start]
    log.write_bytes(data)


def work(path: Path) -> int:
    """Return how many checksums of frames it takes to read a log."""
    file = PageFile(str(path), name=str(path))
    file.close()
    return file.sums


@pytest.mark.parametrize("filling", [b"\0", b"\xa5", b"damage"], ids=["zeros", "bytes", "words"])
def test_reading_a_log_with_a_gap_costs_in_proportion_to_its_length(filling: bytes, tmp_path: Path) -> None:
    sums: list[int] = []
    for count in (60, 120, 240):
        place = tmp_path / str(count)
        place.mkdir()
        path = crashed(place, count)
        damage(path, 5, 2 * count, filling)
        sums.append(work(path))

    assert sums[1] < 2.5 * sums[0]
    assert sums[2] < 2.5 * sums[1]


def test_a_log_whose_frames_are_all_damaged_costs_a_few_checksums_each(tmp_path: Path) -> None:
    path = crashed(tmp_path, 80)
    log = path.with_name("store.db-wal")
    data = bytearray(log.read_bytes())
    for at in range(HEAD, len(data) - FRAME, FRAME):
        data[at + 24 : at + 40] = b"\xff" * 16
    log.write_bytes(data)

    assert work(path) < 6 * len(data) / FRAME


@pytest.mark.parametrize("first", [0, 8], ids=["from the head on", "in the middle"])
def test_what_stands_behind_a_gap_of_zeros_is_saved(first: int, tmp_path: Path) -> None:
    path = crashed(tmp_path, 60)
    damage(path, first, 60, b"\0")

    remains = DatabaseRemains(str(path))

    (space,) = [space for space in remains.spaces() if space.exists]
    found = {entry.key: entry.value for entry in remains.entries(space.name)}
    assert {b"\x01%04d" % number for number in range(45, 60)} <= found.keys()
    assert all(value == (key[1:] + b" ") * 180 for key, value in found.items())
    assert any("frames of the log are zeros" in damage.what for damage in remains.damages)
    remains.close()


def test_a_database_that_was_copied_without_its_log_is_refused(tmp_path: Path) -> None:
    path = crashed(tmp_path, 20)
    path.with_name("store.db-wal").unlink()
    before = path.read_bytes()

    with pytest.raises(CorruptError, match="copied without that file"):
        finish(SqliteStore(path, runner=ThreadRunner()).open())

    assert path.read_bytes() == before
    assert [found.name for found in path.parent.iterdir()] == ["store.db"]


def test_the_name_of_the_lock_file_is_synced_before_there_is_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    monkeypatch.setattr(files, "sync_folder", lambda path: synced.append(os.listdir(path)))

    for _ in range(2):
        store = SqliteStore(tmp_path / "store.db", runner=ThreadRunner())
        finish(store.open())
        finish(store.close())

    assert synced == [["store.db.lock"]]


def test_repair_says_of_a_database_without_its_log_what_is_missing(tmp_path: Path) -> None:
    path = crashed(tmp_path, 20)
    path.with_name("store.db-wal").unlink()

    remains = DatabaseRemains(str(path))

    assert remains.spaces() == []
    assert "does not hold its tables" in remains.damages[0].what
    remains.close()


def test_a_database_whose_making_was_killed_is_made_by_the_next_process(tmp_path: Path) -> None:
    path = crashed(tmp_path, 1)
    path.with_name("store.db-wal").unlink()
    path.with_name("store.db.lock").touch()  # made before the database

    store = finish(SqliteStore(path, runner=ThreadRunner()).open())

    write(store, 1)
    finish(store.close())
