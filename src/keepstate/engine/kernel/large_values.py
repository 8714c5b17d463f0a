"""Values too large for one entry: content-named parts, and a manifest in the entry that names them.

Parts that fit go with their manifest in one batch. Otherwise they go ahead, and the batch with the manifest
checks that nobody collected garbage meanwhile (`gc/epoch`): a part without a manifest is garbage, and until
the last batch has applied nothing of the value can be seen. A manifest never moves to another key, so that a
collector which looks at every key once has seen all that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.content_names import content_name
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import corrupt_error, decode_stored
from keepstate.errors import ConflictError, CorruptError
from keepstate.stores.protocol import (
    Applied,
    Batch,
    Check,
    Conflict,
    Entry,
    Outcome,
    Put,
    Store,
)
from keepstate.values import limits
from keepstate.values.digest import DIGEST_SIZE

MANIFEST_BYTE: Final = b"\xd7"
"""Begins a manifest where a value's format byte stands. It is no format of `values.codec`."""

_PARTS_BY_BATCH = limits.BATCH_BYTES // limits.VALUE_BYTES - 1
_EPOCH_ATTEMPTS = 16
_LARGEST_BYTES: Final = limits.DECODED_BYTES + limits.VALUE_BYTES
"""More than any encoded value has: a record may put a few bytes around one."""


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The parts of a value in order, and the digest of the whole."""

    size_bytes: int
    digest: bytes
    parts: list[bytes]


def split(store: Store, space: str, value: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the manifest to store in the value's place, and its parts by key."""
    parts: dict[bytes, bytes] = {}
    names: list[bytes] = []
    for start in range(0, len(value), limits.VALUE_BYTES):
        part = value[start : start + limits.VALUE_BYTES]
        names.append(content_name(store, space, part))
        parts[layout.PARTS + names[-1]] = part
    manifest = Manifest(len(value), sha256(value).digest(), names)
    return MANIFEST_BYTE + msgspec.msgpack.encode(manifest), parts


def parse_manifest(value: bytes, place: str) -> Manifest | None:
    """Return the manifest in a stored value, or None if the value stands there itself.

    Raises:
        CorruptError: It begins like a manifest and is none.
    """
    if not value.startswith(MANIFEST_BYTE):
        return None
    manifest = decode_stored(value[1:], Manifest, place)
    count = -(-manifest.size_bytes // limits.VALUE_BYTES)
    # Else a few bytes that name one part again and again would fill the memory.
    if count != len(manifest.parts) or not limits.VALUE_BYTES < manifest.size_bytes <= _LARGEST_BYTES:
        raise corrupt_error(place, f"{len(manifest.parts)} parts do not hold {manifest.size_bytes} bytes")
    if any(len(name) != DIGEST_SIZE for name in manifest.parts):
        raise corrupt_error(place, "it names what is no part")
    return manifest


async def read_whole(store: Store, space: str, entry: Entry) -> bytes:
    """Return the value of an entry, put together from its parts if it has some.

    Raises:
        ConflictError: The entry was replaced meanwhile, and its parts collected.
        CorruptError: A part is missing under an unchanged entry, or damaged.
    """
    if not entry.value.startswith(MANIFEST_BYTE):
        return entry.value
    place = f"{describe(entry.key)} of {space!r}"
    manifest = parse_manifest(entry.value, place)
    assert manifest is not None
    value = await fetch(store, space, manifest, place)
    if value is not None:
        return value
    now = (await store.read(space, [entry.key])).entries[0]
    actual = now.version if now else 0
    if actual != entry.version:
        raise ConflictError(
            f"{place} was replaced while it was read; try again", space=space, key=entry.key, actual=actual
        )
    raise CorruptError(
        f"{place} names a part that is missing; restore it from a copy", space=space, place=place
    )


async def fetch(store: Store, space: str, manifest: Manifest, place: str) -> bytes | None:
    """Return the whole value, or None if a part is gone.

    Raises:
        CorruptError: The parts do not make up what the manifest says.
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
            f"the parts of {place} are not what was written; restore it from a copy", place=place
        )
    return whole


async def apply_with_parts(store: Store, batch: Batch, parts: dict[bytes, bytes]) -> Outcome:
    """Apply a batch whose manifests name these parts."""
    if not parts:
        return (await store.apply([batch]))[0]
    puts = [Put(key, part) for key, part in parts.items()]
    own = sum(len(write.key) + (len(write.value) if isinstance(write, Put) else 0) for write in batch.writes)
    if (
        own + sum(len(put.key) + len(put.value) for put in puts) <= limits.BATCH_BYTES
        and len(batch.writes) + len(puts) <= limits.BATCH_WRITES
    ):
        # Stamps count a write's index in its batch: parts go behind, so that they shift none.
        return (await store.apply([msgspec.structs.replace(batch, writes=[*batch.writes, *puts])]))[0]
    if len(batch.writes) > limits.BATCH_WRITES or own > limits.BATCH_BYTES:
        return (await store.apply([batch]))[0]  # over a limit by itself: refused before a part has gone ahead
    if batch.at is not None:
        return await _apply_at(store, batch, puts)
    outcome: Outcome = Conflict(layout.EPOCH, 0)
    for _ in range(_EPOCH_ATTEMPTS):
        epoch = (await store.read(batch.space, [layout.EPOCH])).entries[0]
        if (failure := await _send_ahead(store, batch.space, puts)) is not None:
            return failure
        check = Check(layout.EPOCH, version=epoch.version if epoch else 0)
        outcome = (await store.apply([msgspec.structs.replace(batch, checks=[*batch.checks, check])]))[0]
        if not (isinstance(outcome, Conflict) and outcome.key == layout.EPOCH):
            break
    return outcome


async def _apply_at(store: Store, batch: Batch, puts: Sequence[Put]) -> Outcome:
    """Apply a batch that needs the space to be as it was: each goes at the revision of the last."""
    at = batch.at
    for ahead in _batches(puts):
        outcome = (await store.apply([Batch(batch.space, ahead, at=at)]))[0]
        if not isinstance(outcome, Applied):
            return outcome
        at = outcome.revision
    return (await store.apply([msgspec.structs.replace(batch, at=at)]))[0]


async def _send_ahead(store: Store, space: str, puts: Sequence[Put]) -> Outcome | None:
    for batch in _batches(puts):
        outcome = (await store.apply([Batch(space, batch)]))[0]
        if not isinstance(outcome, Applied):
            return outcome
    return None


def _batches(puts: Sequence[Put]) -> Iterator[list[Put]]:
    batch: list[Put] = []
    size = 0
    for put in puts:
        own = len(put.key) + len(put.value)
        if batch and (len(batch) == limits.BATCH_WRITES or size + own > limits.BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(put)
        size += own
    if batch:
        yield batch


def part_keys_in(values: Iterable[bytes | None]) -> set[bytes]:
    """Return the keys of all parts that manifests among these stored values name."""
    found: set[bytes] = set()
    for value in values:
        if value is not None and (manifest := parse_manifest(value, "a value")) is not None:
            found.update(layout.PARTS + name for name in manifest.parts)
    return found
