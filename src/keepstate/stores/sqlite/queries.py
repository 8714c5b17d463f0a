"""Queries, each of which reads one snapshot inside the caller's read transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepstate.stores.admission import check_read_size, require_logged
from keepstate.stores.protocol import Change, Changes, Entry, Leap, Page, Reading, Sizes
from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.connection import Execute, Rows
from keepstate.stores.sqlite.revision import Head
from keepstate.stores.sqlite.schema import decode_changes
from keepstate.values import limits
from keepstate.values.key import successor

_ENTRY: Final = "SELECT value, version, created, expires_at_ms, seal FROM entries WHERE space = ? AND key = ?"
_RANGE: Final = """
    SELECT key, value, version, created, expires_at_ms, seal FROM entries
    WHERE space = ? AND key {lower} ? AND key < ? ORDER BY key {order} LIMIT ?
"""
_UPWARDS: Final = _RANGE.format(lower=">=", order="ASC")
_ABOVE: Final = _RANGE.format(lower=">", order="ASC")
_DOWNWARDS: Final = _RANGE.format(lower=">=", order="DESC")

_HEAD: Final = f"""
    FROM log WHERE log.id BETWEEN spaces.id << {schema.REVISION_BITS}
        AND spaces.id << {schema.REVISION_BITS} | {schema.LAST_REVISION}
    ORDER BY log.id DESC LIMIT 1
"""
_SPACES: Final = f"""
    SELECT name FROM spaces
    WHERE name >= ?1 AND name > ?2 AND name < ?3
        AND (SELECT (log.id & {schema.LAST_REVISION}) > floor {_HEAD})
    ORDER BY name LIMIT ?4
"""
_EXPIRED: Final = f"""
    WITH RECURSIVE timed (space) AS (
        SELECT min(space) FROM entries WHERE expires_at_ms IS NOT NULL
        UNION ALL
        SELECT (SELECT min(space) FROM entries WHERE expires_at_ms IS NOT NULL AND space > timed.space)
        FROM timed WHERE timed.space IS NOT NULL
    )
    SELECT name FROM timed JOIN spaces ON spaces.id = timed.space
    WHERE name >= ?1 AND name < ?2 AND EXISTS (
        SELECT 1 FROM entries
        WHERE entries.space = timed.space AND expires_at_ms <= max(?3, (SELECT now_ms {_HEAD}))
    ) LIMIT ?4
"""

_EXPIRED_SIZES: Final = "SELECT key, length(value) FROM entries WHERE space = ? AND expires_at_ms <= ?"


def read(execute: Execute, head: Head, path: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
    """Return the entries of these keys that are live at `at_ms`, or now."""
    number = head.id
    if at_ms is None:
        at_ms = head.now_ms
    found: list[Entry | None] = []
    size = 0
    for key in keys:
        row: Any = execute(_ENTRY, (number, key)).get
        if row is None or (row[3] is not None and row[3] <= at_ms):
            found.append(None)
            continue
        value, version, created, expires_at_ms, seal = row
        if seal != schema.entry_seal(key, value, version, expires_at_ms):
            raise schema.damage_error(f"the entry of {key!r}", path, head.name)
        size += len(value)
        if size > limits.READ_BYTES:
            check_read_size(head.name.decode(), size)
        found.append(Entry(key, value, version, created, expires_at_ms))
    return Reading(found, head.revision, head.now_ms)


def scan(
    execute: Execute,
    head: Head,
    path: str,
    prefix: bytes,
    after: bytes | None,
    limit: int,
    reverse: bool,
    at_ms: int | None,
) -> Page:
    """Return the next page of entries that are live at `at_ms`, or now."""
    if at_ms is None:
        at_ms = head.now_ms
    found: list[Entry] = []
    size = looked = 0
    last: bytes | None = None
    for key, value, version, created, expires_at_ms, seal in _rows(
        execute, head.id, prefix, after, reverse=reverse
    ):
        if len(found) == limit or looked == limits.PAGE_ROWS:
            return Page(found, last, head.revision, head.now_ms, head.nonce)
        if expires_at_ms is None or expires_at_ms > at_ms:
            if seal != schema.entry_seal(key, value, version, expires_at_ms):
                raise schema.damage_error(f"the entry of {key!r}", path, head.name)
            size += len(value)
            if size > limits.PAGE_BYTES and found:
                return Page(found, last, head.revision, head.now_ms, head.nonce)
            found.append(Entry(key, value, version, created, expires_at_ms))
        looked, last = looked + 1, key
    return Page(found, None, head.revision, head.now_ms, head.nonce)


def sizes(execute: Execute, head: Head, path: str) -> Sizes:
    """Return the size of each part."""
    expired: list[tuple[bytes, int]] = []
    if head.expiry_ms is not None and head.expiry_ms <= head.now_ms:
        expired = execute(_EXPIRED_SIZES, (head.id, head.now_ms)).fetchall()
    return Sizes(head.sizes().without(expired), head.revision, head.now_ms)


def _rows(execute: Execute, number: int, prefix: bytes, after: bytes | None, *, reverse: bool) -> Rows:
    rows = limits.PAGE_ROWS + 1
    above = successor(prefix)
    assert above is not None  # a prefix begins with a section, which is never FF
    if reverse:
        return execute(_DOWNWARDS, (number, prefix, above if after is None else after, rows))
    if after is None:
        return execute(_UPWARDS, (number, prefix, above, rows))
    return execute(_ABOVE, (number, after, above, rows))


def changes(execute: Execute, head: Head, path: str, after: int, limit: int) -> Changes:
    """Return the logged changes above `after`, in whole revisions."""
    require_logged(head.name.decode(), after, floor=head.floor, revision=head.revision)
    first, last = schema.log_range(head.id)
    nonces = {after: _nonce_of(execute, head, after)}
    items: list[Change] = []
    size, upto = 0, after
    for row, size_bytes, nonce, seal, encoded in execute(
        "SELECT id, size_bytes, nonce, seal, changes FROM log WHERE id > ? AND id <= ? ORDER BY id",
        (first + after, last),
    ):
        if row != first + upto + 1 or seal != schema.log_seal(row, nonce, encoded):
            raise schema.damage_error(f"revision {upto + 1}", path, head.name)
        upto += 1
        nonces[upto] = nonce
        items += decode_changes(encoded, upto)
        size += size_bytes
        if len(items) >= limit or size >= limits.PAGE_BYTES:
            break
    return Changes(items, upto, head.floor, nonces)


def _nonce_of(execute: Execute, head: Head, revision: int) -> bytes:
    """Return the nonce of a revision at or above the floor."""
    if revision in (head.floor, head.revision):
        return head.floor_nonce if revision == head.floor else head.nonce
    nonce: bytes | None = execute(
        "SELECT nonce FROM log WHERE id = ?", (head.id << schema.REVISION_BITS | revision,)
    ).get
    return nonce or b""


def leap(execute: Execute, name: bytes) -> Leap | None:
    """Return the last leap of a space's time."""
    stored: Any = execute("SELECT leap FROM spaces WHERE name = ?", (name,)).get
    return schema.decode_leap(stored)


def changed_ms(execute: Execute, names: Sequence[bytes]) -> list[int | None]:
    """Return the time of the last revision of each space, or None without one."""
    return [Head.read(execute, name).now_ms or None for name in names]


def spaces(execute: Execute, prefix: str, after: str | None, limit: int) -> list[str]:
    """Return names of spaces that are not empty."""
    start = prefix.encode()
    names = execute(_SPACES, (start, (after or "").encode(), start + b"\xff", limit))
    return [schema.decode_name(name) for (name,) in names]


def expired_spaces(execute: Execute, prefix: str, clock_ms: int, limit: int) -> list[str]:
    """Return up to `limit` names of spaces with an expired entry; the query jumps from space to space."""
    start = prefix.encode()
    names = execute(_EXPIRED, (start, start + b"\xff", clock_ms, limit))
    return [schema.decode_name(name) for (name,) in names]


def has_garbage(execute: Execute) -> bool:
    """Return whether rows of a dropped space are left."""
    found: int = execute("SELECT count(*) FROM (SELECT 1 FROM spaces WHERE name IS NULL LIMIT 1)").get
    return found > 0


def revision_of(execute: Execute, space: str) -> int:
    """Return the space's revision."""
    return Head.read(execute, space.encode()).revision
