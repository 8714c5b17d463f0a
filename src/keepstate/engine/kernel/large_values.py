"""Values too large for one entry: parts named by content, and a manifest in the entry that lists them.

Parts that fit are written in one batch with their manifest. Otherwise the parts are written first, and the
batch with the manifest checks `gc/epoch`, so that no collection ran in between: a part without a manifest is
garbage. Readers see nothing of the value until the last batch is applied. Invariant: a manifest never moves
to another key, so a collector that reads every key once has seen every manifest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import content_name
from keepstate.engine.kernel.stored import corrupt_error, decode_stored, describe
from keepstate.errors import ConflictError, CorruptError, KeepstateError
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Check,
    Conflict,
    Delete,
    Entry,
    Outcome,
    Put,
    Store,
)
from keepstate.values import limits
from keepstate.values.refs import DIGEST_SIZE

MANIFEST_BYTE: Final = b"\xd7"
"""The first byte of a manifest, instead of a value's format byte. `values.codec` does not use it."""

_PARTS_BY_BATCH = limits.BATCH_BYTES // limits.VALUE_BYTES - 1
_EPOCH_ATTEMPTS = 16
_COLLECTED_BY_BATCH = limits.BATCH_CHECKS // 2
_LARGEST_BYTES: Final = limits.DECODED_BYTES + limits.VALUE_BYTES
"""More than the size of any encoded value, because a record may add a few bytes to one."""


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The parts of a value in order, and the digest of the complete value."""

    size_bytes: int
    digest: bytes
    parts: list[bytes]


def split(store: Store, space: str, value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Split a value. Return the manifest to store instead of it, and its parts by key."""
    parts: dict[bytes, bytes] = {}
    names: list[bytes] = []
    for start in range(0, len(value), limits.VALUE_BYTES):
        part = value[start : start + limits.VALUE_BYTES]
        names.append(content_name(store, space, part))
        parts[layout.PARTS + names[-1]] = part
    manifest = Manifest(len(value), sha256(value).digest(), names)
    return MANIFEST_BYTE + msgspec.msgpack.encode(manifest), parts


def parse_manifest(value: bytes, location: str) -> Manifest | None:
    """Return the manifest in a stored value, or None if the value itself is stored.

    Raises:
        CorruptError: It begins like a manifest, but is not a valid one.
    """
    if not value.startswith(MANIFEST_BYTE):
        return None
    manifest = decode_stored(value[1:], Manifest, location)
    count = -(-manifest.size_bytes // limits.VALUE_BYTES)
    # Without this check, a few bytes that repeat the name of one part could exhaust the memory.
    if count != len(manifest.parts) or not limits.VALUE_BYTES < manifest.size_bytes <= _LARGEST_BYTES:
        raise corrupt_error(
            location, f"its manifest lists {len(manifest.parts)} parts for {manifest.size_bytes} bytes"
        )
    if any(len(name) != DIGEST_SIZE for name in manifest.parts):
        raise corrupt_error(location, "its manifest has an invalid part name")
    return manifest


async def read_whole(store: Store, space: str, entry: Entry) -> bytes:
    """Return the complete value of an entry, joined from its parts if it has any.

    Raises:
        ConflictError: The entry was replaced during the read, and its parts were collected.
        CorruptError: A part is missing under an unchanged entry, or damaged.
    """
    if not entry.value.startswith(MANIFEST_BYTE):
        return entry.value
    location = f"{describe(entry.key)} of {space!r}"
    manifest = parse_manifest(entry.value, location)
    assert manifest is not None
    value = await fetch(store, space, manifest, location)
    if value is not None:
        return value
    now = (await store.read(space, [entry.key])).entries[0]
    actual = now.version if now else 0
    if actual != entry.version:
        raise ConflictError(
            f"{location} was replaced while it was read; read it again",
            space=space,
            key=entry.key,
            actual=actual,
        )
    raise CorruptError(
        f"{location} is damaged: a part of its value is missing; restore it from a backup",
        space=space,
        place=location,
    )


async def fetch(store: Store, space: str, manifest: Manifest, location: str) -> bytes | None:
    """Return the complete value of a manifest, or None if a part is missing.

    Raises:
        CorruptError: The joined parts do not match the size and digest in the manifest.
    """
    keys = [layout.PARTS + name for name in manifest.parts]
    pieces: list[bytes] = []
    for start in range(0, len(keys), _PARTS_BY_BATCH):
        reading = await store.read(space, keys[start : start + _PARTS_BY_BATCH])
        for entry in reading.entries:
            if entry is None:
                return None
            pieces.append(entry.value)
    whole = b"".join(pieces)
    if len(whole) != manifest.size_bytes or sha256(whole).digest() != manifest.digest:
        raise CorruptError(
            f"{location} is damaged: its parts do not match their digest; restore it from a backup",
            place=location,
        )
    return whole


async def apply_with_parts(store: Store, batch: Batch, parts: dict[bytes, bytes]) -> Outcome:
    """Apply a batch whose manifests list these parts."""
    if not parts:
        return (await store.apply([batch]))[0]
    puts = [Put(key, part) for key, part in parts.items()]
    own = total = 0
    for write in batch.writes:
        own += len(write.key) + (len(write.value) if type(write) is Put else 0)
    for key, part in parts.items():
        total += len(key) + len(part)
    if own + total <= limits.BATCH_BYTES and len(batch.writes) + len(puts) <= limits.BATCH_WRITES:
        # A stamp contains the index of the write in its batch. Parts go last, so that they shift no index.
        return (await store.apply([msgspec.structs.replace(batch, writes=[*batch.writes, *puts])]))[0]
    if len(batch.writes) > limits.BATCH_WRITES or own > limits.BATCH_BYTES:
        return (await store.apply([batch]))[
            0
        ]  # over a limit without parts: rejected before any part is written
    if batch.at is not None:
        return await _apply_at(store, batch, puts)
    outcome: Outcome = Conflict(layout.EPOCH, 0)
    for _ in range(_EPOCH_ATTEMPTS):
        epoch = (await store.read(batch.space, [layout.EPOCH])).entries[0]
        if (failure := await _send_ahead(store, batch, puts)) is not None:
            return failure
        check = Check(layout.EPOCH, version=epoch.version if epoch else 0)
        outcome = (await store.apply([msgspec.structs.replace(batch, checks=[*batch.checks, check])]))[0]
        if not (isinstance(outcome, Conflict) and outcome.key == layout.EPOCH):
            break
    return outcome


async def _apply_at(store: Store, batch: Batch, puts: Sequence[Put]) -> Outcome:
    """Apply a batch that requires an unchanged space: each batch applies at the revision of the last one."""
    at = batch.at
    for ahead in group_puts(puts, limits.BATCH_BYTES):
        outcome = (await store.apply([Batch(batch.space, ahead, at=at)]))[0]
        if not isinstance(outcome, Applied):
            return outcome
        at = outcome.revision
    return (await store.apply([msgspec.structs.replace(batch, at=at)]))[0]


async def _send_ahead(store: Store, batch: Batch, puts: Sequence[Put]) -> Outcome | None:
    grants = [check for check in batch.checks if check.key.startswith(layout.GRANTS)]
    for ahead in group_puts(puts, limits.BATCH_BYTES):
        outcome = (await store.apply([Batch(batch.space, ahead, grants)]))[0]
        if not isinstance(outcome, Applied):
            return outcome
    return None


def group_puts(puts: Iterable[Put], most_bytes: int) -> Iterator[list[Put]]:
    """Yield puts in groups that fit into a batch each."""
    group: list[Put] = []
    size = 0
    for put in puts:
        own = len(put.key) + len(put.value)
        if group and (len(group) == limits.BATCH_WRITES or size + own > most_bytes):
            yield group
            group, size = [], 0
        group.append(put)
        size += own
    if group:
        yield group


def part_keys_in(values: Iterable[bytes | None]) -> set[bytes]:
    """Return the keys of all parts listed by the manifests among these stored values."""
    found: set[bytes] = set()
    for value in values:
        if value is not None and (manifest := parse_manifest(value, "a value")) is not None:
            found.update(layout.PARTS + name for name in manifest.parts)
    return found


# ---- garbage collection of parts


async def collect_parts(store: Store, space: str, checks: Sequence[Check] = ()) -> int:
    """Delete the parts of a space that no manifest lists, and return their number.

    The collector writes `gc/epoch` at revision R, reads every value that may be a manifest, and deletes the
    parts with versions below R that no manifest lists, each under its exact version. Values written
    concurrently are safe: their parts were written after R, or before a batch that checks the epoch and is
    rejected. A manifest never moves to another key, so the reads may be of different revisions.
    """
    if not (await store.scan(space, layout.PARTS, limit=1)).entries:
        return 0
    epoch = (await store.apply([Batch(space, [Put(layout.EPOCH, b"")], checks)]))[0]
    if isinstance(epoch, Conflict):
        return 0  # the space was dropped
    if not isinstance(epoch, Applied):
        raise unexpected_error(epoch, space, "the parts")
    named = await _named(store, space)
    removed = 0
    garbage: list[Check] = []
    async for entries in scan_pages(store, space, layout.PARTS):
        garbage += [
            Check(entry.key, version=entry.version)
            for entry in entries
            if entry.version < epoch.revision and entry.key not in named
        ]
        while len(garbage) >= _COLLECTED_BY_BATCH:
            removed += await delete_garbage(store, space, garbage[:_COLLECTED_BY_BATCH], "the parts")
            del garbage[:_COLLECTED_BY_BATCH]
    return removed + await delete_garbage(store, space, garbage, "the parts")


async def scan_pages(store: Store, space: str, prefix: bytes) -> AsyncIterator[Sequence[Entry]]:
    """Yield all entries under a prefix in order, page by page. Each page is of a revision of its own."""
    after: bytes | None = None
    while True:
        page = await store.scan(space, prefix, after=after)
        yield page.entries
        if (after := page.next) is None:
            return


async def _named(store: Store, space: str) -> set[bytes]:
    named: set[bytes] = set()
    for part in layout.NAME_PARTS:
        async for entries in scan_pages(store, space, part):
            named |= part_keys_in(entry.value for entry in entries)
    return named


async def delete_garbage(store: Store, space: str, garbage: Sequence[Check], what: str) -> int:
    """Delete entries that still have their versions, in one batch, and return their number.

    `what` names in errors the collection that the entries are garbage of.
    """
    left = {check.key: check for check in garbage}
    while left:
        batch = Batch(space, [Delete(key) for key in left], list(left.values()))
        outcome = (await store.apply([batch]))[0]
        if isinstance(outcome, Applied):
            return len(left)
        if not isinstance(outcome, Conflict) or outcome.key is None:
            raise unexpected_error(outcome, space, what)
        del left[outcome.key]  # written again concurrently, so it is in use, or deleted already
    return 0


def unexpected_error(outcome: object, space: str, what: str) -> KeepstateError:
    """Return the error for a collection whose batch was not applied."""
    if isinstance(outcome, KeepstateError):
        return outcome
    return KeepstateError(f"collecting {what} of space {space!r} failed with {outcome!r}; retry it")
