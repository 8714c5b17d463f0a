"""The head of a space, stored in the row of its newest revision."""

from __future__ import annotations

from typing import Any, Final

from keepstate.errors import CorruptError
from keepstate.stores.clock_leaps import detect_leap
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.statements import Execute
from keepstate.values import limits

TRIM_AT_ONCE: Final = 16
"""Number of revisions by which a log may exceed its limit, so that not every batch trims its old end."""

_NEWEST: Final = f"""
    SELECT id, now_ms, floor, kept_bytes, expiry_ms, nonce, floor_nonce FROM log
    WHERE id BETWEEN (SELECT id << {schema.REVISION_BITS} FROM spaces WHERE name = ?1)
        AND (SELECT id << {schema.REVISION_BITS} | {schema.LAST_REVISION} FROM spaces WHERE name = ?1)
    ORDER BY id DESC LIMIT 1
"""
"""Subqueries, because a join of the two tables takes five times as long."""


class Head:
    """The head of a space; `id` is -1 if the space does not have a number yet.

    `revision` and `stored_ms` belong to the last revision, and `now_ms` is the space's time. `floor` is the
    revision below which the log was trimmed, and `kept_bytes` the log's size. `expiry_ms` is a time before
    which
    no entry expires, None if none ever does. `nonce` and `floor_nonce` are those of `revision` and `floor`.
    """

    __slots__ = (
        "expiry_ms",
        "floor",
        "floor_nonce",
        "id",
        "kept_bytes",
        "name",
        "nonce",
        "now_ms",
        "revision",
        "stored_ms",
    )

    def __init__(self, name: bytes, number: int) -> None:
        self.name, self.id = name, number
        self.revision = self.now_ms = self.stored_ms = self.floor = self.kept_bytes = 0
        self.expiry_ms: int | None = None
        self.nonce = self.floor_nonce = b""

    @classmethod
    def read(cls, execute: Execute, name: bytes) -> Head:
        """Read the head of a space in the open transaction."""
        row: Any = execute(_NEWEST, (name,)).get
        if row is None:
            number: Any = execute("SELECT id FROM spaces WHERE name = ?", (name,)).get
            if number is not None and not 0 < number <= schema.LAST_SPACE:
                place = f"the row of space {name!r} in the table of spaces"
                raise CorruptError(
                    f"{place} is damaged: its number is {number}. Restore the file from a backup.",
                    place=place,
                )
            return cls(name, -1 if number is None else number)
        row_id, now_ms, floor, kept_bytes, expiry_ms, nonce, floor_nonce = row
        head = cls(name, row_id >> schema.REVISION_BITS)
        head.revision = row_id & schema.LAST_REVISION
        head.now_ms = head.stored_ms = now_ms
        head.floor, head.kept_bytes, head.expiry_ms = floor, kept_bytes, expiry_ms
        head.nonce, head.floor_nonce = nonce, floor_nonce
        return head

    def advance(
        self, execute: Execute, *, size_bytes: int, token: bytes | None, nonce: bytes, changes: bytes
    ) -> None:
        """Write the next revision's row of the log, and trim the log if it is too long."""
        self.revision += 1
        self.nonce = nonce
        self.kept_bytes += size_bytes
        if (
            self.kept_bytes > limits.LOG_BYTES
            or self.revision - self.floor >= limits.LOG_REVISIONS + TRIM_AT_ONCE
        ):
            self._trim(execute)
        row = self.id << schema.REVISION_BITS | self.revision
        execute(
            "INSERT INTO log (id, now_ms, floor, kept_bytes, expiry_ms, size_bytes, token, nonce, "
            "floor_nonce, seal, changes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row, self.now_ms, self.floor, self.kept_bytes, self.expiry_ms, size_bytes, token,
                nonce, self.floor_nonce, schema.log_seal(row, nonce, changes), changes,
            ),
        )  # fmt: skip
        if (leap := detect_leap(self.revision, self.stored_ms, self.now_ms)) is not None:
            execute("UPDATE spaces SET leap = ? WHERE id = ?", (schema.encode_leap(leap), self.id))
        self.stored_ms = self.now_ms

    def correct_expiry(self, execute: Execute, expiry_ms: int | None) -> None:
        """Write a better bound into the newest row, so that not every batch searches for expired entries."""
        self.expiry_ms = expiry_ms
        execute(
            "UPDATE log SET expiry_ms = ? WHERE id = ?",
            (expiry_ms, self.id << schema.REVISION_BITS | self.revision),
        )

    def _trim(self, execute: Execute) -> None:
        first, last = schema.log_range(self.id)
        oldest = execute(
            "SELECT id, size_bytes, nonce FROM log WHERE id > ? AND id <= ? ORDER BY id",
            (first + self.floor, last),
        )
        for row, size_bytes, nonce in oldest:
            if self.revision - self.floor <= limits.LOG_REVISIONS and self.kept_bytes <= limits.LOG_BYTES:
                break
            self.floor, self.floor_nonce = row - first, nonce
            self.kept_bytes -= size_bytes
        execute("DELETE FROM log WHERE id BETWEEN ? AND ?", (first, first + self.floor))
