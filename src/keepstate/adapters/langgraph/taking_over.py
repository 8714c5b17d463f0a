"""Takes over what LangGraph's own savers have stored, and compares it afterwards, checkpoint by checkpoint.

What is there already is not written again, so that an import which was interrupted goes on where it stopped.
The source is only read. Threads may have gone on in the target: what is brought in stands before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from keepstate.adapters.langgraph.official import Named, Official
from keepstate.adapters.langgraph.saver import KeepstateSaver

Tell = Callable[[str, int, int], None]
"""Hears what is being done, how many checkpoints of it are done, and how many there are."""

_PLAIN: Final = JsonPlusSerializer()


class TakenOver(msgspec.Struct):
    """What an import came to.

    Attributes:
        threads: How many threads there are.
        checkpoints: How many checkpoints.
        added: How many of them were brought in now.
        present: How many were there already.
        compared: How many were read from both and are the same.
        different: Those that are not, and in what.
    """

    threads: int = 0
    checkpoints: int = 0
    added: int = 0
    present: int = 0
    compared: int = 0
    different: list[str] = msgspec.field(default_factory=list[str])


def take_over(source: Official, target: KeepstateSaver, names: Sequence[Named], tell: Tell) -> TakenOver:
    """Brings checkpoints in, oldest first, with what was written on them; returns the totals.

    Raises:
        InvalidError: A value would not come back equal, or an object is of a class that nobody allowed.
    """
    totals = TakenOver(len({name.thread for name in names}), len(names))
    known: dict[str, bool] = {}
    for done, name in enumerate(names):
        tell("importing", done, len(names))
        if name.thread not in known:
            known[name.thread] = _has(target, name.thread)
        found = target.get_tuple(name.config) if known[name.thread] else None
        if found is None:
            _put(source.read(name), name, target)
            totals.added += 1
        else:
            totals.present += 1
        tasks = source.writes(name)
        if found is None or len(found.pending_writes or ()) < sum(len(task.writes) for task in tasks):
            for task in tasks:  # a run that was killed may have left them out
                target.put_writes(name.config, task.writes, task.task_id, task.task_path)
    return totals


def _has(target: KeepstateSaver, thread: str) -> bool:
    return next(iter(target.list({"configurable": {"thread_id": thread}}, limit=1)), None) is not None


def _put(found: CheckpointTuple, name: Named, target: KeepstateSaver) -> None:
    place: dict[str, Any] = {"thread_id": name.thread, "checkpoint_ns": name.namespace}
    if (parent := _parent(found)) is not None:
        place["checkpoint_id"] = parent
    versions = found.checkpoint["channel_versions"]
    target.put({"configurable": place}, found.checkpoint, found.metadata, versions)


def compare(
    source: Official, target: KeepstateSaver, names: Sequence[Named], totals: TakenOver, tell: Tell
) -> None:
    """Reads each checkpoint from both, and notes those that differ."""
    for done, name in enumerate(names):
        tell("comparing", done, len(names))
        theirs, ours = source.read(name), target.get_tuple(name.config)
        if ours is None:
            totals.different.append(f"{name} is missing")
            continue
        parts = _different(theirs, ours)
        if parts:
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
    """Returns a checkpoint without fields that say nothing: absent in one form, None in another."""
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
    return _PLAIN.dumps_typed(one) == _PLAIN.dumps_typed(other)
