"""A disk that refuses, shortens and records what a file store and SQLite ask of it, in the same words."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import apsw
import pytest
from keepstate_testing.faults.disk import Cut, DiskFiles, FailingDisk, Opened, Replaced, Synced, Wrote, flip
from keepstate_testing.faults.power import Recorder
from keepstate_testing.faults.vfs import beneath_sqlite

from keepstate.stores.sqlite import connection as connections


def test_a_fault_strikes_at_its_turn_and_as_often_as_it_was_told() -> None:
    disk = FailingDisk()
    disk.fail("write", errno.ENOSPC, nth=2, times=2, ends=".db")

    answers: list[int | None] = []
    for path in ("a.db", "other", "a.db", "a.db", "a.db"):
        try:
            answers.append(disk.asked("write", path, 10))
        except OSError as error:
            answers.append(-(error.errno or 0))

    assert answers == [10, 10, -errno.ENOSPC, -errno.ENOSPC, 10]
    assert disk.refused == 2


def test_a_disk_without_room_takes_what_it_can_and_then_nothing() -> None:
    disk = FailingDisk()
    disk.room_bytes = 15

    assert disk.asked("write", "a", 10, 10) == 5
    with pytest.raises(OSError, match="No space"):
        disk.asked("write", "a", 10, 20)

    disk.mend()
    assert disk.asked("write", "a", 10, 20) == 10


def test_a_short_write_takes_so_many_bytes() -> None:
    disk = FailingDisk()
    disk.fail("write", taken=3)

    assert [disk.asked("write", "a", 10), disk.asked("write", "a", 10)] == [3, 10]


def test_files_are_recorded_by_path_also_after_they_were_renamed(tmp_path: Path) -> None:
    recorder = Recorder()
    files = DiskFiles(recorder)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")

    descriptor = files.open(old, os.O_RDWR | os.O_CREAT)
    files.write(descriptor, memoryview(b"abc"), 0)
    files.replace(new, old)
    files.sync(descriptor)
    files.truncate(descriptor, 1)
    files.close(descriptor)

    assert recorder.moments == [
        Opened(old, True), Wrote(old, 0, b"abc"), Replaced(new, old), Synced(new), Cut(new, 1),
    ]  # fmt: skip
    assert (tmp_path / "new").read_bytes() == b"a"


def test_what_sqlite_writes_is_seen_with_its_checksums(tmp_path: Path) -> None:
    recorder, path = Recorder(), tmp_path / "a.db"
    with beneath_sqlite(recorder):
        connection = apsw.Connection(str(path), vfs=connections.file_system())
        connections.reserve(connection)
        connection.execute("CREATE TABLE t (a)")
        connection.close()

    written = {
        one.at: one.data for one in recorder.moments if isinstance(one, Wrote) and one.path == str(path)
    }

    data = path.read_bytes()
    assert data == b"".join(written[at] for at in sorted(written))
    assert data[20] == 8
    assert data[4_088:4_096] != bytes(8)


def test_stores_opened_elsewhere_go_by_no_disk(tmp_path: Path) -> None:
    recorder = Recorder()
    with beneath_sqlite(recorder):
        pass

    apsw.Connection(str(tmp_path / "a.db"), vfs=connections.file_system()).execute(
        "CREATE TABLE t (a)"
    ).close()

    assert recorder.moments == []
    assert connections.file_system() in apsw.vfs_names()


def test_flip_turns_one_bit() -> None:
    assert flip(b"\x00\x00", 1, 3) == b"\x00\x08"
    assert flip(flip(b"keep", 2, 7), 2, 7) == b"keep"
