"""What is stored of a checkpoint beside its commit, and under which keys.

Names stand in keys as they are, so that checkpoints lie in the order of their ids; a long one is cut and ends
with its digest, and then stands whole in the record.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import (
    add_checksum,
    corrupt_error,
    decode_stored,
    describe,
    strip_checksum,
)
from keepstate.errors import CorruptError
from keepstate.values.key import pack, unpack
from keepstate.values.refs import DIGEST_SIZE

T = TypeVar("T")

THREADS: Final = "thread/"
"""What the names of the spaces of threads begin with."""

_NAME_BYTES: Final = 100
_SPACE_BYTES: Final = 120
_BEGINNING: Final = 16
_KEYS: Final = 1_024
"""Remembered as they were made: the same few are asked for again and again while a thread goes on."""
_Name = Annotated[bytes, msgspec.Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]


class CheckpointRecord(msgspec.Struct, array_like=True, frozen=True):
    """A checkpoint.

    Attributes:
        commit: The commit that has the values of its channels.
        number: How many commits lead to that by first parents.
        parent: The id of the checkpoint before it.
        created_ms: When it was stored.
        body: The encoding of its other fields and its metadata.
        snapshots: What the channels are called whose value stands for a snapshot of a delta channel.
        names: Thread, namespace and id, if one of them is cut in its key.
        lacks: What the delta channels are called of which it has no value, but what was written since one.
    """

    commit: _Name
    number: Annotated[int, msgspec.Meta(ge=1)]
    parent: str | None
    created_ms: int
    body: bytes
    snapshots: list[str] = []
    names: tuple[str, str, str] | None = None
    lacks: list[str] = []


class PendingRecord(msgspec.Struct, array_like=True, frozen=True):
    """What one task has written on a checkpoint.

    Attributes:
        path: Where the task stands among others, encoded; its writes are ordered by it.
        writes: Of each its place, and the encoding of its channel and value.
        task: The task's id, if it is cut in the key.
    """

    path: bytes
    writes: list[tuple[int, bytes]]
    task: str | None = None


class Names(NamedTuple):
    """What names a checkpoint."""

    thread: str
    line: str
    """Its namespace."""
    id: str


# ---- keys


def space_of(thread: str) -> str:
    """Return the name of a thread's space."""
    return THREADS + _short(thread, _SPACE_BYTES)


def thread_of(space: str) -> str:
    """Return the thread of a space's name; of a cut one, how that begins."""
    return space.removeprefix(THREADS)


def line_prefix(part: bytes, line: str) -> bytes:
    """Return what the keys of a namespace begin with."""
    return part + pack(_short(line))


@lru_cache(maxsize=_KEYS)
def checkpoint_key(line: str, id: str) -> bytes:
    """Return the key of a checkpoint."""
    return layout.CHECKPOINTS + pack(_short(line), _short(id))


def pending_prefix(line: str, id: str) -> bytes:
    """Return what the keys of the writes on a checkpoint begin with."""
    return layout.PENDING + pack(_short(line), _short(id))


def pending_key(line: str, id: str, task: str) -> bytes:
    """Return the key of a task's writes on a checkpoint."""
    return layout.PENDING + pack(_short(line), _short(id), _short(task))


def cut_names(names: Names) -> tuple[str, str, str] | None:
    """Return the names, if one of them is cut where it stands."""
    is_cut = _short(names.thread, _SPACE_BYTES) != names.thread or any(
        _short(name) != name for name in names[1:]
    )
    return (names.thread, names.line, names.id) if is_cut else None


def cut_task(task: str) -> str | None:
    """Return the id of a task, if it is cut in keys."""
    return None if _short(task) == task else task


def names_of(thread: str, key: bytes, record: CheckpointRecord) -> Names:
    """Return the names of a stored checkpoint."""
    if record.names is not None:
        return Names(*record.names)
    line, id = _texts(key, 2)
    return Names(thread, line, id)


def task_of(key: bytes, record: PendingRecord) -> str:
    """Return the id of the task whose writes stand under a key."""
    return _texts(key, 3)[2] if record.task is None else record.task


def short_names(key: bytes) -> tuple[str, str]:
    """Return namespace and id as they stand in the key of a checkpoint, or of writes on one."""
    segments = unpack(key[1:])
    line, id = segments[1], segments[2]
    if not isinstance(line, str) or not isinstance(id, str):
        raise corrupt_error(describe(key), "it names no checkpoint")
    return line, id


def is_of(short: str, name: str) -> bool:
    """Whether a name stands in keys like this."""
    return _short(name) == short


def _texts(key: bytes, count: int) -> list[str]:
    texts = [segment for segment in unpack(key[1:])[1:] if isinstance(segment, str)]
    if len(texts) != count:
        raise corrupt_error(describe(key), "it names no checkpoint")
    return texts


def _short(name: str, most: int = _NAME_BYTES) -> str:
    encoded = name.encode("utf-8", "surrogatepass")
    if len(encoded) <= most:
        return name
    return f"{name[:_BEGINNING]}…{sha256(encoded).hexdigest()[:40]}"


# ---- values


def packed(record: CheckpointRecord | PendingRecord) -> bytes:
    """Return a record as it is stored."""
    return add_checksum(msgspec.msgpack.encode(record))


def read(stored: bytes, kind: type[T], key: bytes) -> T:
    """Return the record that is stored under a key.

    Raises:
        CorruptError: Nobody wrote it.
    """
    try:
        return decode_stored(strip_checksum(stored, ""), kind, "")
    except CorruptError:
        place = describe(key)  # which takes longer than to read the record
        return decode_stored(strip_checksum(stored, place), kind, place)
