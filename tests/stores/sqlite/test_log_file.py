"""The write-ahead log is moved when it has grown, and all of it at the end."""

from __future__ import annotations

import logging
from pathlib import Path

import apsw
import pytest

from keepstate._finish import finish
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.sqlite.writer import CHECKPOINT_BYTES
from tests.stores.sqlite.conftest import Opens

VALUE = bytes(100_000)


@pytest.fixture
def log_file(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def write(store: StoreBase, size_bytes: int) -> None:
    for i in range(size_bytes // len(VALUE)):
        [outcome] = finish(store.apply([Batch("s", [Put(b"\x01%d" % (i % 50), VALUE)])]))
        assert isinstance(outcome, Applied)


def test_the_log_stays_small_while_much_is_written(log_file: Path, opened: Opens) -> None:
    write(opened(), 6 * CHECKPOINT_BYTES)

    assert log_file.stat().st_size < 1.5 * CHECKPOINT_BYTES


def test_the_last_close_leaves_everything_in_the_file(path: Path, log_file: Path, opened: Opens) -> None:
    store, second = opened(), opened()
    write(store, 1_000_000)
    finish(second.close())
    assert log_file.stat().st_size > 0

    finish(store.close())

    assert log_file.stat().st_size == 0
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    assert finish(opened(copy).read("s", [])).revision == 10


def test_a_log_that_a_reader_needs_is_moved_when_it_has_gone(
    path: Path, log_file: Path, opened: Opens, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    write(store, 100_000)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchall()

    with caplog.at_level(logging.WARNING, logger="keepstate"):
        write(store, 2 * CHECKPOINT_BYTES)
    grown = log_file.stat().st_size
    reader.execute("COMMIT")
    reader.close()
    write(store, 6 * CHECKPOINT_BYTES)

    assert grown > 2 * CHECKPOINT_BYTES
    assert log_file.stat().st_size < grown + 1.5 * CHECKPOINT_BYTES
    assert caplog.records == []


def test_a_file_copied_without_its_lock_file_opens(path: Path, opened: Opens) -> None:
    finish(opened().close())
    path.with_name(path.name + ".lock").unlink()

    write(opened(), 100_000)

    assert path.with_name(path.name + ".lock").exists()
