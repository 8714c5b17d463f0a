"""The head of a space, which is stored in the row of its newest revision, and its next revision.

A `Revision` collects the rows of one batch's writes: looked up, written and logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import apsw
import msgspec

from keepstate.errors import CorruptError
from keepstate.stores.clock_leaps import detect_leap
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import ABSENT, Delete, Put, Write
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.connection import Execute
from keepstate.stores.sqlite.schema import DELETED, PUT, PUT_OVER_EXPIRED, Logged, encode_changes
from keepstate.values import limits
from keepstate.values.key import OBJECTS, WITH_VALUES, stamp_suffix

TRIM_AT_ONCE: Final = 16
"""Number of revisions by which a log may exceed its limit, so that not every batch trims its old end."""

_NEWEST: Final = f"""
    SELECT id, now_ms, floor, kept_bytes, expiry_ms, nonce, floor_nonce, sizes FROM log
    WHERE id BETWEEN (SELECT id << {schema.REVISION_BITS} FROM spaces WHERE name = ?1)
        AND (SELECT id << {schema.REVISION_BITS} | {schema.LAST_REVISION} FROM spaces WHERE name = ?1)
    ORDER BY id DESC LIMIT 1
"""
"""Subqueries, because a join of the two tables takes five times as long."""


_UPSERT: Final = """
    INSERT INTO entries (space, key, version, created, expires_at_ms, seal, value)
    VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6)
    ON CONFLICT (space, key) DO UPDATE SET
        version = excluded.version, expires_at_ms = excluded.expires_at_ms,
        seal = excluded.seal, value = excluded.value,
        created = CASE WHEN expires_at_ms <= ?7 THEN excluded.created ELSE created END
"""
_INSERT: Final = """
    INSERT INTO entries (space, key, version, created, expires_at_ms, seal, value)
    VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6)
"""
Stored: TypeAlias = tuple[int, int, int | None, int]
"""The version of an entry, the one at which it was created, its expiry, and the length of its value."""
_KNOWN_KEYS: Final = 64
_KEYS_AT_ONCE: Final = 8
"""Number of keys that one statement looks up. More would each need a plan of their own."""
_LENGTH: Final = "SELECT length(value) FROM entries WHERE space = ? AND key = ?"
_KNOWN: Final = """
    SELECT version, created, expires_at_ms, length(value) FROM entries WHERE space = ? AND key = ?
"""


@cache
def _stored(count: int) -> str:
    marks = ", ".join("?" * count)
    return (
        "SELECT key, version, created, expires_at_ms, length(value) FROM entries "
        f"WHERE space = ? AND key IN ({marks})"
    )


class Head:
    """The head of a space; `id` is -1 if the space does not have a number yet.

    `revision` and `stored_ms` belong to the last revision, and `now_ms` is the space's time. `floor` is the
    revision below which the log was trimmed, and `kept_bytes` the log's size. `expiry_ms` is a time before
    which no entry expires, None if none ever does. `nonce` and `floor_nonce` are those of `revision` and
    `floor`, and `stored_sizes` are the encoded sizes of the parts at `revision`.
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
        "stored_sizes",
    )

    def __init__(self, name: bytes, number: int) -> None:
        self.name, self.id = name, number
        self.revision = self.now_ms = self.stored_ms = self.floor = self.kept_bytes = 0
        self.expiry_ms: int | None = None
        self.nonce = self.floor_nonce = self.stored_sizes = b""

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
        row_id, now_ms, floor, kept_bytes, expiry_ms, nonce, floor_nonce, sizes = row
        if min(now_ms, floor, kept_bytes) < 0:  # no seal covers these columns
            place = f"the newest log row of space {name.decode(errors='backslashreplace')!r}"
            raise CorruptError(
                f"{place} is damaged: its time, floor or size is negative. Restore the file from a backup.",
                place=place,
            )
        head = cls(name, row_id >> schema.REVISION_BITS)
        head.revision = row_id & schema.LAST_REVISION
        head.now_ms = head.stored_ms = now_ms
        head.floor, head.kept_bytes, head.expiry_ms = floor, kept_bytes, expiry_ms
        head.nonce, head.floor_nonce, head.stored_sizes = nonce, floor_nonce, sizes
        return head

    def sizes(self) -> PartSizes:
        """Decode the sizes of the space's parts.

        Raises:
            CorruptError: The stored bytes are not sizes.
        """
        try:
            return PartSizes.decode(self.stored_sizes)
        except msgspec.MsgspecError as error:
            place = f"the sizes of space {self.name.decode()!r}"
            raise CorruptError(
                f"{place} are damaged: {error}. Restore the file from a backup.", place=place
            ) from error

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
            "floor_nonce, sizes, seal, changes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row, self.now_ms, self.floor, self.kept_bytes, self.expiry_ms, size_bytes, token,
                nonce, self.floor_nonce, self.stored_sizes, schema.log_seal(row, nonce, changes), changes,
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

    def trim(self, execute: Execute, keep: int) -> None:
        """Remove the rows of the log, except the last `keep` revisions."""
        first, _ = schema.log_range(self.id)
        row = first + self.revision
        self.floor = self.revision - keep
        self.floor_nonce = execute("SELECT nonce FROM log WHERE id = ?", (first + self.floor,)).get
        self.kept_bytes = execute(
            "SELECT sum(size_bytes) FROM log WHERE id > ? AND id <= ?", (first + self.floor, row)
        ).get
        execute(
            "UPDATE log SET floor = ?, floor_nonce = ?, kept_bytes = ? WHERE id = ?",
            (self.floor, self.floor_nonce, self.kept_bytes, row),
        )
        execute("DELETE FROM log WHERE id BETWEEN ? AND ?", (first, first + self.floor))

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


class SpaceRows:
    """The rows of a space that a write section has read or written.

    The next section reuses it if no other connection has committed in between.

    Attributes:
        head: The head of the space.
    """

    __slots__ = ("_sizes", "head", "known")

    def __init__(self, head: Head) -> None:
        self.head = head
        self._sizes: PartSizes | None = None
        self.known: dict[bytes, Stored | None] = {}
        """The rows of keys that a batch has checked or replaced; None for a key without a row."""

    def sizes(self) -> PartSizes:
        """Return the sizes of the space's parts, which its next revision changes."""
        if self._sizes is None:
            self._sizes = self.head.sizes()
        return self._sizes

    def look_up(self, execute: Execute, keys: Sequence[bytes]) -> None:
        """Read the rows of those keys that are not known, several in one statement."""
        if len(self.known) > _KNOWN_KEYS:
            self.known.clear()
        unknown = [key for key in keys if key not in self.known]
        for begin in range(0, len(unknown), _KEYS_AT_ONCE):
            asked = unknown[begin : begin + _KEYS_AT_ONCE]
            self.known.update(dict.fromkeys(asked))
            for key, *row in execute(_stored(len(asked)), (self.head.id, *asked)).fetchall():
                version, created, expires_at_ms, length = row
                self.known[key] = version, created, expires_at_ms, length

    def length(self, execute: Execute, key: bytes) -> int | None:
        """Return the length of a key's value, which is stored before the value; None without a row."""
        if key not in self.known:
            if len(self.known) > _KNOWN_KEYS:
                self.known.clear()
            self.known[key] = execute(_KNOWN, (self.head.id, key)).get
        row = self.known[key]
        return None if row is None else row[3]

    def versions(self, key: bytes) -> tuple[int, int]:
        """Return the version of a known key, and the one of its creation, at the space's time."""
        row = self.known[key]
        if row is None or (row[2] is not None and row[2] <= self.head.now_ms):
            return ABSENT, ABSENT
        return row[0], row[1]

    def replace(self, key: bytes, version: int, expires_at_ms: int | None, length: int) -> None:
        """Note that the next revision writes a key."""
        if key in self.known:
            old = self.known[key]
            is_new = old is None or (old[2] is not None and old[2] <= self.head.now_ms)
            self.known[key] = version, version if old is None or is_new else old[1], expires_at_ms, length


class Revision:
    """The next revision of a space, under construction.

    Args:
        execute: The function of the writing connection.
        path: Names the file in errors.
        rows: The known rows of the space, which the revision changes.
        token: The token of the batch.
        nonce: The nonce of the revision.
    """

    def __init__(
        self,
        execute: Execute,
        path: str,
        rows: SpaceRows,
        token: bytes | None,
        nonce: bytes,
    ) -> None:
        self._execute, self._path, self._head = execute, path, rows.head
        self._token, self._nonce, self._rows, self._sizes = token, nonce, rows, rows.sizes()
        self.replaced_bytes = 0
        """Size of the replaced and removed values that the log will store."""
        self._puts: list[tuple[bytes, Put, int | None]] = []
        """The keys and writes, and the length of the value that each replaces, None for a new key."""
        self._removed: list[tuple[bytes, int]] = []
        """The keys, and the lengths of their values."""
        self._logged_puts: list[Logged] = []
        self._logged_removals: list[Logged] = []

    def look_up(self, write: Write, index: int) -> None:
        """Plan one write of the batch."""
        if type(write) is Delete:
            self.look_up_removal(write.key)
            return
        assert type(write) is Put
        key = write.key + stamp_suffix(self._head.revision + 1, index) if write.stamp else write.key
        if key[0] == WITH_VALUES:
            row = self._row(key)
            self._puts.append((key, write, None if row is None else len(row[3])))
            # The value of an expired entry is included: this write removes it.
            old = None if row is None else row[3]
            if old is not None:
                self.replaced_bytes += len(old)
            is_expired = row is not None and row[1] is not None and row[1] <= self._head.now_ms
            self._logged_puts.append((key, PUT_OVER_EXPIRED if is_expired else PUT, old, write.value))
            return
        # An object or a stamped key is nearly always new. If it is not, its insertion notices it.
        is_new = write.stamp or (key[0] == OBJECTS and key not in self._rows.known)
        self._puts.append((key, write, None if is_new else self._rows.length(self._execute, key)))
        if key[0] != OBJECTS:
            self._logged_puts.append((key, PUT, None, None))

    def look_up_removal(self, key: bytes) -> None:
        """Plan the removal of a key; an absent key is not a change."""
        old: bytes | None = None
        if key[0] == WITH_VALUES:
            row = self._row(key)
            # The removal of an expired value is logged with that value.
            old = None if row is None else row[3]
            length = None if old is None else len(old)
        else:
            length = self._rows.length(self._execute, key)
        if length is None:
            return
        self._removed.append((key, length))
        if key[0] != OBJECTS:
            if old is not None:
                self.replaced_bytes += len(old)
            self._logged_removals.append((key, DELETED, old, None))

    def _row(self, key: bytes) -> tuple[int, int | None, int, bytes] | None:
        row: tuple[int, int | None, int, bytes] | None = self._execute(
            "SELECT version, expires_at_ms, seal, value FROM entries WHERE space = ? AND key = ?",
            (self._head.id, key),
        ).get
        if row is not None and row[2] != schema.entry_seal(key, row[3], row[0], row[1]):
            raise schema.damage_error(f"the entry of {key!r}", self._path, self._head.name)
        return row

    # ---- writing

    def write(self) -> None:
        """Write the planned rows and the log."""
        head, sizes, version = self._head, self._sizes, self._head.revision + 1
        for key, put, known in self._puts:
            expires_at_ms = None if put.ttl_ms is None else head.now_ms + put.ttl_ms
            if expires_at_ms is not None and (head.expiry_ms is None or expires_at_ms < head.expiry_ms):
                head.expiry_ms = expires_at_ms
            self._rows.replace(key, version, expires_at_ms, len(put.value))
            seal = schema.entry_seal(key, put.value, version, expires_at_ms)
            row = head.id, key, version, expires_at_ms, seal, put.value
            length = self._insert(row) if known is None else known
            if length is None:
                sizes.count(key, 1, len(key) + len(put.value))
                continue
            sizes.count(key, 0, len(put.value) - length)
            self._execute(_UPSERT, (*row, head.now_ms))
        self.remove()
        self.log()

    def _insert(self, row: tuple[int, bytes, int, int | None, int, bytes]) -> int | None:
        """Insert an entry and return None. If its key has a row, return the length of the row's value."""
        try:
            self._execute(_INSERT, row)
        except apsw.ConstraintError:
            length: int = self._execute(_LENGTH, row[:2]).get
            return length
        return None

    def remove(self) -> None:
        """Remove the keys that were planned for removal."""
        for key, length in self._removed:
            self._sizes.count(key, -1, -len(key) - length)
            self._rows.known.pop(key, None)
            self._execute("DELETE FROM entries WHERE space = ? AND key = ?", (self._head.id, key))

    def log(self) -> None:
        """Write the revision's row of the log, which makes it the space's newest."""
        size_bytes = limits.CHANGE_BYTES * (1 + len(self._puts) + len(self._removed))
        logged = self._logged_puts + self._logged_removals
        for key, _, old, new in logged:
            size_bytes += len(key) + len(old or b"") + len(new or b"")
        self._head.stored_sizes = self._sizes.encode()
        self._head.advance(
            self._execute,
            size_bytes=size_bytes,
            token=self._token,
            nonce=self._nonce,
            changes=encode_changes(logged),
        )
