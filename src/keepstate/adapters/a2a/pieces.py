"""Tasks in pieces: a short record, and runs of the messages and parts that one save added.

A save compares hashes, and writes only the runs that are new, so that a task of any length grows by what
changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from keepstate.engine.space.space import Space
from keepstate.errors import CorruptError, MissingExtraError

try:
    from a2a.types import a2a_pb2
except ImportError as error:
    raise MissingExtraError.of("a2a", "a2a-sdk 1.3") from error


class _Part(NamedTuple):
    """The history, or an artifact: what is not repeated in it, and the messages or parts that are."""

    head: bytes
    pieces: list[bytes]


class _Run(NamedTuple):
    """The state of the stored runs of a part. A part whose beginning changed gets a new generation."""

    generation: int
    length: int
    digest: bytes
    head_digest: bytes


_EMPTY: Final = _Run(0, 0, b"", b"")


def split(task: a2a_pb2.Task) -> dict[str, _Part]:
    """Return the history and the artifacts of a task, by names that sort in no special order."""
    parts = {"history": _Part(b"", [*map(dump, task.history)])}
    for index, artifact in enumerate(task.artifacts):
        parts[str(index)] = _Part(without(artifact, "parts"), [*map(dump, artifact.parts)])
    return parts


def find_changes(
    record: Mapping[str, Any], parts: Mapping[str, _Part], version: int
) -> tuple[dict[str, list[Any]], dict[str, list[Any]], list[str]]:
    """Compare a task with its stored runs.

    Returns:
        The state of the runs, the new runs by name, and the beginnings of the names of runs that are stale.
    """
    life: int = record["life"]
    stored = {name: _Run(*run) for name, run in record["runs"].items()}
    runs: dict[str, list[Any]] = {}
    writes: dict[str, list[Any]] = {}
    stale = [f"run/{life}/{name}/" for name in stored if name not in parts]
    for name, part in parts.items():
        was = stored.get(name, _EMPTY)
        generation, start = was.generation, was.length
        if start > len(part.pieces) or digest_of(part.pieces[:start]) != was.digest:
            stale.append(f"run/{life}/{name}/{generation}/")
            generation, start = generation + 1, 0
        head_digest = digest_of([part.head])
        is_new = name not in stored or generation != was.generation
        head = part.head if is_new or head_digest != was.head_digest else None
        if start < len(part.pieces) or head is not None:
            writes[f"run/{life}/{name}/{generation}/{version:012}"] = [head, part.pieces[start:]]
        runs[name] = [*_Run(generation, len(part.pieces), digest_of(part.pieces), head_digest)]
    return runs, writes, stale


async def join(space: Space, record: Mapping[str, Any]) -> a2a_pb2.Task | None:
    """Return the task of a record with its history and its artifacts, or None if some were deleted."""
    runs = {name: _Run(*run) for name, run in record["runs"].items()}
    heads: dict[str, bytes] = {}
    pieces: dict[str, list[bytes]] = {name: [] for name in runs}
    async for key, (head, some) in space.documents.items(prefix=f"run/{record['life']}/"):
        _, _, name, generation, version = key.split("/")
        if name not in runs or runs[name].generation != int(generation) or int(version) > record["version"]:
            continue
        heads[name] = heads[name] if head is None else head
        pieces[name] += some
    if any(run.length != len(pieces[name]) or name not in heads for name, run in runs.items()):
        return None
    task = bare_task(record)
    task.history.extend(map(a2a_pb2.Message.FromString, pieces.pop("history")))
    for index in range(len(pieces)):
        artifact = a2a_pb2.Artifact.FromString(heads[str(index)])
        artifact.parts.extend(map(a2a_pb2.Part.FromString, pieces[str(index)]))
        task.artifacts.append(artifact)
    return task


def bare_task(record: Mapping[str, Any]) -> a2a_pb2.Task:
    """Return the task of a record, without its history and its artifacts."""
    task: a2a_pb2.Task = a2a_pb2.Task.FromString(record["task"])
    return task


async def read_task(
    space: Space, name: str, record: dict[str, Any] | None
) -> tuple[a2a_pb2.Task, int] | None:
    """Return a task and its version, or None if it was deleted.

    No transaction is needed: the runs of a record are never written again. If some were deleted, the record
    was replaced before that, and is read again.

    Raises:
        CorruptError: Runs are missing.
    """
    while record is not None:
        task = await join(space, record)
        if task is not None:
            return task, record["version"]
        newer: dict[str, Any] | None = await space.documents.get(name)
        if newer == record:
            raise CorruptError(
                f"messages or parts of {name!r} are missing in {space!r}; run `keepstate doctor`"
            )
        record = newer
    return None


# ---- bytes


def dump(message: Any) -> bytes:
    """Return the bytes of a message of protobuf; equal messages have equal ones."""
    dumped: bytes = message.SerializeToString(deterministic=True)
    return dumped


def without(message: Any, *fields: str) -> bytes:
    """Return the bytes of a message without some of its fields."""
    copy: Any = type(message)()
    copy.CopyFrom(message)
    for field in fields:
        copy.ClearField(field)
    return dump(copy)


def digest_of(pieces: Iterable[bytes]) -> bytes:
    """Return a hash of a sequence of bytes; of nothing, nothing."""
    hashed = blake2b(digest_size=16)
    is_empty = True
    for piece in pieces:
        is_empty = False
        hashed.update(len(piece).to_bytes(8))
        hashed.update(piece)
    return b"" if is_empty else hashed.digest()
