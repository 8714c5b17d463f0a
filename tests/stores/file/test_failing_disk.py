"""A disk that fails or is full: a named error, nothing half-written, nothing acknowledged lost."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import (
    CorruptError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.file import FileStore
from keepstate.stores.protocol import Applied, Batch, Check, Put
from keepstate.testing.clocks import ManualClock
from tests.stores.file.disks import (
    SPACE,
    A,
    B,
    FailingFiles,
    SlowFiles,
    opened,
    outcome_of,
    put,
    revision,
    values,
)

BIG = b"x" * 100_000


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.mark.parametrize("room", [0, 1, 32, 33, 40])
def test_a_full_disk_refuses_the_write_and_loses_nothing(path: Path, files: FailingFiles, room: int) -> None:
    store = opened(path, files)
    put(store, Put(A, b"1"))
    before = path.read_bytes()

    files.end = len(before) + room
    refused = outcome_of(store, Put(A, b"2"))
    files.end = None

    assert isinstance(refused, StoreFullError)
    assert "Free space" in str(refused)
    assert path.read_bytes() == before
    assert (revision(store), values(store)) == (1, [b"1", None])
    assert put(store, Put(A, b"3")) == 2
    finish(store.close())
    again = opened(path)
    assert values(again) == [b"3", None]
    finish(again.close())


def test_a_smaller_batch_of_a_refused_flush_finds_room(path: Path, files: FailingFiles) -> None:
    store = opened(path, files)

    files.end = path.stat().st_size + 1_000
    big, small = finish(store.apply([Batch(SPACE, [Put(A, BIG)]), Batch(SPACE, [Put(B, b"small")])]))

    assert isinstance(big, StoreFullError)
    assert isinstance(small, Applied)
    assert values(store) == [None, b"small"]
    finish(store.close())


def test_what_a_refused_flush_would_have_swept_is_swept_later(path: Path, files: FailingFiles) -> None:
    clock = ManualClock()
    store = finish(FileStore(path, runner=ThreadRunner(), files=files, clock=clock).open())
    put(store, Put(A, b"1", ttl_ms=1_000))
    clock.advance(1_000)

    files.end = path.stat().st_size
    assert isinstance(outcome_of(store, Put(B, b"1")), StoreFullError)
    files.end = None

    assert finish(store.sweep()) == 1
    assert revision(store) == 2
    finish(store.close())


def test_a_failed_write_is_cut_off_and_can_be_tried_again(path: Path, files: FailingFiles) -> None:
    store = opened(path, files)
    files.failing["write"] = errno.EIO

    assert isinstance(outcome_of(store, Put(A, b"1")), StoreUnavailableError)

    files.failing.clear()
    assert put(store, Put(A, b"1")) == 1
    finish(store.close())


def test_a_half_write_that_cannot_be_cut_off_closes_the_journal_for_writing(
    path: Path, files: FailingFiles
) -> None:
    store = opened(path, files)
    put(store, Put(A, b"1"))
    files.end, files.failing["truncate"] = path.stat().st_size + 20, errno.EIO

    assert isinstance(outcome_of(store, Put(A, b"2")), StoreFullError)
    files.end = None
    later = outcome_of(store, Put(A, b"3"))

    assert type(later) is StorageError
    assert "open it again" in str(later)
    assert values(store) == [b"1", None]
    finish(store.close())
    again = opened(path)
    assert put(again, Put(A, b"4")) == 2
    finish(again.close())


def test_after_a_failed_sync_nothing_is_written_until_it_is_opened_again(
    path: Path, files: FailingFiles
) -> None:
    store = opened(path, files)
    put(store, Put(A, b"1"))
    syncs, size = files.syncs, path.stat().st_size
    files.failing["sync"] = errno.EIO

    unknown = outcome_of(store, Put(A, b"2"))
    files.failing.clear()
    size_then = path.stat().st_size
    later = outcome_of(store, Put(A, b"3"))

    assert isinstance(unknown, OutcomeUnknownError)
    assert type(later) is StorageError
    assert "the disk failed" in str(later)
    assert (files.syncs, path.stat().st_size) == (syncs, size_then)
    assert size_then > size
    assert values(store) == [b"1", None], "what is not durable is not read"
    finish(store.close())
    again = opened(path)
    assert values(again) in ([b"1", None], [b"2", None])
    put(again, Put(A, b"4"))
    finish(again.close())


def test_nobody_reads_what_is_not_yet_durable(path: Path) -> None:
    files = SlowFiles()
    store = opened(path, files)
    put(store, Put(A, b"1"))
    files.is_slow = True
    writer = threading.Thread(target=put, args=(store, Put(A, b"2"), Put(B, b"2")))
    writer.start()
    assert files.reached.wait(60)

    during = values(store), revision(store), finish(store.changes(SPACE, 0)).upto
    pages = [entry.value for entry in finish(store.scan(SPACE, b"\x01")).entries]
    files.go_on.set()
    writer.join()

    assert during == ([b"1", None], 1, 1)
    assert pages == [b"1"]
    assert (values(store), revision(store)) == ([b"2", b"2"], 2)
    finish(store.close())


def test_nothing_expires_for_readers_while_a_write_that_relies_on_it_is_made_durable(path: Path) -> None:
    files, clock = SlowFiles(), ManualClock()
    store = finish(FileStore(path, runner=ThreadRunner(), files=files, clock=clock).open())
    put(store, Put(A, b"1", ttl_ms=100))
    files.is_slow = True
    batch = Batch(SPACE, [Put(B, b"2")], [Check(A, version=1)])
    writer = threading.Thread(target=lambda: finish(store.apply([batch])))
    writer.start()
    assert files.reached.wait(60)

    clock.advance(100)
    during = values(store)
    files.go_on.set()
    writer.join()

    assert (during, values(store)) == ([b"1", None], [None, b"2"])
    finish(store.close())


def test_writers_that_wait_for_a_sync_share_the_next_one(path: Path) -> None:
    files = SlowFiles()
    store = opened(path, files)
    files.is_slow = True
    writers = [threading.Thread(target=put, args=(store, Put(b"\x01%d" % i, b""))) for i in range(20)]

    for writer in writers:
        writer.start()
    assert files.reached.wait(60)
    files.go_on.set()
    for writer in writers:
        writer.join()

    assert revision(store) == 20
    assert store.flushes < 20
    finish(store.close())


def test_a_journal_that_was_removed_is_found_out_at_the_next_write(path: Path, files: FailingFiles) -> None:
    store = opened(path, files)
    put(store, Put(A, b"1"))
    path.unlink()

    lost = outcome_of(store, Put(A, b"2"))

    assert isinstance(lost, CorruptError)
    assert "removed or replaced" in str(lost)
    assert values(store) == [b"1", None]
    assert isinstance(outcome_of(store, Put(A, b"3")), StorageError)
    finish(store.close())


@pytest.mark.parametrize("call", ["write", "sync", "replace"])
def test_a_rewrite_that_fails_leaves_the_journal_as_it_was(
    path: Path, files: FailingFiles, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(path, files)
    for i in range(4):
        put(store, Put(B, bytes([i]) * 1_000_000))
    before = path.read_bytes()
    fails_from_now = FailingOnRewrite(files, call)
    with fails_from_now, caplog.at_level(logging.WARNING, "keepstate.stores"):
        put(store, Put(B, bytes([4]) * 1_000_000))

    assert fails_from_now.happened
    assert path.read_bytes().startswith(before)
    assert not path.with_name("journal.new").exists()
    assert "keeps its size" in caplog.text
    put(store, Put(A, b"goes on"))
    finish(store.close())
    again = opened(path)
    assert values(again) == [b"goes on", bytes([4]) * 1_000_000]
    finish(again.close())


class FailingOnRewrite:
    """Makes a call fail from the moment in which the next journal is opened."""

    def __init__(self, files: FailingFiles, call: str) -> None:
        self.files, self.call, self.happened = files, call, False
        self._open = files.open

    def __enter__(self) -> None:
        def open_and_fail(path: str, flags: int, mode: int = 0o666) -> int:
            self.files.failing[self.call] = errno.EIO
            self.happened = True
            return self._open(path, flags, mode)

        self.files.open = open_and_fail  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self.files.failing.clear()
        self.files.open = self._open  # type: ignore[method-assign]


@pytest.mark.parametrize(("number", "kind"), [(errno.EACCES, StorageError), (errno.ENOSPC, StoreFullError)])
def test_a_journal_that_cannot_be_made_says_why(
    path: Path, files: FailingFiles, number: int, kind: type[StorageError]
) -> None:
    files.failing["write"] = number

    with pytest.raises(kind, match=str(path)):
        opened(path, files)

    assert not path.exists()
    files.failing.clear()
    finish(opened(path, files).close())


def test_what_a_crash_left_and_cannot_be_removed_is_named(path: Path, files: FailingFiles) -> None:
    finish(opened(path).close())
    path.with_name("journal.new").touch()
    files.failing["remove"] = errno.EIO

    with pytest.raises(StoreUnavailableError, match=str(path)):
        opened(path, files)

    files.failing.clear()
    finish(opened(path, files).close())
    assert not path.with_name("journal.new").exists()
