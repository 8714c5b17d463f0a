"""How spaces, batches and answers look on the wire: the Python side of `scripts/parts/space.lua`.

Pure. Everything here is frozen by `scripts.FORMAT`.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from keepstate.errors import CorruptError
from keepstate.stores.protocol import NONCE_BYTES, Batch, Change, Check, Entry, Leap, Mark, Put, Write
from keepstate.stores.redis.scripts import FORMAT
from keepstate.values.key import successor

SLOTS: Final = 16_384
REGISTRY_SHARDS: Final = 16
"""Into how many sorted sets the names of spaces are spread, so that no node of a cluster keeps them all."""

STATE_FIELD: Final = b"m"
_HEAD_FIELD = b"h"
_RECORD_FIELD = b"n"

_CONDITIONS = struct.Struct(">BQQQQHH")
_MARK = struct.Struct(f">Q{NONCE_BYTES}s")
_CHECK = struct.Struct(">cQ")
_REVISION = struct.Struct(">Q")
_STATE = struct.Struct(f">BQ{NONCE_BYTES}sQQQQQ{NONCE_BYTES}sQQQ")
_HEAD = struct.Struct(">QQQI")
_CHANGE = struct.Struct(">BH")
_SIZE = struct.Struct(">I")

_AT, _RETRY, _SWEEPS, _CLUSTER = 1, 2, 4, 8
_DELETED, _HAS_OLD, _HAS_NEW, _EXPIRED = 1, 2, 4, 8


class Place(NamedTuple):
    """Where a space is kept: its keys, of one slot, and the name by which it is registered."""

    name: bytes
    keys: tuple[bytes, bytes, bytes, bytes, bytes]
    """Entries, log, index, expiry, retries; the first is also the channel of its hints."""
    slot: int

    @property
    def registry_shard(self) -> int:
        """Return which of the registry's sorted sets lists the space."""
        return self.slot * REGISTRY_SHARDS // SLOTS


class State(NamedTuple):
    """What is known of a space beside its entries."""

    revision: int
    nonce: bytes
    floor: int
    clock_ms: int
    due_ms: int
    """When the first entry expires, at the earliest; 0 for never."""
    floor_nonce: bytes
    leap: Leap | None = None

    @property
    def exists(self) -> bool:
        """Return whether anything was applied since the space was new or last dropped."""
        return self.revision > self.floor


def place(prefix: str, space: str) -> Place:
    """Return the place of a space.

    The braces make a cluster keep all keys of a space together. A closing one in the name would end the tag
    early, so it is written %7D, and % itself %25.
    """
    name = space.encode()
    tag = name.replace(b"%", b"%25").replace(b"}", b"%7D")
    stem = b"%b:{%b}:" % (prefix.encode(), tag)
    keys = (stem + b"entries", stem + b"log", stem + b"index", stem + b"expiry", stem + b"retries")
    return Place(name, keys, slot_of_tag(tag))


def registry_key(prefix: str, shard: int) -> bytes:
    """Return the key of one sorted set of spaces' names."""
    return f"{prefix}:spaces:{{{shard}}}".encode()


def slot_of_tag(tag: bytes) -> int:
    """Return the slot of a cluster in which keys tagged `{tag}` are."""
    return crc_hqx(tag, 0) % SLOTS


# ---- what is sent


def encode_mark(mark: Mark | None) -> bytes:
    """Return a mark as scripts take it; nothing for none."""
    return b"" if mark is None else _MARK.pack(*mark)


def encode_batch(
    batch: Batch, mark: Mark | None, nonces: bytes, clock_ms: int, *, sweeps: bool, is_cluster: bool
) -> list[bytes]:
    """Return the arguments of `apply.lua`.

    Args:
        batch: What to apply.
        mark: What this handle has seen last of the space.
        nonces: Of the batch's revision, and of the one that the sweep after it may make.
        clock_ms: The clock of this process, to confirm the server's.
        sweeps: Whether to remove expired entries after it.
        is_cluster: Whether slots may be moving.
    """
    at, retry_of = batch.at, batch.retry_of
    flags = (0 if at is None else _AT) | (0 if retry_of is None else _RETRY) | (_SWEEPS if sweeps else 0)
    flags |= _CLUSTER if is_cluster else 0
    assert batch.token is not None  # StoreBase names every batch of a store that can lose replies
    counts = len(batch.checks), len(batch.writes)
    times = batch.alive_until_ms or 0, max(clock_ms, 0)
    conditions = _CONDITIONS.pack(flags, at or 0, *times, retry_of or 0, *counts)
    words = [conditions, encode_mark(mark), batch.token, nonces]
    for check in batch.checks:
        words += (check.key, _encode_check(check))
    for write in batch.writes:
        words += _encode_write(write)
    return words


def _encode_check(check: Check) -> bytes:
    if check.version is not None:
        return _CHECK.pack(b"v", check.version)
    return _CHECK.pack(b"c", check.created or 0)


def _encode_write(write: Write) -> tuple[bytes, bytes, bytes]:
    if not isinstance(write, Put):
        return b"d", write.key, b""
    kind = b"s" if write.stamp else b"p"
    return kind if write.ttl_ms is None else b"%b%d" % (kind, write.ttl_ms), write.key, write.value


def entry_fields(keys: Sequence[bytes]) -> list[bytes]:
    """Return the fields that hold a space's state, and the head and value of each key."""
    fields = [STATE_FIELD]
    for key in keys:
        fields += (_HEAD_FIELD + key, key)
    return fields


def record_field(revision: int) -> bytes:
    """Return the field of the log that holds the head of a revision's record."""
    return _RECORD_FIELD + _REVISION.pack(revision)


def lex_range(prefix: bytes, after: bytes | None, *, reverse: bool = False) -> tuple[bytes, bytes]:
    """Return where a range of names begins and end in scan direction, as ZRANGEBYLEX takes it."""
    above = successor(prefix)
    low, high = b"[" + prefix, b"+" if above is None else b"(" + above
    if reverse:
        return (high if after is None else b"(" + after), low
    return (low if after is None or after < prefix else b"(" + after), high


# ---- what is answered


def decode_state(stored: bytes | None, space: str) -> State:
    """Return a space's state; a new one where there is none."""
    if stored is None:
        return State(0, b"", 0, 0, 0, b"")
    if stored[:1] != bytes((FORMAT,)) or len(stored) != _STATE.size:
        raise CorruptError(
            f"the state of space {space!r} has format {stored[0] if stored else None} and {len(stored)} "
            "bytes, which this release cannot read",
            space=space,
        )
    _, revision, nonce, floor, clock_ms, due_ms, _, _, floor_nonce, *leap = _STATE.unpack(stored)
    return State(revision, nonce, floor, clock_ms, due_ms, floor_nonce, Leap(*leap) if leap[0] else None)


def has_lost(state: State, mark: Mark, record: bytes | None) -> bool:
    """Return whether a space no longer has a mark that was seen there.

    Args:
        state: The space as it is.
        mark: What was seen.
        record: What `record_field` of the mark held, read no later than the state.
    """
    if mark.revision >= state.revision:
        return mark != (state.revision, state.nonce)
    if mark.revision == state.floor:
        return mark.nonce != state.floor_nonce
    return mark.revision > state.floor and (record is None or record[:NONCE_BYTES] != mark.nonce)


def decode_entry(key: bytes, head: bytes | None, value: bytes | None, now_ms: int) -> Entry | None:
    """Return an entry, or None if it is absent or expired."""
    if head is None and value is None:
        return None
    if head is None or value is None or len(head) != _HEAD.size:
        raise CorruptError(f"the entry of {key!r} is damaged: a part of it is missing", place=repr(key))
    version, created, expires_at_ms, _ = _HEAD.unpack(head)
    if 0 < expires_at_ms <= now_ms:
        return None
    return Entry(key, value, version, created, expires_at_ms or None)


def decode_changes(revision: int, body: bytes | None) -> Iterator[Change]:
    """Yield the changes of a record.

    Raises:
        CorruptError: It ends within one, or is not there.
    """
    if body is None:
        raise _cut_off(revision)
    try:
        yield from _changes_in(revision, body)
    except struct.error as error:
        raise _cut_off(revision) from error


def _changes_in(revision: int, body: bytes) -> Iterator[Change]:
    at = 0
    while at < len(body):
        flags, size = _CHANGE.unpack_from(body, at)
        at += _CHANGE.size + size
        key = body[at - size : at]
        values: list[bytes | None] = []
        for flag in (_HAS_OLD, _HAS_NEW):
            value = None
            if flags & flag:
                (size,) = _SIZE.unpack_from(body, at)
                at += _SIZE.size + size
                value = body[at - size : at]
            values.append(value)
        if at > len(body):
            raise _cut_off(revision)
        old, new = values
        yield Change(revision, key, bool(flags & _DELETED), old, new, bool(flags & _EXPIRED))


def _cut_off(revision: int) -> CorruptError:
    place = f"revision {revision} of the log"
    return CorruptError(f"{place} is cut off", place=place)
