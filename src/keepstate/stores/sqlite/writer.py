"""The process's only writing connection to a file, its write sections, and the checkpoints.

A section takes the thread lock first, then the lock file, then `BEGIN IMMEDIATE`. The files are checked
before a write is acknowledged, because a write to a file that was replaced under SQLite is lost.

Ctrl-C raises in the main thread wherever Python code runs. So each of the three is acquired inside the block
that releases it. The first call in that block releases it, and that call is not a Python function, so even
two interrupts in a row come before or after the release.

All SQLite versions from 3.7.0 to 3.51.2 can lose commits when two checkpoints run concurrently with a commit
that restarts the log. Here they never overlap: SQLite's automatic checkpoints are off, and a checkpoint holds
the lock file, and SQLite's write lock against other programs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import apsw

from keepstate._clock import Clock
from keepstate.errors import (
    ClosedError,
    CorruptError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
)
from keepstate.stores.clock_leaps import SecondClock
from keepstate.stores.protocol import Durability
from keepstate.stores.sqlite import failures, schema
from keepstate.stores.sqlite.connection import connect, execute_on
from keepstate.stores.sqlite.durable_mark import Newest, require_log
from keepstate.stores.sqlite.files import FileLock, Files
from keepstate.stores.sqlite.flush import Flush
from keepstate.stores.sqlite.renewal import opening_guard
from keepstate.stores.sqlite.revision import SpaceRows
from keepstate.stores.sqlite.schema import prepare

T = TypeVar("T")

_CLOCKS: Final = 4096
_log = logging.getLogger("keepstate.stores")


_FILLER_BYTES: Final = 1 << 20

CHECKPOINT_BYTES: Final = 4 << 20
"""Size of the log at which a writer checkpoints."""


class Writer:
    """The writer of one file, which the constructor opens; it also moves the write-ahead log.

    Args:
        path: Absolute, without symbolic links.
        durability: The failures that an acknowledged write survives.
        wait_s: Seconds to wait for other processes' locks.
    """

    def __init__(self, path: str, durability: Durability, wait_s: float) -> None:
        self._path, self._wait_s = path, wait_s
        self._writing = threading.Lock()
        self._clocks: dict[bytes, int] = {}
        self._is_closed = False
        self._failure: str | None = None
        self._log_pages = 0
        self._left: dict[str, SpaceRows] = {}
        """The rows that the last section left, by space; valid until another connection commits."""
        self._left_at = -1
        """SQLite's data version at the end of that section."""
        require_log(path)
        self._lock = FileLock(path)
        self._newest = Newest(self._lock.descriptor, path, durability)
        self.second_clock = SecondClock(self._lock.descriptor, f"{path}.lock")
        try:
            self._open(durability)
        except BaseException:
            self._lock.close()
            raise
        self._checkpoint_at = self._checkpoint_pages

    def _open(self, durability: Durability) -> None:
        connections: list[apsw.Connection] = []
        try:
            self._lock.acquire(self._wait_s)
            self._lock.precede(self._path)
            with opening_guard(self._path, self._newest, self._wait_s):
                connections.append(connect(self._path, durability, self._wait_s, creates=True))
                prepare(connections[0], self._path)
                connections.append(connect(self._path, durability, self._wait_s))
                open_log(connections[1])
            self.files = Files(self._path)
        except BaseException:
            for connection in connections:
                connection.close()
            raise
        finally:
            self._lock.release()
        self._connection, self._checkpointer = connections
        self._execute = execute_on(self._connection)
        page_bytes: int = self._execute("PRAGMA page_size").get
        self._checkpoint_pages = CHECKPOINT_BYTES // page_bytes
        self._connection.set_wal_hook(self._count_pages)

    def _count_pages(self, _connection: apsw.Connection, _schema: str, pages: int) -> int:
        self._log_pages = pages
        return 0

    # ---- writing

    def write(self, work: Callable[[Flush], T], clock: Clock) -> T:
        """Run `work`, and return its result once its writes are committed and durable.

        Raises:
            StoreUnavailableError: Other processes kept the file locked. Nothing was written.
            StoreFullError: There is no room. Nothing was written.
            OutcomeUnknownError: The disk failed during the commit.
            CorruptError: The file is damaged, or was replaced while it was open.
        """
        with self._writing:
            self._check_usable()
            try:
                self._lock.acquire(self._wait_s)
                self.files.begin()
                answer, flush = self._transact(work, clock)
                self.files.check()
                self._left = flush.left()
                newest = _newest_row(flush)
                if newest is not None:
                    self._newest.note(newest)
                if self._log_pages >= self._checkpoint_at:
                    self._checkpoint()
            finally:
                self._lock.release()
        return answer

    def _check_usable(self) -> None:
        if self._is_closed:
            raise ClosedError(f"{self._path} is closed. Open the store again.")
        self.files.require_unchanged()
        if self._failure is not None:
            raise StorageError(f"{self._failure} Nothing was written.")

    def _transact(self, work: Callable[[Flush], T], clock: Clock) -> tuple[T, Flush]:
        execute, is_committing = self._execute, False
        left, self._left = self._left, {}
        try:
            execute("BEGIN IMMEDIATE")
            if not self._is_unchanged():
                left = {}
            flush = Flush(execute, self._path, clock, self.latest_ms, self.second_clock, left)
            answer = work(flush)
            is_committing = flush.wrote
            execute("COMMIT" if is_committing else "ROLLBACK")
            # Before the next transaction, which would include another connection's commit in the version.
            self._left_at = self._connection.data_version()
        except BaseException as error:
            try:  # noqa: SIM105  `suppress` leaves room for a second interrupt
                execute("ROLLBACK")
            except apsw.Error:  # no transaction was begun, or SQLite rolled it back itself
                pass
            if isinstance(error, apsw.Error):
                raise self._map_error(error, is_committing=is_committing) from error
            raise
        return answer, flush

    def _is_unchanged(self) -> bool:
        """Return, in a write transaction, whether no other connection has committed since the last section.

        SQLite compares the whole header of the wal-index when a transaction begins, and keeps its own page
        cache by the same answer.
        """
        return self._connection.data_version() == self._left_at

    def _map_error(self, error: apsw.Error, *, is_committing: bool) -> StorageError:
        if failures.lacks_room(error, self._connection.system_errno):
            return failures.full_error(error, self._path)
        if not failures.is_io_failure(error):
            return failures.storage_error(error, self._path)
        self._turn_read_only(error)
        if is_committing:
            return OutcomeUnknownError(f"The disk failed during a commit. {self._failure}")
        return StorageError(f"{self._failure} Nothing was written.")

    def _turn_read_only(self, error: apsw.Error) -> None:
        # After a failed fsync, unwritten data in the kernel's cache looks written, so a later fsync proves
        # nothing.
        self._failure = (
            f"{self._path} takes no more writes since its disk failed ({type(error).__name__}: {error}). "
            "Check the disk and open the store again."
        )
        _log.warning("%s", self._failure)

    def latest_ms(self, space: bytes, now_ms: int) -> int:
        """Return a space's time: the given one, or the last that this process knew if that is later."""
        known_ms = self._clocks.get(space, 0)
        if known_ms >= now_ms:
            return known_ms
        if len(self._clocks) >= _CLOCKS:
            self._clocks.clear()  # the time of each space's last revision is in the file
        self._clocks[space] = now_ms
        return now_ms

    # ---- moving the log

    def _checkpoint(self) -> None:
        """Move the log into the file; commits stay in the log if this fails."""
        try:
            try:
                self._execute("BEGIN IMMEDIATE")  # against programs that do not use the lock file
                is_all = move_log(self._checkpointer, self._path)
            finally:
                try:  # noqa: SIM105  as above
                    self._execute("ROLLBACK")
                except apsw.Error:  # no transaction was begun
                    pass
        except (apsw.Error, StorageError) as error:
            is_all = False
            if (
                isinstance(error, apsw.Error)
                and failures.is_io_failure(error)
                and not failures.lacks_room(error, self._checkpointer.system_errno)
            ):
                self._turn_read_only(error)
            else:
                _log.warning(
                    "The write-ahead log of %s could not be moved and grows for now: %s", self._path, error
                )
        if is_all:
            self._log_pages, self._checkpoint_at = 0, self._checkpoint_pages
        else:  # a reader still needs it, so the next attempt is after the same growth again
            self._checkpoint_at = self._log_pages + self._checkpoint_pages

    def scrub(self) -> bool:
        """Rewrite the file without deleted data, and empty the log, while writers wait.

        Returns:
            Whether the log was emptied; another process may still read it.
        """
        with self._writing:
            self._check_usable()
            try:
                self._lock.acquire(self._wait_s)
                self.files.begin()
                self._left = {}
                self._rewrite()
                self.files.check()
                is_empty = empty_log(self._checkpointer)
                if is_empty:
                    self._newest.take_back()
                    self._log_pages, self._checkpoint_at = 0, self._checkpoint_pages
            except apsw.Error as error:
                raise self._map_error(error, is_committing=False) from error
            finally:
                self._lock.release()
        return is_empty

    def _rewrite(self) -> None:
        """Copy the content into fresh pages, and fill the rest of the file with zeros.

        The file does not become shorter: other processes could not tell that from a file that was cut off.
        """
        execute = self._execute
        execute("DROP TABLE IF EXISTS filler")
        pages: int = execute("PRAGMA page_count").get
        execute("PRAGMA temp_store = FILE").fetchall()  # a copy in memory might not fit
        try:
            execute("VACUUM").fetchall()
        finally:
            execute("PRAGMA temp_store = MEMORY").fetchall()
        execute("CREATE TABLE filler (zeros BLOB)")
        while execute("PRAGMA page_count").get < pages:
            execute("INSERT INTO filler VALUES (zeroblob(?))", (_FILLER_BYTES,))
        execute("DROP TABLE filler")

    def close(self, *, moves_log: bool = True) -> None:
        """Wait for the write under way, move the whole log into the file, and close it."""
        with self._writing:
            self._is_closed = True
            if moves_log and self._failure is None and not self.files.moved:
                self._move_all()
            self._checkpointer.close()
            self._connection.close()
            self.files.close()
            self._lock.close()

    def _move_all(self) -> None:
        try:
            self._lock.acquire(self._wait_s)
            self.files.begin()  # SQLite would copy the zeros of a truncated log over sound pages
            empty_log(self._checkpointer)
            self._newest.take_back()
        except StoreUnavailableError:
            return  # the lock's holder has the file open, and moves the log when it closes
        except CorruptError as error:
            _log.warning("The write-ahead log of %s was not touched at close: %s", self._path, error)
        except apsw.Error as error:
            _log.warning("The write-ahead log of %s was not moved at close: %s", self._path, error)
        finally:
            self._lock.release()

    # ---- forking

    def pause(self, timeout_s: float) -> bool:
        """Block writers until `resume`, and return whether none is writing."""
        self._is_held = self._writing.acquire(timeout=timeout_s)
        return self._is_held

    def resume(self) -> None:
        """Undo `pause`."""
        if self._is_held:
            self._writing.release()

    def leave_to_parent(self) -> list[apsw.Connection]:
        """Release, in a forked child, the parent's resources; return the connections."""
        self._is_closed = True
        self.files.close()
        self._lock.close()
        return [self._connection, self._checkpointer]


def _newest_row(flush: Flush) -> int | None:
    """Return a row that exists until a newer one is noted; 0 if unknown, None without a change."""
    for space in flush.changed:
        head = flush.head(space)
        return schema.log_range(head.id)[0] + head.revision
    return 0 if flush.wrote else None


def move_log(checkpointer: apsw.Connection, path: str) -> bool:
    """Move the part of the log that no reader needs, and return whether that was all of it."""
    open_log(checkpointer)
    in_log, moved = checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    if in_log < 0 or moved < 0:
        raise StorageError(f"The log of {path} was not moved: SQLite did not find a log.")
    return in_log == moved


def empty_log(checkpointer: apsw.Connection) -> bool:
    """Move the whole log and empty its file, or as much as other processes' readers allow.

    Returns:
        Whether the file is empty.
    """
    open_log(checkpointer)
    checkpointer.set_busy_timeout(0)
    with suppress(apsw.BusyError):
        checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return True
    return False


def open_log(checkpointer: apsw.Connection) -> None:
    """Make a connection open the log; without a read it would move nothing and only report -1."""
    execute_on(checkpointer)("SELECT 1 FROM spaces LIMIT 1").fetchall()
