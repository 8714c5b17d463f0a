"""What may happen to a database between two write sections of a process, which keeps rows for the next one.

In each story some other writer, or a failure, comes between. Then a batch of the process must be judged by
what the file holds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

import apsw
import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, StoreUnavailableError
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Outcome, Put, Write
from keepstate.stores.sqlite import SqliteStore, schema, writer
from keepstate.stores.sqlite import connection as connections
from keepstate.stores.sqlite import database as databases
from keepstate.stores.sqlite.durable_mark import Newest
from keepstate.stores.sqlite.files import Files
from keepstate.stores.sqlite.flush import Flush
from keepstate.testing.clocks import ManualClock

SPACE: Final = "space"
A, B, DOC = b"\x01a", b"\x01b", b"\x02doc"
UNCHECKED: Final = b"\x01c"
KEYS: Final = (A, B, DOC)


class Stage:
    """One database with two writers, as of two processes.

    Attributes:
        us: The process whose rows are attacked; its last section has kept rows of all keys.
        others: Another process; its writer, locks and caches are its own.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.clock = folder / "keepstate.db", ManualClock()
        self.open()

    def open(self) -> None:
        """Open the database in both processes."""
        self.us = self._open()
        # The file is not opened by other means, which would drop our locks.
        with patch.object(databases, "acquire", databases.Database), patch.object(writer, "require_log"):
            self.others = self._open()

    def _open(self) -> SqliteStore:
        store = SqliteStore(
            self.path, durability="normal", wait_s=0.05, runner=ThreadRunner(), clock=self.clock
        )
        return finish(store.open())

    def close(self) -> None:
        """Close the other writer last, because its files are those of this process too."""
        others = self.others._open_database
        finish(self.others.close())
        finish(self.us.close())
        others.close(moves_log=False)

    def keep(self) -> None:
        """Let our writer keep the rows of all keys."""
        writes = [Put(key, b"ours") for key in KEYS]
        outcomes = [apply(self.us, *writes, checks=self._checks()) for _ in range(2)]
        numbers = [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)]
        assert numbers == [1, 2], f"a stale row was believed: {outcomes}"

    def _checks(self) -> list[Check]:
        """Return checks of what the file holds, as another process reads it."""
        entries = finish(self.others.read(SPACE, list(KEYS))).entries
        return [
            Check(key, version=entry.version if entry else 0)
            for key, entry in zip(KEYS, entries, strict=True)
        ]

    @contextmanager
    def stranger(self) -> Generator[apsw.Connection]:
        """A program that writes by SQL, and does not know the lock file."""
        connection = apsw.Connection(str(self.path), vfs=connections.file_system())
        connection.create_scalar_function("seal", schema.entry_seal)
        try:
            yield connection
        finally:
            connection.close()

    def judge(self) -> None:
        """Compare the judgement of our writer with what the file holds."""
        revision = finish(self.others.read(SPACE, [])).revision
        for check in self._checks():
            found = apply(self.us, Put(B, b""), checks=[Check(check.key, version=99_999)])
            assert found == Conflict(check.key, check.version or 0), f"a stale row was believed: {found}"
        applied = apply(self.us, Put(DOC, b"judged"), checks=self._checks())
        assert isinstance(applied, Applied), f"a stale row was believed: {applied}"
        assert applied.revision == revision + 1, f"a stale row was believed: {applied} after {revision}"
        sections = (b"\x00", b"\x01", b"\x02")
        entries = [entry for each in sections for entry in finish(self.others.scan(SPACE, each)).entries]
        counted = PartSizes.of(entries).without([])
        sizes = finish(self.others.sizes(SPACE)).parts
        assert sizes == counted, f"a stale row was believed: {sizes} and not {counted}"


def apply(store: SqliteStore, *writes: Write, checks: list[Check] | None = None) -> Outcome:
    """Apply one batch."""
    [outcome] = finish(store.apply([Batch(SPACE, writes, checks or ())]))
    return outcome


# ---- other writers


def others_rewrite(stage: Stage) -> None:
    """Another process rewrites a key."""
    apply(stage.others, Put(A, b"theirs"))


def others_remove(stage: Stage) -> None:
    """Another process removes keys."""
    apply(stage.others, Delete(A), Delete(DOC))


def others_remove_what_we_replaced(stage: Stage) -> None:
    """Another process removes a key that we have replaced without a check, and we write it again."""
    for text in (b"1", b"22"):
        apply(stage.us, Put(UNCHECKED, text))
    apply(stage.others, Delete(UNCHECKED))
    applied = apply(stage.us, Put(UNCHECKED, b"333"))
    assert isinstance(applied, Applied), f"a stale row was believed: {applied}"


def others_drop(stage: Stage) -> None:
    """Another process drops the space, whose number goes to none, and writes to it again."""
    finish(stage.others.drop(SPACE))
    apply(stage.others, Put(A, b"theirs"))


def others_create(stage: Stage) -> None:
    """Another process creates a space that was absent when we looked."""
    finish(stage.us.drop(SPACE))
    assert isinstance(apply(stage.us, Put(A, b""), checks=[Check(A, version=1)]), Conflict)
    apply(stage.others, Put(A, b"theirs"), Put(B, b""))


def others_sweep(stage: Stage) -> None:
    """Another process removes what has expired."""
    apply(stage.us, Put(A, b"", ttl_ms=10), checks=stage._checks())
    apply(stage.us, Put(B, b""), checks=stage._checks())
    stage.clock.advance(20)
    finish(stage.others.sweep())


def others_move_the_log(stage: Stage) -> None:
    """Another process writes, moves the whole log, and begins it again."""
    apply(stage.others, Put(A, b"theirs"))
    stage.others._open_database._writer._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    apply(stage.others, Delete(B))


def twin_writes(stage: Stage) -> None:
    """A second handle of our process writes."""
    twin = finish(stage.us.twin(ThreadRunner()).open())
    apply(twin, Put(A, b"twin's"), Delete(B))
    finish(twin.close())


def child_writes(stage: Stage) -> None:
    """A forked child writes, and ends."""
    child = os.fork()
    if child == 0:
        try:
            apply(stage._open(), Put(A, b"child's"), Delete(B))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


# ---- programs that do not use the lock file


_REWRITES: Final = """
    UPDATE entries SET version = version + 10, seal = seal(key, value, version + 10, expires_at_ms)
    WHERE key = x'0161'
"""


def stranger_commits(stage: Stage) -> None:
    """Another program changes a row."""
    with stage.stranger() as stranger:
        stranger.execute(_REWRITES)


def stranger_commits_before_the_check(stage: Stage) -> None:
    """Another program changes a row between our commit and what follows it under the lock file."""
    _commit_at(stage, Files, "check")


def stranger_commits_before_the_checkpoint(stage: Stage) -> None:
    """Another program changes a row before our checkpoint, which opens a transaction of our connection."""
    with patch.object(writer.Writer, "_checkpoint_at", 0, create=True):
        del stage.us._open_database._writer._checkpoint_at
        _commit_at(stage, Newest, "note")


def _commit_at(stage: Stage, owner: type[Any], name: str) -> None:
    right, commits = getattr(owner, name), 0

    def call(self: Any, *args: Any) -> Any:
        nonlocal commits
        commits += 1
        with stage.stranger() as stranger:
            stranger.execute(_REWRITES)
        return right(self, *args)

    with patch.object(owner, name, call):
        apply(stage.us, Put(B, b""), checks=stage._checks())
    assert commits == 1


def stranger_commits_while_we_wait(stage: Stage) -> None:
    """Another program holds SQLite's lock until we give up, and then commits."""
    with stage.stranger() as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        stranger.execute(_REWRITES)
        assert isinstance(apply(stage.us, Put(A, b"")), StoreUnavailableError)
        stranger.execute("COMMIT")


# ---- failures of our own


def section_fails(stage: Stage) -> None:
    """A section fails after its writes, and rolls back."""

    def work(flush: Flush) -> None:
        flush.apply(Batch(SPACE, [Put(A, b"failed"), Delete(B)], [Check(A, version=2), Check(B, version=2)]))
        flush.drop("other")
        flush.drop(SPACE)
        raise LookupError

    with pytest.raises(LookupError):
        stage.us._open_database.write(work, stage.clock)


def batch_fails_between_others(stage: Stage) -> None:
    """One batch of a flush meets a damaged row, and the others are applied."""
    with stage.stranger() as stranger:
        stranger.execute("UPDATE entries SET seal = seal + 1 WHERE key = x'02646f63'")
    writes = [[Put(A, b"1")], [Put(A, b"2"), Delete(B), Put(DOC, b"")], [Delete(A), Put(B, b"3")]]
    outcomes = finish(stage.us.apply([Batch(SPACE, each) for each in writes]))
    assert [type(outcome) for outcome in outcomes] == [Applied, CorruptError, Applied]
    with stage.stranger() as stranger:
        stranger.execute("UPDATE entries SET seal = seal - 1 WHERE key = x'02646f63'")


_INTERRUPTED: Final = ("/sqlite/flush.py", "/sqlite/revision.py", "/sqlite/files.py")
"""Lines that hold no lock. The writer's own survive interrupts between their instructions only."""


def section_is_interrupted(stage: Stage) -> None:
    """Ctrl-C comes in the work of a section: at each third line, to save time."""
    line = 1
    while _is_interrupted(stage, line):
        stage.judge()
        line += 3
    assert line > 100


def _is_interrupted(stage: Stage, line: int) -> bool:
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(_INTERRUPTED):
            return None
        left -= event == "line"
        if left == 0 and event == "line":
            raise KeyboardInterrupt
        return trace

    checks = stage._checks()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        apply(stage.us, Put(A, b"1"), Put(b"\x00object", b""), checks=checks)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# ---- other files


def backup_takes_the_place(stage: Stage) -> None:
    """A backup replaces the file while it is open: nothing is acknowledged before it is opened again."""
    backup = stage.path.read_bytes(), stage.path.with_name("keepstate.db-wal").read_bytes()
    apply(stage.us, Put(A, b"lost"), checks=stage._checks())
    files = [stage.path, stage.path.with_name("keepstate.db-wal"), stage.path.with_name("keepstate.db.lock")]
    for file, content in zip(files, (*backup, b""), strict=True):
        other = file.with_name("other")
        other.write_bytes(content)
        other.replace(file)
    assert isinstance(apply(stage.us, Put(A, b"lost"), checks=[Check(A, version=3)]), CorruptError)
    stage.close()
    stage.open()


STORIES: Final[tuple[Callable[[Stage], None], ...]] = (
    others_rewrite,
    others_remove,
    others_remove_what_we_replaced,
    others_drop,
    others_create,
    others_sweep,
    others_move_the_log,
    twin_writes,
    child_writes,
    stranger_commits,
    stranger_commits_before_the_check,
    stranger_commits_before_the_checkpoint,
    stranger_commits_while_we_wait,
    section_fails,
    batch_fails_between_others,
    section_is_interrupted,
    backup_takes_the_place,
)


def tell(story: Callable[[Stage], None], folder: Path) -> None:
    """Play one story in an empty folder, and judge our writer after it."""
    stage = Stage(folder)
    try:
        stage.keep()
        story(stage)
        stage.judge()
        stage.judge()  # after a section that kept rows again
    finally:
        stage.close()
