"""What SQLite's store says when the disk, another program or a stranger's hand gets in its way."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from keepstate_testing.faults.disk import FailingDisk

from keepstate._finish import finish
from keepstate.errors import (
    CorruptError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Outcome, Put
from keepstate.stores.sqlite import connection as connections
from keepstate.stores.sqlite import writer as writers
from tests.stores.sqlite.conftest import Opens

A, B, DOC = b"\x01a", b"\x01b", b"\x02doc"
MARK = b"a value that is easy to find in a file"


def put(store: StoreBase, *keys: bytes, value: bytes = b"", token: bytes | None = None) -> list[Outcome]:
    """Apply one batch a key."""
    return finish(store.apply([Batch("s", [Put(key, value)], token=token) for key in keys]))


def value_of(store: StoreBase, key: bytes) -> bytes | None:
    entry = finish(store.read("s", [key])).entries[0]
    return entry.value if entry else None


# ---- the disk


def test_a_full_disk_refuses_the_write_and_keeps_all_else(disk: FailingDisk, opened: Opens) -> None:
    store = opened()
    put(store, A, value=b"1")
    disk.room_bytes = 0

    outcomes = put(store, A, B, value=bytes(100_000))

    assert [type(outcome) for outcome in outcomes] == [StoreFullError] * 2
    assert "Free space" in str(outcomes[0])
    assert value_of(store, A) == b"1"
    disk.room_bytes = None
    assert isinstance(put(store, A, value=b"2")[0], Applied)


def test_a_batch_too_large_for_the_disk_takes_no_other_with_it(disk: FailingDisk, opened: Opens) -> None:
    store = opened()
    put(store, A)
    disk.room_bytes = 500_000
    small, large = Batch("s", [Put(B, b"small")]), Batch("s", [Put(A, bytes(1 << 20))])

    outcomes = finish(store.apply([small, large, small]))

    assert [type(outcome) for outcome in outcomes] == [Applied, StoreFullError, Applied]
    assert value_of(store, A) == b""


def test_a_failed_sync_leaves_the_outcome_unknown_and_the_store_read_only(
    disk: FailingDisk, opened: Opens
) -> None:
    store = opened()
    put(store, A, value=b"1")
    disk.fail("sync", ends="-wal", times=None)

    [unknown] = put(store, A, value=b"2", token=b"t")
    disk.mend()
    [refused] = put(store, A, value=b"3")

    assert isinstance(unknown, OutcomeUnknownError)
    assert (unknown.token, unknown.space) == (b"t", "s")
    assert "Call outcome(b't')" in str(unknown)
    assert type(refused) is StorageError
    assert "takes no more writes" in str(refused)
    assert value_of(store, A) == b"1"


def test_a_limit_on_the_size_of_files_is_a_lack_of_room_that_can_be_mended(path: Path, opened: Opens) -> None:
    store = opened()
    put(store, A, value=b"1")
    with limited(path.with_name(f"{path.name}-wal").stat().st_size + 4096):
        [full] = put(store, A, value=bytes(500_000), token=b"t")
        still = value_of(store, A)
    put(store, B, value=b"3")

    assert isinstance(full, StoreFullError)
    assert "Nothing was written" in str(full)
    assert still == b"1"
    assert (value_of(store, A), value_of(store, B)) == (b"1", b"3")


@contextmanager
def limited(size_bytes: int) -> Iterator[None]:
    """Let this process write no file beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_without_a_token_the_outcome_shows_when_it_is_opened_again(disk: FailingDisk, opened: Opens) -> None:
    store = opened()
    disk.fail("sync", ends="-wal", times=None)

    [unknown] = put(store, A, value=b"2")

    assert isinstance(unknown, OutcomeUnknownError)
    assert unknown.token is None
    assert str(unknown).endswith(f"Open {store.url} again and read the space.")


def test_a_store_that_turned_read_only_writes_again_when_opened_anew(
    disk: FailingDisk, opened: Opens
) -> None:
    store = opened()
    put(store, A, value=b"1")
    disk.fail("sync", ends="-wal", times=None)
    put(store, A, value=b"2")
    disk.mend()
    finish(store.close())

    again = opened()

    assert isinstance(put(again, A, value=b"3")[0], Applied)
    assert value_of(again, A) == b"3"


def test_a_checkpoint_that_fails_takes_no_acknowledged_write_with_it(
    disk: FailingDisk, opened: Opens
) -> None:
    store = opened()
    disk.fail("sync", ends=".db", times=None)
    keys = [b"\x01%d" % i for i in range(writers.CHECKPOINT_BYTES // 500_000 + 2)]

    outcomes = [put(store, key, value=bytes(500_000))[0] for key in keys]

    kept = [key for key, outcome in zip(keys, outcomes, strict=True) if isinstance(outcome, Applied)]
    assert len(kept) >= len(keys) - 2
    assert type(outcomes[-1]) is StorageError
    assert [value_of(store, key) for key in kept] == [bytes(500_000)] * len(kept)


# ---- other programs


def test_a_program_that_keeps_the_file_locked_is_waited_for_and_named(path: Path, opened: Opens) -> None:
    store = opened(wait_s=0.05)
    stranger = apsw.Connection(str(path))
    stranger.execute("BEGIN IMMEDIATE")

    [outcome] = put(store, A)
    stranger.execute("ROLLBACK")
    stranger.close()

    assert type(outcome) is StoreUnavailableError
    assert str(path) in str(outcome)
    assert isinstance(put(store, A)[0], Applied)


def test_a_process_that_keeps_the_lock_file_is_named(path: Path, opened: Opens) -> None:
    store = opened(wait_s=0.05)
    script = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, f"{path}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    [outcome] = put(store, A)
    holder.communicate("\n", timeout=60)

    assert type(outcome) is StoreUnavailableError
    assert f"{path}.lock" in str(outcome)
    assert isinstance(put(store, A)[0], Applied)


@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
def test_a_file_removed_while_open_acknowledges_nothing(path: Path, opened: Opens, end: str) -> None:
    """As when somebody in the process opened and closed the database by other means, and its locks went."""
    store = opened()
    put(store, A)
    path.with_name(path.name + end).unlink()

    [outcome] = put(store, B)

    assert isinstance(outcome, CorruptError)
    assert outcome.place == f"{path}{end}"
    with pytest.raises(CorruptError):
        value_of(store, A)
    assert isinstance(put(store, A)[0], CorruptError)


def test_a_file_put_in_its_place_is_noticed(path: Path, opened: Opens) -> None:
    store = opened()
    put(store, A)
    other = path.with_name("other.db")
    other.write_bytes(path.read_bytes())
    other.replace(path)

    assert isinstance(put(store, B)[0], CorruptError)


# ---- damaged bytes


def flip(path: Path, mark: bytes) -> None:
    """Change one byte of every place in the file where the mark stands."""
    damaged = path.read_bytes()
    assert mark in damaged
    path.write_bytes(damaged.replace(mark, mark[:-1] + b"?"))


def change(path: Path, table: str, column: str) -> None:
    """Change the rows that hold the mark, in pages whose checksums are right: as a stranger's hand would."""
    connection = apsw.Connection(str(path), vfs=connections.file_system())
    connection.execute(
        f"UPDATE {table} SET {column} = CAST(replace({column}, ?, ?) AS BLOB)", (MARK, MARK[:-1] + b"?")
    )
    connection.close()


def test_a_flipped_byte_is_corrupt_wherever_it_is_read(path: Path, opened: Opens) -> None:
    store = opened()
    put(store, A, value=MARK)
    finish(store.close())
    flip(path, MARK)

    again = opened()

    reads: list[Callable[[], object]] = [
        lambda: finish(again.read("s", [A])),
        lambda: finish(again.scan("s", b"\x01")),
    ]
    for read in reads:
        with pytest.raises(CorruptError, match="does not match its checksum") as caught:
            read()
        assert caught.value.place == str(path)


def test_a_changed_value_is_corrupt_and_named(path: Path, opened: Opens) -> None:
    store = opened()
    put(store, A, value=MARK)
    put(store, B, value=b"whole")
    finish(store.close())
    change(path, "entries", "value")

    again = opened()

    reads: list[Callable[[], object]] = [
        lambda: finish(again.read("s", [A])),
        lambda: finish(again.scan("s", b"\x01")),
    ]
    for read in reads:
        with pytest.raises(CorruptError, match="from a backup") as caught:
            read()
        assert (caught.value.place, caught.value.space) == (str(path), "s")
        assert repr(A) in str(caught.value)
    assert value_of(again, B) == b"whole"


def test_a_changed_row_of_the_log_is_corrupt_and_named(path: Path, opened: Opens) -> None:
    store = opened()
    put(store, DOC, value=MARK)
    put(store, DOC, value=b"replaced")
    finish(store.close())
    change(path, "log", "changes")

    again = opened()

    with pytest.raises(CorruptError, match="revision 1"):
        finish(again.changes("s", 0))
    assert [change.revision for change in finish(again.changes("s", 2)).items] == []
    assert value_of(again, DOC) == b"replaced"


def test_a_damaged_value_is_its_own_batch_s_error(path: Path, opened: Opens) -> None:
    """The log would keep it as the old value, as if it had ever been one."""
    store = opened()
    put(store, DOC, value=MARK)
    finish(store.close())
    change(path, "entries", "value")

    outcomes = put(opened(), A, DOC, B)

    assert [type(outcome) for outcome in outcomes] == [Applied, CorruptError, Applied]


def test_a_damaged_page_is_corrupt(path: Path, opened: Opens) -> None:
    store = opened()
    for i in range(100):
        put(store, b"\x01%d" % i, value=bytes(500))
    finish(store.close())
    pages = bytearray(path.read_bytes())
    for start in range(4096, len(pages), 4096):
        pages[start : start + 8] = b"\xff" * 8
    path.write_bytes(pages)

    with pytest.raises(CorruptError) as caught:
        value_of(opened(), A)

    assert caught.value.place == str(path)
