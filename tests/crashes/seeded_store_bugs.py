"""Bugs of single stores, planted like those of `seeded_bugs`: a test of the contract fails with each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate.stores import combiner
from keepstate.stores.clock_leaps import LEAP_MS, SecondClock
from keepstate.stores.combiner import Combiner
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Batch, Outcome
from keepstate.stores.sqlite import flush
from keepstate.stores.sqlite.connection import Execute
from keepstate.stores.sqlite.files import Files
from keepstate.stores.sqlite.flush import Flush
from keepstate.stores.sqlite.revision import Head, Revision, SpaceRows
from keepstate.stores.sqlite.writer import Writer
from tests.crashes.seeded_bugs import Planted


@contextmanager
def answers_by_request() -> Planted:
    """Give each request of a flush the answers from its own place on, and count requests, not batches."""

    async def flush_together(self: Combiner, requests: Sequence[Any]) -> None:
        outcomes = await self._flush([batch for request in requests for batch in request.batches])
        for place, request in enumerate(requests):
            request.answer(outcomes[place : place + len(request.batches)])

    with patch.object(Combiner, "_flush_together", flush_together):
        yield


@contextmanager
def stored_time_ignored() -> Planted:
    """Judge a write by the process's clock alone, and not by the later time that is stored."""

    def rows(self: Flush, space: str) -> SpaceRows:
        found = self._spaces.get(space)
        if found is None:
            found = self._left.get(space) or SpaceRows(Head.read(self._execute, space.encode()))
            found.head.now_ms = self._latest_ms(found.head.name, self._clock_ms)
            self._spaces[space] = found
        return found

    with patch.object(Flush, "_rows", rows):
        yield


@contextmanager
def answers_dropped() -> Planted:
    """Forget with a dropped space what its retries were answered."""

    def move(execute: Execute, space: int, to: int, now_ms: int) -> None:
        execute("DELETE FROM retries WHERE space = ?", (space,))

    with patch.object(flush, "_reassign_outcomes", move):
        yield


@contextmanager
def row_subtracted_twice() -> Planted:
    """Take the weight of each row that is cut from the log off its size twice."""
    right = Head._trim

    def trim(self: Head, execute: Execute) -> None:
        before = self.kept_bytes
        right(self, execute)
        self.kept_bytes -= before - self.kept_bytes

    with patch.object(Head, "_trim", trim):
        yield


@contextmanager
def floor_taken_one_low() -> Planted:
    """Apply a retry whose first attempt may stand in the one revision that the log has just lost."""
    right = Flush._judge

    def refuse(self: Flush, rows: SpaceRows, batch: Batch) -> Outcome | None:
        if batch.retry_of is not None:
            batch = msgspec.structs.replace(batch, retry_of=batch.retry_of + 1)
        return right(self, rows, batch)

    with patch.object(Flush, "_judge", refuse):
        yield


@contextmanager
def leap_unconfirmed() -> Planted:
    """Take the clock of the process as it is, however far ahead of the stored time it stands."""
    with patch.object(SecondClock, "confirm", lambda self, clock, space, clock_ms, stored_ms: None):
        yield


@contextmanager
def small_steps_unconfirmed() -> Planted:
    """Compare a clock only if it is over an hour ahead of the stored time."""
    right = SecondClock.confirm

    def confirm(self: SecondClock, clock: Clock, space: str, clock_ms: int, stored_ms: int) -> None:
        if clock_ms - stored_ms > LEAP_MS:
            right(self, clock, space, clock_ms, stored_ms)

    with patch.object(SecondClock, "confirm", confirm):
        yield


@contextmanager
def leap_dropped() -> Planted:
    """Give a dropped space a new row that knows of no leap."""
    new_number = flush._new_number
    with patch.object(flush, "_new_number", lambda execute, name, old=None: new_number(execute, name)):
        yield


@contextmanager
def leap_by_remembered_time() -> Planted:
    """Compare a write's time with the one that reads have moved on, and not with the stored one."""

    def read(cls: type[Head], execute: Execute, name: bytes) -> Head:
        found = read_head(execute, name)
        found.stored_ms = max(found.stored_ms, SYSTEM_CLOCK.now_ms())
        return found

    read_head = Head.read
    with patch.object(Head, "read", classmethod(read)):
        yield


@contextmanager
def expired_row_counted() -> Planted:
    """Count an entry that has expired until it is swept."""
    right = PartSizes.without
    with patch.object(PartSizes, "without", lambda self, expired: right(self, ())):
        yield


@contextmanager
def removed_row_counted() -> Planted:
    """Remove rows from the table, and go on counting them."""

    def remove(self: Revision) -> None:
        for key, _ in self._removed:
            self._execute("DELETE FROM entries WHERE space = ? AND key = ?", (self._head.id, key))

    with patch.object(Revision, "remove", remove):
        yield


@contextmanager
def guessed_stamp_counted_twice() -> Planted:
    """Count a stamped entry as new although a row with its key was there."""

    def insert(self: Revision, row: Any) -> int | None:
        length = right(self, row)
        if length is not None:
            self._execute("DELETE FROM entries WHERE space = ? AND key = ?", row[:2])
            right(self, row)
        return None

    right = Revision._insert
    with patch.object(Revision, "_insert", insert):
        yield


@contextmanager
def removed_key_remembered() -> Planted:
    """Believe that a key still has its row after the row was removed."""
    right = Revision.remove

    def remove(self: Revision) -> None:
        known = dict(self._rows.known)
        right(self)
        self._rows.known.update(known)

    with patch.object(Revision, "remove", remove):
        yield


@contextmanager
def written_key_remembered() -> Planted:
    """Believe that a key has the version of its last check after it was written again."""
    with patch.object(SpaceRows, "replace", lambda self, *of: None):
        yield


@contextmanager
def stale_rows_believed() -> Planted:
    """Believe what the last section left although another connection has committed since."""
    with patch.object(Writer, "_is_unchanged", lambda self: True):
        yield


@contextmanager
def rows_dated_after_the_commit() -> Planted:
    """Compare the wal-index with what it is when the files are checked, after the end of the transaction."""
    right = Files.check

    def check(self: Files) -> None:
        right(self)
        self.seen = self._index()  # type: ignore[attr-defined]

    def is_unchanged(self: Writer) -> bool:
        seen: object = getattr(self.files, "seen", None)
        return seen is not None and seen is self.files._index()

    with patch.object(Files, "check", check), patch.object(Writer, "_is_unchanged", is_unchanged):
        yield


@contextmanager
def rows_kept_over_a_rollback() -> Planted:
    """Keep the rows that a section has changed although it fails."""
    right = Writer._transact

    def transact(self: Writer, *args: Any) -> Any:
        left = self._left
        try:
            return right(self, *args)
        except BaseException:
            self._left = left
            raise

    with patch.object(Writer, "_transact", transact):
        yield


@contextmanager
def wake_up_trusted() -> Planted:
    """Let a thread that waits for its flush sleep until it is woken, and look at nothing before."""
    with patch.object(combiner, "_LOOK_AGAIN_S", 3_600.0):
        yield


@contextmanager
def lead_kept_by_an_interrupt() -> Planted:
    """Let go of the lead after the flush, and not where an interrupt ends it."""

    async def lead_once(self: Combiner, request: Any) -> None:
        if self._lead.acquire(timeout=0.05):
            if request in self._queue:
                await self._flush_together(self._drain())
            self._lead.release()
        self._wake_first()

    with patch.object(Combiner, "_lead_once", lead_once):
        yield


@contextmanager
def lost_request_waits() -> Planted:
    """Let a request wait that a leader took out of the queue and was interrupted before it flushed it."""

    async def lead_once(self: Combiner, request: Any) -> None:
        with self._lead:
            if self._queue:
                await self._flush_together(self._drain())
        await self._runner.sleep(0.01)
        self._wake_first()

    with patch.object(Combiner, "_lead_once", lead_once):
        yield
