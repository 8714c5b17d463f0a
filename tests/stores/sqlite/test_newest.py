"""A write-ahead log that lost its end, or its head, is damage: the lock file knows what was acknowledged."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate.errors import CorruptError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.sqlite import durable_mark
from tests.stores.sqlite.conftest import Opens

A = b"\x01a"


def put(store: StoreBase, space: str = "s", value: bytes = b"") -> None:
    [outcome] = finish(store.apply([Batch(space, [Put(A, value)])]))
    assert isinstance(outcome, Applied)


def crashed(path: Path, name: str = "crashed") -> Path:
    """Return a copy of the files as a killed process would leave them."""
    folder = path.with_name(name)
    folder.mkdir()
    for end in ("", "-wal", ".lock"):
        shutil.copy(f"{path}{end}", folder)
    return folder / path.name


def cut(path: Path, size: int) -> None:
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(log.read_bytes()[:size])


@pytest.mark.parametrize("durability", ["full", "normal"])
@pytest.mark.parametrize("kept", [0, 1, 32, 5_000, -1])
def test_a_log_that_was_cut_off_is_refused_and_not_touched(
    path: Path, opened: Opens, durability: str, kept: int
) -> None:
    store = opened(durability=durability)
    for _ in range(3):
        put(store)
    copy = crashed(path)
    cut(copy, kept)
    before = copy.read_bytes(), Path(f"{copy}-wal").read_bytes()

    for _ in range(2):
        with pytest.raises(CorruptError, match="last acknowledged writes are not in it") as caught:
            opened(copy, durability=durability)

    assert caught.value.place == f"{copy}-wal"
    assert (copy.read_bytes(), Path(f"{copy}-wal").read_bytes()) == before


def test_a_whole_log_is_taken_whatever_the_note_says(path: Path, opened: Opens) -> None:
    store = opened()
    put(store)
    copy = crashed(path)

    for number, note in enumerate([b"", b"newest", b"\xff" * 78, bytes(200)]):
        again = crashed(copy, f"again {number}")
        again.with_name(f"{path.name}.lock").write_bytes(note)
        assert finish(opened(again).read("s", [])).revision == 1


def test_a_space_that_was_dropped_and_cleared_away_is_not_missed(path: Path, opened: Opens) -> None:
    store = opened()
    put(store)
    finish(store.drop("s"))

    assert finish(opened(crashed(path)).read("s", [])).revision == 2


def test_after_a_power_cut_normal_may_have_lost_what_was_noted(
    path: Path, opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(durability="normal")
    put(store)
    put(store)
    copy = crashed(path)
    cut(copy, -1)

    monkeypatch.setattr(durable_mark, "machine_start", lambda: b"after the cut".ljust(36, b"-"))

    assert finish(opened(copy, durability="normal").read("s", [])).revision == 1


def test_after_a_power_cut_full_still_has_what_was_noted(
    path: Path, opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    put(store)
    put(store)
    copy = crashed(path)
    cut(copy, -1)

    monkeypatch.setattr(durable_mark, "machine_start", lambda: b"after the cut".ljust(36, b"-"))

    with pytest.raises(CorruptError):
        opened(copy)


def test_a_database_at_rest_may_be_replaced_by_a_backup(path: Path, opened: Opens) -> None:
    store = opened()
    put(store)
    finish(store.close())
    backup = path.read_bytes()
    store = opened()
    put(store)
    finish(store.close())

    path.write_bytes(backup)

    assert finish(opened().read("s", [])).revision == 1


def test_a_backup_in_place_of_a_crashed_database_is_asked_about(path: Path, opened: Opens) -> None:
    store = opened()
    put(store)
    finish(store.close())
    backup = path.read_bytes()
    store = opened()
    put(store)
    copy = crashed(path)
    copy.write_bytes(backup)
    log, lock = (copy.with_name(f"{copy.name}{end}") for end in ("-wal", ".lock"))
    log.unlink()

    with pytest.raises(CorruptError, match=f"remove {log} and {lock}"):
        opened(copy)

    lock.unlink()
    assert finish(opened(copy).read("s", [])).revision == 1


def test_a_database_that_was_removed_is_made_anew(path: Path, opened: Opens) -> None:
    store = opened()
    put(store)
    copy = crashed(path)
    copy.unlink()
    copy.with_name(f"{copy.name}-wal").unlink()

    assert finish(opened(copy).read("s", [])).revision == 0


@pytest.mark.parametrize("left", [None, b"", b"S"])
def test_a_log_without_its_database_is_not_removed(path: Path, opened: Opens, left: bytes | None) -> None:
    """SQLite removes it, and with it what was acknowledged."""
    store = opened()
    put(store)
    copy = crashed(path)
    log = copy.with_name(f"{copy.name}-wal")
    before = log.read_bytes()
    copy.unlink()
    if left is not None:
        copy.write_bytes(left)

    with pytest.raises(CorruptError, match="cut off or removed") as caught:
        opened(copy)

    assert caught.value.place == str(copy)
    assert log.read_bytes() == before


def moved_by_plain_sqlite(path: Path) -> None:
    """As somebody does who looks at what a crash left, and is the last to close it."""
    connection = sqlite3.connect(path)
    connection.execute("SELECT count(*) FROM log").fetchone()
    connection.close()
    assert not path.with_name(f"{path.name}-wal").exists()


def test_a_log_that_another_program_moved_is_no_damage(
    path: Path, opened: Opens, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    for number in range(50):
        put(store, value=b"%d" % number * 100)
    copy = crashed(path)
    moved_by_plain_sqlite(copy)

    again = opened(copy)

    [entry] = finish(again.read("s", [A])).entries
    assert entry is not None
    assert (entry.value, entry.version) == (b"49" * 100, 50)
    assert len(finish(again.changes("s", 0)).items) == 50
    assert "Another program moved the log" in caplog.text
    finish(again.close())
    assert finish(opened(copy).read("s", [])).revision == 50


def test_a_changed_row_stays_damaged_after_another_program_moved_the_log(path: Path, opened: Opens) -> None:
    store = opened()
    put(store, value=b"a value that is easy to find")
    put(store, space="other", value=b"whole")
    copy = crashed(path)
    moved_by_plain_sqlite(copy)
    before = copy.read_bytes()
    copy.write_bytes(before.replace(b"easy to find", b"easy to f?nd"))

    with pytest.raises(CorruptError):
        finish(opened(copy).read("s", [A]))
