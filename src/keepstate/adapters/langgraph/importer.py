"""Imports the checkpoints of LangGraph's own savers, and compares them afterwards one by one.

Checkpoints that are already there are not written again, so an interrupted import can be repeated. The source
is only read. Threads may have continued in the target; imported checkpoints come before the new ones. A
checkpoint that cannot be read or stored ends the import of its thread; the other threads are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from keepstate.adapters.langgraph.official import CheckpointName, Official
from keepstate.adapters.langgraph.put import Putting
from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.errors import ClosedError, CorruptError, KeepstateError, StorageError

Tell = Callable[[str, int, int], None]
"""A callback with the current step, the number of checkpoints done, and their total."""

_PLAIN: Final = JsonPlusSerializer()


class ImportTotals(msgspec.Struct):
    """The result of an import.

    Attributes:
        threads: The number of threads.
        checkpoints: The number of checkpoints.
        added: The number of checkpoints imported now.
        present: The number of checkpoints already there.
        compared: The number of checkpoints that are equal in both stores.
        different: The others, with the parts that differ.
        unread: The first checkpoint of each thread that could not be read or stored, with the reason.
    """

    threads: int = 0
    checkpoints: int = 0
    added: int = 0
    present: int = 0
    compared: int = 0
    different: list[str] = msgspec.field(default_factory=list[str])
    unread: list[str] = msgspec.field(default_factory=list[str])


class ImportingSaver(KeepstateSaver):
    """A saver that stores checkpoints with their own times instead of the present time."""

    def _putting(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> Putting:
        new = super()._putting(config, checkpoint, metadata)
        return msgspec.structs.replace(new, made_ms=_made_ms(checkpoint))


def _made_ms(checkpoint: Checkpoint) -> int | None:
    try:
        made = datetime.fromisoformat(checkpoint["ts"])
    except (KeyError, TypeError, ValueError):
        return None
    return int(made.replace(tzinfo=made.tzinfo or UTC).timestamp() * 1000)


def import_all(
    source: Official, target: KeepstateSaver, names: Sequence[CheckpointName], tell: Tell
) -> tuple[ImportTotals, list[CheckpointName]]:
    """Import checkpoints, the oldest first, with the writes on them.

    Returns:
        The totals, and the checkpoints that are in the target now.

    Raises:
        StorageError: The source or the target no longer answers.
    """
    totals, imported = ImportTotals(len({name.thread for name in names}), len(names)), list[CheckpointName]()
    known: dict[str, bool] = {}
    ended: set[str] = set()
    for done, name in enumerate(names):
        tell("importing", done, len(names))
        if name.thread in ended:
            continue
        try:
            if name.thread not in known:
                known[name.thread] = _has(target, name.thread)
            is_new = _import_one(source, target, name, is_known=known[name.thread])
        except Exception as error:  # noqa: BLE001 - whatever values raise when they are stored
            _reraise_lost(error)
            ended.add(name.thread)
            totals.unread.append(_describe(name, "imported", error))
            continue
        totals.added += is_new
        totals.present += not is_new
        imported.append(name)
    return totals, imported


def _import_one(source: Official, target: KeepstateSaver, name: CheckpointName, *, is_known: bool) -> bool:
    """Import one checkpoint, and return whether it was absent."""
    found = target.get_tuple(name.config) if is_known else None
    theirs, tasks = source.read(name) if found is None else None, source.writes(name)
    if found is None or len(found.pending_writes or ()) < sum(len(task.writes) for task in tasks):
        for task in tasks:  # before the checkpoint, so that no reader sees an incomplete one
            target.put_writes(name.config, task.writes, task.task_id, task.task_path)
    if theirs is not None:
        _put(theirs, name, target)
    return theirs is not None


def _reraise_lost(error: Exception) -> None:
    """Raise an error again if the source or the target is lost, because it concerns all checkpoints."""
    if isinstance(error, StorageError | ClosedError) and not isinstance(error, CorruptError):
        raise error


def _describe(name: CheckpointName, done: str, error: Exception) -> str:
    if isinstance(error, KeepstateError):
        text = str(error)
        return text if name.id in text and name.thread in text else f"{name} cannot be {done}: {text}"
    return f"{name} cannot be {done}: {type(error).__name__}: {error}"


def _has(target: KeepstateSaver, thread: str) -> bool:
    return next(iter(target.list({"configurable": {"thread_id": thread}}, limit=1)), None) is not None


def _put(found: CheckpointTuple, name: CheckpointName, target: KeepstateSaver) -> None:
    named: dict[str, Any] = {"thread_id": name.thread, "checkpoint_ns": name.namespace}
    if (parent := _parent(found)) is not None:
        named["checkpoint_id"] = parent
    versions = found.checkpoint["channel_versions"]
    target.put({"configurable": named}, found.checkpoint, found.metadata, versions)


def compare(
    source: Official,
    target: KeepstateSaver,
    names: Sequence[CheckpointName],
    totals: ImportTotals,
    tell: Tell,
) -> None:
    """Read each checkpoint from both stores, and list those that differ."""
    for done, name in enumerate(names):
        tell("comparing", done, len(names))
        try:
            theirs, ours = source.read(name), target.get_tuple(name.config)
            parts = [] if ours is None else _different(theirs, ours)
        except Exception as error:  # noqa: BLE001 - or when they are compared
            _reraise_lost(error)
            totals.different.append(_describe(name, "compared", error))
            continue
        if ours is None:
            totals.different.append(f"{name} is missing")
        elif parts:
            totals.different.append(f"{name} differs in its {', '.join(parts)}")
        else:
            totals.compared += 1


def _different(theirs: CheckpointTuple, ours: CheckpointTuple) -> list[str]:
    """Return the parts that differ.

    An answer to an open interrupt adds writes to the checkpoint. They are left out, because the thread has
    continued here.
    """
    brought = {(task, channel) for task, channel, _ in _writes(theirs)}
    writes = [each for each in _writes(ours) if each[:2] in brought]
    pairs = {
        "checkpoint": (_settled(theirs.checkpoint), _settled(ours.checkpoint)),
        "metadata": (theirs.metadata, ours.metadata),
        "parent": (_parent(theirs), _parent(ours)),
        "writes": (_writes(theirs), writes),
    }
    return [part for part, (one, other) in pairs.items() if not _is_same(one, other)]


def _settled(checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint without fields that are None, because another form leaves them out."""
    return {field: value for field, value in checkpoint.items() if value is not None}


def _parent(found: CheckpointTuple) -> str | None:
    return (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")


def _writes(found: CheckpointTuple) -> list[tuple[str, str, Any]]:
    return [(task, channel, value) for task, channel, value in found.pending_writes or ()]


def _is_same(one: Any, other: Any) -> bool:
    try:
        if bool(one == other):
            return True
    except Exception:  # noqa: BLE001 - some classes, numpy's for one, have no plain answer
        pass
    if {type(one), type(other)} == {dict}:  # the order of keys may differ
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return _PLAIN.dumps_typed(one) == _PLAIN.dumps_typed(other)
