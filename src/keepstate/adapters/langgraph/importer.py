"""Takes over what LangGraph's own savers have stored, and compares it afterwards, checkpoint by checkpoint.

What is there already is not written again, so that an import which was interrupted goes on where it stopped.
The source is only read. Threads may have gone on in the target: what is brought in stands before that. A
thread with a checkpoint that cannot be read or stored ends before it; the others are brought in all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from keepstate.adapters.langgraph.official import Named, Official
from keepstate.adapters.langgraph.put import Putting
from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.errors import ClosedError, CorruptError, KeepstateError, StorageError

Tell = Callable[[str, int, int], None]
"""Hears what is being done, how many checkpoints of it are done, and how many there are."""

_PLAIN: Final = JsonPlusSerializer()


class ImportTotals(msgspec.Struct):
    """What an import came to.

    Attributes:
        threads: How many threads there are.
        checkpoints: How many checkpoints.
        added: How many of them were brought in now.
        present: How many were there already.
        compared: How many were read from both and are the same.
        different: Those that are not, and in what.
        unread: Which could not be read or stored, and why: the first of each thread, which ends before it.
    """

    threads: int = 0
    checkpoints: int = 0
    added: int = 0
    present: int = 0
    compared: int = 0
    different: list[str] = msgspec.field(default_factory=list[str])
    unread: list[str] = msgspec.field(default_factory=list[str])


class ImportingSaver(KeepstateSaver):
    """A saver whose checkpoints are as old as they say, and not as what stores them."""

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
    source: Official, target: KeepstateSaver, names: Sequence[Named], tell: Tell
) -> tuple[ImportTotals, list[Named]]:
    """Bring checkpoints in, oldest first, with what was written on them.

    Returns:
        The totals, and those that are in the target now.

    Raises:
        StorageError: The source or the target does not answer any more.
    """
    totals, brought = ImportTotals(len({name.thread for name in names}), len(names)), list[Named]()
    known: dict[str, bool] = {}
    ended: set[str] = set()
    for done, name in enumerate(names):
        tell("importing", done, len(names))
        if name.thread in ended:
            continue
        try:
            if name.thread not in known:
                known[name.thread] = _has(target, name.thread)
            is_new = _bring(source, target, name, is_known=known[name.thread])
        except Exception as error:  # noqa: BLE001 - whatever values raise when they are stored
            _refuse_lost(error)
            ended.add(name.thread)
            totals.unread.append(_said(name, "brought in", error))
            continue
        totals.added += is_new
        totals.present += not is_new
        brought.append(name)
    return totals, brought


def _bring(source: Official, target: KeepstateSaver, name: Named, *, is_known: bool) -> bool:
    """Bring one checkpoint in, and return whether it was not there."""
    found = target.get_tuple(name.config) if is_known else None
    theirs, tasks = source.read(name) if found is None else None, source.writes(name)
    if found is None or len(found.pending_writes or ()) < sum(len(task.writes) for task in tasks):
        for task in tasks:  # before it: of what is not whole nothing is seen, whatever cannot be stored
            target.put_writes(name.config, task.writes, task.task_id, task.task_path)
    if theirs is not None:
        _put(theirs, name, target)
    return theirs is not None


def _refuse_lost(error: Exception) -> None:
    """Raise an error again that is not of one checkpoint: the source or the target is lost."""
    if isinstance(error, StorageError | ClosedError) and not isinstance(error, CorruptError):
        raise error


def _said(name: Named, done: str, error: Exception) -> str:
    if isinstance(error, KeepstateError):
        text = str(error)
        return text if name.id in text and name.thread in text else f"{name} cannot be {done}: {text}"
    return f"{name} cannot be {done}: {type(error).__name__}: {error}"


def _has(target: KeepstateSaver, thread: str) -> bool:
    return next(iter(target.list({"configurable": {"thread_id": thread}}, limit=1)), None) is not None


def _put(found: CheckpointTuple, name: Named, target: KeepstateSaver) -> None:
    place: dict[str, Any] = {"thread_id": name.thread, "checkpoint_ns": name.namespace}
    if (parent := _parent(found)) is not None:
        place["checkpoint_id"] = parent
    versions = found.checkpoint["channel_versions"]
    target.put({"configurable": place}, found.checkpoint, found.metadata, versions)


def compare(
    source: Official, target: KeepstateSaver, names: Sequence[Named], totals: ImportTotals, tell: Tell
) -> None:
    """Read each checkpoint from both, and note those that differ."""
    for done, name in enumerate(names):
        tell("comparing", done, len(names))
        try:
            theirs, ours = source.read(name), target.get_tuple(name.config)
            parts = [] if ours is None else _different(theirs, ours)
        except Exception as error:  # noqa: BLE001 - or when they are compared
            _refuse_lost(error)
            totals.different.append(_said(name, "compared", error))
            continue
        if ours is None:
            totals.different.append(f"{name} is missing")
        elif parts:
            totals.different.append(f"{name} differs in its {', '.join(parts)}")
        else:
            totals.compared += 1


def _different(theirs: CheckpointTuple, ours: CheckpointTuple) -> list[str]:
    pairs = {
        "checkpoint": (_settled(theirs.checkpoint), _settled(ours.checkpoint)),
        "metadata": (theirs.metadata, ours.metadata),
        "parent": (_parent(theirs), _parent(ours)),
        "writes": (_writes(theirs), _writes(ours)),
    }
    return [part for part, (one, other) in pairs.items() if not _is_same(one, other)]


def _settled(checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint without fields that say nothing: absent in one form, None in another."""
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
    if {type(one), type(other)} == {dict}:  # their order may be another
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return _PLAIN.dumps_typed(one) == _PLAIN.dumps_typed(other)
