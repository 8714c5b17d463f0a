"""The work of one write section: checks batches and applies them to the rows.

All failures of a batch are detected before its first write, so a rejected batch leaves nothing to undo. Later
failures are those of the disk and roll back the whole section. The head of a space is read once, and later
sections reuse it until another connection commits. Outcomes of retries are stored apart from the log, for
originals that arrive late. Rows of dropped spaces are removed a few at a time, so that no writer waits long
for a large space.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, Literal, TypeAlias

import msgspec

from keepstate._clock import Clock
from keepstate.errors import CorruptError, InvalidError, OutcomeUnknownError, StoreFullError
from keepstate.stores.admission import REPLACING_WRITES, check_stamped_keys, cut_log_error, log_size_error
from keepstate.stores.clock_leaps import SecondClock
from keepstate.stores.protocol import NONCE_BYTES, Applied, Batch, Conflict, Outcome
from keepstate.stores.records import RETRY_KEPT_MS
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.connection import Execute
from keepstate.stores.sqlite.revision import Head, Revision, SpaceRows
from keepstate.values import limits

_SPACES_LEFT: Final = 256
"""Number of spaces whose rows a section leaves to the next one."""
_Answer: TypeAlias = tuple[Literal["applied", "conflict", "unknown", "invalid"], bytes | None, int, int, str]
"""The kind, a key, a revision or version, a time, and a message, as far as the kind has them."""
_decoder = msgspec.msgpack.Decoder(_Answer)
_ENTRIES: Final = "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE space = ? LIMIT ?)"
_LOG: Final = "DELETE FROM log WHERE id IN (SELECT id FROM log WHERE id BETWEEN ? AND ? LIMIT ?)"


class Flush:
    """The batches of one transaction.

    Args:
        execute: The function of the writing connection; a transaction is open.
        path: Names the file in errors.
        clock: The process's clock, read once, and the source of nonces.
        latest_ms: Returns the latest time of a space that this process knows.
        second_clock: Confirms the clock if it is a leap ahead of a stored time.
        left: The rows that the last section left, by space; empty if another connection has committed since.
    """

    def __init__(
        self,
        execute: Execute,
        path: str,
        clock: Clock,
        latest_ms: Callable[[bytes, int], int],
        second_clock: SecondClock,
        left: dict[str, SpaceRows],
    ) -> None:
        self._execute, self._path, self._latest_ms = execute, path, latest_ms
        self._clock, self._clock_ms, self._second_clock = clock, clock.now_ms(), second_clock
        self._spaces: dict[str, SpaceRows] = {}
        self._left = left
        self.changed: set[str] = set()
        """The spaces that took a revision."""
        self.wrote = False
        """Whether there is anything to commit."""

    def head(self, space: str) -> Head:
        """Return the space's head, at the time of this section."""
        return self._rows(space).head

    def left(self) -> dict[str, SpaceRows]:
        """Return the rows of spaces that the section leaves to the next one, once it is committed."""
        left = self._left
        if len(left) + len(self._spaces) > _SPACES_LEFT:
            left = {}
        left.update(self._spaces)
        return left

    def _rows(self, space: str) -> SpaceRows:
        rows = self._spaces.get(space)
        if rows is None:
            rows = self._left.get(space)
            if rows is None:
                rows = SpaceRows(Head.read(self._execute, space.encode()))
            head = rows.head
            self._second_clock.confirm(self._clock, space, self._clock_ms, head.stored_ms)
            head.now_ms = self._latest_ms(head.name, max(self._clock_ms, head.stored_ms))
            self._spaces[space] = rows
        return rows

    def _revision(self, space: str, token: bytes | None) -> Revision:
        """Return the next revision of a space."""
        nonce = self._clock.random_bytes(NONCE_BYTES)
        return Revision(self._execute, self._path, self._rows(space), token, nonce)

    # ---- batches

    def apply(self, batch: Batch) -> Outcome:
        """Check the batch and apply it."""
        rows = self._rows(batch.space)
        head = rows.head
        if batch.token is not None and (known := self._known_outcome(head, batch.token)) is not None:
            return known
        refusal = self._judge(rows, batch)
        if refusal is not None:
            self._keep_outcome(head, batch, refusal)
            return refusal
        if not batch.writes:
            return Applied(head.revision, head.now_ms)
        revision = self._revision(batch.space, batch.token)
        for index, write in enumerate(batch.writes):
            revision.look_up(write, index)
            if revision.replaced_bytes > limits.LOG_BYTES and len(batch.writes) > REPLACING_WRITES:
                refusal = log_size_error(batch.space)
                self._keep_outcome(head, batch, refusal)
                return refusal
        self._assign_number(head)
        revision.write()
        self._mark_changed(batch.space)
        outcome = Applied(head.revision, head.now_ms)
        self._keep_outcome(head, batch, outcome)
        return outcome

    def _keep_outcome(self, head: Head, batch: Batch, outcome: Outcome) -> None:
        if batch.retry_of is not None and batch.token is not None:
            self._assign_number(head)
            _keep_outcome(self._execute, head.id, batch.token, outcome, head.now_ms)
            self.wrote = True

    def _known_outcome(self, head: Head, token: bytes) -> Outcome | None:
        first, last = schema.log_range(head.id)
        rows = self._execute(
            "SELECT id, now_ms FROM log WHERE token = ? AND id > ? AND id <= ?",
            (token, first + head.floor, last),
        ).fetchall()
        if len(rows) > 1:
            place = f"the log of space {head.name.decode()!r}"
            raise CorruptError(
                f"{place} is damaged: two records have the token {token!r}. Restore the file from a backup.",
                place=place,
            )
        if rows:
            (row_id, now_ms), *_ = rows
            return Applied(row_id - first, now_ms)
        return _find_outcome(self._execute, head.id, head.name.decode(), token, head.now_ms)

    def _judge(self, rows: SpaceRows, batch: Batch) -> Outcome | None:
        head = rows.head
        if batch.retry_of is not None and batch.retry_of < head.floor:
            return cut_log_error(batch)
        if batch.at is not None and batch.at != head.revision:
            return Conflict(None, head.revision)
        if batch.alive_until_ms is not None and batch.alive_until_ms <= head.now_ms:
            return Conflict(None, head.revision)
        rows.look_up(self._execute, [check.key for check in batch.checks])
        for check in batch.checks:
            version, created = rows.versions(check.key)
            wanted, actual = (check.created, created) if check.version is None else (check.version, version)
            if actual != wanted:
                return Conflict(check.key, actual)
        if head.revision >= schema.LAST_REVISION - 1:
            return StoreFullError(f"Space {batch.space!r} has used up its revisions. Write to a new space.")
        return check_stamped_keys(batch, head.revision + 1)

    def _assign_number(self, head: Head) -> None:
        """Assign a number to a new space."""
        if head.id < 0:
            head.id = _new_number(self._execute, head.name)

    def _mark_changed(self, space: str) -> None:
        self.changed.add(space)
        self.wrote = True

    # ---- other writes

    def sweep(self, space: str, limit: int) -> int:
        """Remove up to `limit` expired entries, at most as many as fit in a batch, as the next revision."""
        head = self.head(space)
        if head.expiry_ms is None or head.expiry_ms > head.now_ms:
            return 0
        expired = self._expired(head, min(limit, limits.BATCH_WRITES))
        if expired:
            revision = self._revision(space, None)
            for key in expired:
                revision.look_up_removal(key)
            revision.remove()
            head.expiry_ms = self._first_expiry(head)
            revision.log()
            self._mark_changed(space)
        else:  # the expired entries were renewed or deleted
            head.correct_expiry(self._execute, self._first_expiry(head))
            self.wrote = True
        return len(expired)

    def _expired(self, head: Head, limit: int) -> list[bytes]:
        rows = self._execute(
            "SELECT key, length(value) FROM entries WHERE space = ? AND expires_at_ms <= ? "
            "ORDER BY expires_at_ms, key LIMIT ?",
            (head.id, head.now_ms, limit),
        ).fetchall()
        ends_at = list(accumulate(size for _, size in rows))
        return [key for (key, _), end in zip(rows, ends_at, strict=True) if end <= limits.BATCH_BYTES]

    def _first_expiry(self, head: Head) -> int | None:
        found: int | None = self._execute(
            "SELECT min(expires_at_ms) FROM entries WHERE space = ? AND expires_at_ms IS NOT NULL", (head.id,)
        ).get
        return found

    def drop(self, space: str, at: int | None = None) -> bool:
        """Empty the space as its next revision, if it is at revision `at`; return whether it was there.

        Its rows keep the old number, which loses its name.
        """
        head = self.head(space)
        if head.revision == head.floor or at not in (None, head.revision):
            return False
        old = head.id
        self._execute("UPDATE spaces SET name = NULL WHERE id = ?", (old,))
        head.id = _new_number(self._execute, head.name, old)
        _reassign_outcomes(self._execute, old, head.id, head.now_ms)
        nonce = self._clock.random_bytes(NONCE_BYTES)
        head.floor, head.floor_nonce = head.revision + 1, nonce
        head.kept_bytes, head.expiry_ms, head.stored_sizes = 0, None, b""
        self._spaces[space] = SpaceRows(head)
        head.advance(self._execute, size_bytes=0, token=None, nonce=nonce, changes=b"")
        self._mark_changed(space)
        return True

    def trim(self, space: str, keep: int) -> None:
        """Remove the log of a space but the last `keep` revisions."""
        head = self.head(space)
        if head.revision - head.floor > keep:
            head.trim(self._execute, keep)
            self.wrote = True

    def collect(self, limit: int) -> int:
        """Remove up to `limit` rows of dropped spaces, and return the count; 0 when none are left."""
        removed = _collect(self._execute, limit)
        self.wrote = removed > 0
        return removed


def _new_number(execute: Execute, name: bytes, old: int | None = None) -> int:
    """Assign a new number to a name; after a drop the last leap is copied from the `old` number."""
    number: int = execute(
        "INSERT INTO spaces (name, leap) VALUES (?, (SELECT leap FROM spaces WHERE id = ?)) RETURNING id",
        (name, old),
    ).get
    if number > schema.LAST_SPACE:
        raise StoreFullError(f"There is no number left for space {name.decode()!r}. Use another file.")
    return number


def _keep_outcome(execute: Execute, space: int, token: bytes, outcome: Outcome, now_ms: int) -> None:
    """Store a retry's outcome, and delete the space's old ones."""
    match outcome:
        case Applied(revision, at_ms):
            answer: _Answer = ("applied", None, revision, at_ms, "")
        case Conflict(key, actual):
            answer = ("conflict", key, actual, 0, "")
        case OutcomeUnknownError(message=message):
            answer = ("unknown", None, 0, 0, message)
        case InvalidError(message=message):
            answer = ("invalid", None, 0, 0, message)
        case _:  # a failure of the store does not decide the next attempt
            return
    _forget_outcomes(execute, space, now_ms)
    execute(
        "INSERT INTO retries (space, token, until_ms, answer) VALUES (?, ?, ?, ?)",
        (space, token, now_ms + RETRY_KEPT_MS, msgspec.msgpack.encode(answer)),
    )


def _forget_outcomes(execute: Execute, space: int, now_ms: int) -> None:
    """Delete the space's old outcomes."""
    execute("DELETE FROM retries WHERE space = ? AND until_ms <= ?", (space, now_ms))


def _find_outcome(execute: Execute, space: int, name: str, token: bytes, now_ms: int) -> Outcome | None:
    """Return the outcome stored under a token, or None.

    Raises:
        CorruptError: The stored bytes are not an outcome.
    """
    encoded: Any = execute(
        "SELECT answer FROM retries WHERE space = ? AND token = ? AND until_ms > ?", (space, token, now_ms)
    ).get
    if encoded is None:
        return None
    try:
        kind, key, number, at_ms, message = _decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        place = f"the outcome stored for token {token!r} of space {name!r}"
        raise CorruptError(
            f"{place} is damaged: {error}. Restore the file from a backup.", place=place, space=name
        ) from error
    if kind == "applied":
        return Applied(number, at_ms)
    if kind == "conflict":
        return Conflict(key, number)
    if kind == "unknown":
        return OutcomeUnknownError(message, space=name, token=token)
    return InvalidError(message)


def _reassign_outcomes(execute: Execute, space: int, to: int, now_ms: int) -> None:
    """Move a space's outcomes to the number that it has after a drop."""
    _forget_outcomes(execute, space, now_ms)
    execute("UPDATE retries SET space = ? WHERE space = ?", (to, space))


def _collect(execute: Execute, limit: int) -> int:
    """Remove up to `limit` rows of a number without a name, and return the count; 0 when none are left."""
    number: Any = execute("SELECT id FROM spaces WHERE name IS NULL LIMIT 1").get
    if number is None:
        return 0
    removed = 0
    for statement, bindings in ((_ENTRIES, (number,)), (_LOG, schema.log_range(number))):
        if removed < limit:
            execute(statement, (*bindings, limit - removed))
            removed += execute("SELECT changes()").get
    if removed < limit:
        execute("DELETE FROM spaces WHERE id = ?", (number,))
        removed += 1
    return removed
