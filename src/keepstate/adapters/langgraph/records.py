"""Stored records of checkpoints besides their commits, and the keys of the records.

Keys contain names unchanged, so checkpoints are in the order of their ids. A long name is cut and ends with
its digest; the record then has the whole name.
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
"""The prefix of the names of threads' spaces."""

_NAME_BYTES: Final = 100
_SPACE_BYTES: Final = 120
_BEGINNING: Final = 16
_KEYS: Final = 1_024
"""Size of the cache of keys: a running thread asks for the same few keys many times."""
_Name = Annotated[bytes, msgspec.Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]


class CheckpointRecord(msgspec.Struct, array_like=True, frozen=True):
    """A checkpoint.

    Attributes:
        commit: The commit with the values of the channels.
        number: The number of commits on the path of first parents.
        parent: The id of the checkpoint before it.
        created_ms: The time at which it was stored.
        body: The encoding of the other fields and the metadata.
        snapshots: The stored names of channels whose value is a snapshot of a delta channel.
        names: Thread, namespace and id, if one of them is cut in the key.
        lacks: The stored names of delta channels without a value here; older checkpoints have one.
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
    """The writes of one task on a checkpoint.

    Attributes:
        path: The encoded path of the task; writes are ordered by it.
        writes: The index of each write, and the encoding of its channel and value.
        task: The task's id, if it is cut in the key.
    """

    path: bytes
    writes: list[tuple[int, bytes]]
    task: str | None = None


class Names(NamedTuple):
    """The names of a checkpoint."""

    thread: str
    line: str
    """The namespace."""
    id: str


# ---- keys


def space_of(thread: str) -> str:
    """Return the name of a thread's space."""
    return THREADS + _short(thread, _SPACE_BYTES)


def thread_of(space: str) -> str:
    """Return the thread of a space's name; for a cut name, its beginning."""
    return space.removeprefix(THREADS)


def line_prefix(part: bytes, line: str) -> bytes:
    """Return the prefix of the keys of a namespace."""
    return part + pack(_short(line))


@lru_cache(maxsize=_KEYS)
def checkpoint_key(line: str, id: str) -> bytes:
    """Return the key of a checkpoint."""
    return layout.CHECKPOINTS + pack(_short(line), _short(id))


def pending_prefix(line: str, id: str) -> bytes:
    """Return the prefix of the keys of the writes on a checkpoint."""
    return layout.PENDING + pack(_short(line), _short(id))


def pending_key(line: str, id: str, task: str) -> bytes:
    """Return the key of a task's writes on a checkpoint."""
    return layout.PENDING + pack(_short(line), _short(id), _short(task))


def cut_names(names: Names) -> tuple[str, str, str] | None:
    """Return the names if one of them is cut in its key, and None otherwise."""
    thread, line, id = names
    is_cut = _short(thread, _SPACE_BYTES) != thread or _short(line) != line or _short(id) != id
    return (thread, line, id) if is_cut else None


def cut_task(task: str) -> str | None:
    """Return the id of a task if it is cut in keys, and None otherwise."""
    return None if _short(task) == task else task


def names_of(thread: str, key: bytes, record: CheckpointRecord) -> Names:
    """Return the names of a stored checkpoint."""
    if record.names is not None:
        return Names(*record.names)
    line, id = _texts(key, 2)
    return Names(thread, line, id)


def task_of(key: bytes, record: PendingRecord) -> str:
    """Return the id of the task of a key of writes."""
    return _texts(key, 3)[2] if record.task is None else record.task


def short_names(key: bytes) -> tuple[str, str]:
    """Return the namespace and id in the key of a checkpoint, or of writes on one."""
    segments = unpack(key[1:])
    line, id = segments[1], segments[2]
    if not isinstance(line, str) or not isinstance(id, str):
        raise corrupt_error(describe(key), "the key names no checkpoint")
    return line, id


def is_of(short: str, name: str) -> bool:
    """Return whether a name has this form in keys."""
    return _short(name) == short


def cut_name(name: str) -> str:
    """Return the form of a name in keys."""
    return _short(name)


def _texts(key: bytes, count: int) -> list[str]:
    texts = [segment for segment in unpack(key[1:])[1:] if isinstance(segment, str)]
    if len(texts) != count:
        raise corrupt_error(describe(key), "the key names no checkpoint")
    return texts


def _short(name: str, most: int = _NAME_BYTES) -> str:
    encoded = name.encode("utf-8", "surrogatepass")
    if len(encoded) <= most:
        return name
    return f"{name[:_BEGINNING]}…{sha256(encoded).hexdigest()[:40]}"


# ---- values


def encode(record: CheckpointRecord | PendingRecord) -> bytes:
    """Return the stored form of a record."""
    return add_checksum(msgspec.msgpack.encode(record))


def decode(stored: bytes, kind: type[T], key: bytes) -> T:
    """Return the record stored under a key.

    Raises:
        CorruptError: The stored bytes are not such a record.
    """
    try:
        return decode_stored(strip_checksum(stored, ""), kind, "")
    except CorruptError:
        where = describe(key)  # takes longer than the decoding, so only errors pay for it
        return decode_stored(strip_checksum(stored, where), kind, where)
