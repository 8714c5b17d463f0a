"""The encoding of spaces, batches and replies: the Python side of `scripts/parts/space.lua`.

Pure. Everything here is frozen by `scripts.FORMAT`.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from keepstate.errors import CorruptError, OutcomeUnknownError, StorageError, StoreUnavailableError
from keepstate.stores.admission import cut_log_error, log_size_error, stamped_key_error
from keepstate.stores.protocol import (
    NONCE_BYTES,
    Applied,
    Batch,
    Change,
    Check,
    Conflict,
    Entry,
    Leap,
    Mark,
    Outcome,
    PartSize,
    Put,
    Write,
)
from keepstate.stores.redis.scripts import FORMAT
from keepstate.stores.redis.wire import Reply
from keepstate.values.key import successor

SLOTS: Final = 16_384
REGISTRY_SHARDS: Final = 16
"""Number of sorted sets for the names of spaces, so that no node of a cluster stores all of them."""

STATE_FIELD: Final = b"m"
_HEAD_FIELD = b"h"
_RECORD_FIELD = b"n"

APPLIED: Final = b"applied"
LOST: Final = b"lost"
LARGE: Final = b"large"
CLOCK: Final = b"clock"
_CONFLICT = b"conflict"
_UNKNOWN = b"unknown"
_STAMPED = b"stamped"
_FORMAT = b"format"
_RUINS = b"ruins"
_MOVING = b"moving"

_CONDITIONS = struct.Struct(">BQQQQHH")
_MARK = struct.Struct(f">Q{NONCE_BYTES}s")
_CHECK = struct.Struct(">cQ")
_REVISION = struct.Struct(">Q")
_STATE = struct.Struct(f">BQ{NONCE_BYTES}sQQQQQ{NONCE_BYTES}sQQQ")
_HEAD = struct.Struct(">QQQI")
_PART = struct.Struct(">QQB")
_CHANGE = struct.Struct(">BH")
_SIZE = struct.Struct(">I")

_AT, _RETRY, _SWEEPS, _CLUSTER = 1, 2, 4, 8
_DELETED, _HAS_OLD, _HAS_NEW, _EXPIRED = 1, 2, 4, 8


class SpaceKeys(NamedTuple):
    """The keys of a space, all of one slot, and the name under which it is registered."""

    name: bytes
    keys: tuple[bytes, bytes, bytes, bytes, bytes]
    """Entries, log, index, expiry, retries; the first one is also the channel of its hints."""
    slot: int

    @property
    def registry_shard(self) -> int:
        """Return the index of the registry's sorted set that lists the space."""
        return self.slot * REGISTRY_SHARDS // SLOTS


class State(NamedTuple):
    """The state of a space apart from its entries."""

    revision: int
    nonce: bytes
    floor: int
    clock_ms: int
    due_ms: int
    """A time before which no entry expires; 0 if none ever does."""
    floor_nonce: bytes
    leap: Leap | None = None

    @property
    def exists(self) -> bool:
        """Return whether a batch was applied since the space was new or last dropped."""
        return self.revision > self.floor


def keys_of(prefix: str, space: str) -> SpaceKeys:
    """Return the keys of a space.

    The braces make a cluster store all keys of a space on one node. A closing brace in the name would end the
    tag early, so it is written %7D, and % itself %25.
    """
    name = space.encode()
    tag = name.replace(b"%", b"%25").replace(b"}", b"%7D")
    stem = b"%b:{%b}:" % (prefix.encode(), tag)
    keys = (stem + b"entries", stem + b"log", stem + b"index", stem + b"expiry", stem + b"retries")
    return SpaceKeys(name, keys, slot_of_tag(tag))


def registry_key(prefix: str, shard: int) -> bytes:
    """Return the key of a sorted set of names of spaces."""
    return f"{prefix}:spaces:{{{shard}}}".encode()


def slot_of_tag(tag: bytes) -> int:
    """Return the slot of keys with the tag `{tag}`."""
    return crc_hqx(tag, 0) % SLOTS


# ---- requests


def encode_mark(mark: Mark | None) -> bytes:
    """Encode a mark as an argument of scripts; None is empty."""
    return b"" if mark is None else _MARK.pack(*mark)


def encode_batch(
    batch: Batch, mark: Mark | None, nonces: bytes, clock_ms: int, *, sweeps: bool, is_cluster: bool
) -> list[bytes]:
    """Return the arguments of `apply.lua`.

    Args:
        batch: The batch.
        mark: The mark of the space that this handle has seen last.
        nonces: The nonce of the batch's revision, and of the revision that the sweep after it may make.
        clock_ms: The clock of this process, which confirms the server's.
        sweeps: Whether to remove expired entries after the batch.
        is_cluster: Whether slots may be moving.
    """
    at, retry_of = batch.at, batch.retry_of
    flags = (0 if at is None else _AT) | (0 if retry_of is None else _RETRY) | (_SWEEPS if sweeps else 0)
    flags |= _CLUSTER if is_cluster else 0
    assert batch.token is not None  # StoreBase gives a token to every batch of a store that can lose replies
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
    """Return the fields of a space's state, and of the head and value of each key."""
    fields = [STATE_FIELD]
    for key in keys:
        fields += (_HEAD_FIELD + key, key)
    return fields


def record_field(revision: int) -> bytes:
    """Return the field of the log with the head of a revision's record."""
    return _RECORD_FIELD + _REVISION.pack(revision)


def lex_range(prefix: bytes, after: bytes | None, *, reverse: bool = False) -> tuple[bytes, bytes]:
    """Return the start and end of a range of names in scan direction, as arguments of ZRANGEBYLEX."""
    above = successor(prefix)
    low, high = b"[" + prefix, b"+" if above is None else b"(" + above
    if reverse:
        return (high if after is None else b"(" + after), low
    return (low if after is None or after < prefix else b"(" + after), high


# ---- replies


def decode_state(stored: bytes | None, space: str) -> State:
    """Decode a space's state; without one the space is new."""
    if stored is None:
        return State(0, b"", 0, 0, 0, b"")
    if stored[:1] != bytes((FORMAT,)) or len(stored) != _STATE.size:
        raise CorruptError(
            f"The state of space {space!r} has format {stored[0] if stored else None} and {len(stored)} "
            "bytes, which this version cannot read. Upgrade keepstate, or restore the space from a backup.",
            space=space,
        )
    _, revision, nonce, floor, clock_ms, due_ms, _, _, floor_nonce, *leap = _STATE.unpack(stored)
    return State(revision, nonce, floor, clock_ms, due_ms, floor_nonce, Leap(*leap) if leap[0] else None)


def decode_sizes(stored: bytes, space: str) -> Iterator[tuple[bytes, PartSize]]:
    """Yield the parts of a space with their sizes.

    Raises:
        CorruptError: The bytes end within a part.
    """
    at = 0
    while at < len(stored):
        end = at + _PART.size
        entries, size_bytes, length = _PART.unpack_from(stored, at) if end <= len(stored) else (0, 0, 0)
        at = end + length
        if not length > 0 or at > len(stored):
            raise CorruptError(
                f"The sizes of space {space!r} are damaged: they are cut off. Restore it from a backup.",
                space=space,
            )
        yield stored[end:at], PartSize(entries, size_bytes)


def has_lost(state: State, mark: Mark, record: bytes | None) -> bool:
    """Return whether a space no longer has a mark that was seen.

    Args:
        state: The present state of the space.
        mark: The mark.
        record: The content of the mark's `record_field`, read no later than the state.
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
        raise CorruptError(
            f"The entry of {key!r} is damaged: a part of it is missing. Restore it from a backup.",
            place=repr(key),
        )
    version, created, expires_at_ms, _ = _HEAD.unpack(head)
    if 0 < expires_at_ms <= now_ms:
        return None
    return Entry(key, value, version, created, expires_at_ms or None)


def decode_changes(revision: int, body: bytes | None) -> Iterator[Change]:
    """Yield the changes of a record.

    Raises:
        CorruptError: The record is missing, or ends within a change.
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
    return CorruptError(f"{place} is damaged: it is cut off. Restore the space from a backup.", place=place)


# ---- outcomes and errors


def outcome_of(batch: Batch, reply: list[Reply], url: str) -> Outcome:
    """Return the outcome of a batch from a reply of `apply.lua`."""
    kind, space = reply[0], batch.space
    if kind == APPLIED:
        return Applied(cast("int", reply[1]), cast("int", reply[2]))
    if kind == _CONFLICT:
        return Conflict(cast("bytes", reply[1]) or None, cast("int", reply[2]))
    if kind == _UNKNOWN:
        return cut_log_error(batch, url)
    if kind == _STAMPED:
        return stamped_key_error(space)
    if kind == LARGE:
        return log_size_error(space)
    damage = f"The outcome that space {space!r} at {url} stores for a retry is damaged. Read the space."
    return script_error(space, reply, url) or CorruptError(damage, url=url, space=space)


def mark_of(reply: list[Reply], nonce: bytes) -> tuple[int, bytes]:
    """Return the mark of an applied batch; `nonce` is the batch's own."""
    if len(reply) == 3:
        return cast("int", reply[1]), nonce
    return cast("int", reply[3]), cast("bytes", reply[4])


def script_error(space: str, reply: list[Reply], url: str) -> StorageError | None:
    """Return the error that a script replied because it could not work on the space, or None."""
    kind, where = reply[0], f"space {space!r} at {url}"
    if kind == _MOVING:
        return StoreUnavailableError(f"{where} is being moved to another node", url=url, space=space)
    if kind == _FORMAT:
        what = f"{where} has format {reply[1]!r}, which this version cannot read. Upgrade keepstate."
        return CorruptError(what, url=url, space=space)
    if kind == _RUINS:
        what = f"Parts of {where} are missing, or a key with its name is not keepstate's. "
        return CorruptError(what + "Restore the space, or use another prefix=", url=url, space=space)
    return None


def unread_error(error: OutcomeUnknownError) -> StoreUnavailableError:
    """Return the error of a read without a reply. A read changes nothing, so no outcome is unknown."""
    return StoreUnavailableError(str(error), url=error.url, space=error.space)
