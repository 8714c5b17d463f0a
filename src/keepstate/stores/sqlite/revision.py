"""The rows of one batch's writes: looked up, written and logged."""

from __future__ import annotations

from typing import Any, Final

from keepstate.stores.protocol import Delete, Put, Write
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.changes import DELETED, PUT, PUT_OVER_EXPIRED, Logged, encode
from keepstate.stores.sqlite.head import Head
from keepstate.stores.sqlite.statements import Execute
from keepstate.values import limits
from keepstate.values.key import OBJECTS, WITH_VALUES, stamp_suffix

_UPSERT: Final = """
    INSERT INTO entries (space, key, version, created, expires_at_ms, seal, value)
    VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6)
    ON CONFLICT (space, key) DO UPDATE SET
        version = excluded.version, expires_at_ms = excluded.expires_at_ms,
        seal = excluded.seal, value = excluded.value,
        created = CASE WHEN expires_at_ms <= ?7 THEN excluded.created ELSE created END
"""


class Revision:
    """The next revision of a space, under construction."""

    def __init__(self, execute: Execute, path: str, head: Head, token: bytes | None, nonce: bytes) -> None:
        self._execute, self._path, self._head = execute, path, head
        self._token, self._nonce = token, nonce
        self.replaced_bytes = 0
        """Size of the replaced and removed values that the log will store."""
        self._puts: list[tuple[bytes, Put]] = []
        self._removed: list[bytes] = []
        self._logged_puts: list[Logged] = []
        self._logged_removals: list[Logged] = []

    def look_up(self, write: Write, index: int) -> None:
        """Plan one write of the batch."""
        if type(write) is Delete:
            self.look_up_removal(write.key)
            return
        assert type(write) is Put
        key = write.key + stamp_suffix(self._head.revision + 1, index) if write.stamp else write.key
        self._puts.append((key, write))
        if key[0] == WITH_VALUES:
            row = self._row(key)
            # The value of an expired entry is included: this write removes it.
            old = None if row is None else row[3]
            if old is not None:
                self.replaced_bytes += len(old)
            is_expired = row is not None and row[1] is not None and row[1] <= self._head.now_ms
            self._logged_puts.append((key, PUT_OVER_EXPIRED if is_expired else PUT, old, write.value))
        elif key[0] != OBJECTS:
            self._logged_puts.append((key, PUT, None, None))

    def look_up_removal(self, key: bytes) -> None:
        """Plan the removal of a key; an absent key is not a change."""
        row = self._row(key) if key[0] == WITH_VALUES else self._exists(key)
        if row is None:
            return
        self._removed.append(key)
        if key[0] != OBJECTS:
            # The removal of an expired value is logged with that value.
            old = row[3] if key[0] == WITH_VALUES else None
            if old is not None:
                self.replaced_bytes += len(old)
            self._logged_removals.append((key, DELETED, old, None))

    def _exists(self, key: bytes) -> Any:
        return self._execute("SELECT 1 FROM entries WHERE space = ? AND key = ?", (self._head.id, key)).get

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
        head, version = self._head, self._head.revision + 1
        for key, put in self._puts:
            expires_at_ms = None if put.ttl_ms is None else head.now_ms + put.ttl_ms
            if expires_at_ms is not None and (head.expiry_ms is None or expires_at_ms < head.expiry_ms):
                head.expiry_ms = expires_at_ms
            seal = schema.entry_seal(key, put.value, version, expires_at_ms)
            self._execute(_UPSERT, (head.id, key, version, expires_at_ms, seal, put.value, head.now_ms))
        self.remove()
        self.log()

    def remove(self) -> None:
        """Remove the keys that were planned for removal."""
        for key in self._removed:
            self._execute("DELETE FROM entries WHERE space = ? AND key = ?", (self._head.id, key))

    def log(self) -> None:
        """Write the revision's row of the log, which makes it the space's newest."""
        size_bytes = limits.CHANGE_BYTES * (1 + len(self._puts) + len(self._removed))
        logged = self._logged_puts + self._logged_removals
        for key, _, old, new in logged:
            size_bytes += len(key) + len(old or b"") + len(new or b"")
        self._head.advance(
            self._execute,
            size_bytes=size_bytes,
            token=self._token,
            nonce=self._nonce,
            changes=encode(logged),
        )
