"""Checkpoints as graphs make them, for tests of the saver."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.checkpoint.base.id import uuid6


def config(thread: str = "t", line: str = "", id: str | None = None) -> RunnableConfig:
    """Return the config of a thread, or of a checkpoint."""
    named = {"thread_id": thread, "checkpoint_ns": line}
    return {"configurable": named | ({"checkpoint_id": id} if id else {})}


def checkpoint(step: int, **channels: Any) -> Checkpoint:
    """Return a checkpoint whose channels have these values."""
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=step % 16_384)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": channels,
        "channel_versions": dict.fromkeys(channels, step + 1),
        "versions_seen": {"node": dict.fromkeys(channels, step)},
        "updated_channels": sorted(channels),
    }


def put(
    saver: BaseCheckpointSaver[Any],
    after: RunnableConfig,
    step: int,
    metadata: dict[str, Any] | None = None,
    **channels: Any,
) -> RunnableConfig:
    """Store a checkpoint after another one, and return the config that names it."""
    made = checkpoint(step, **channels)
    told: Any = {"source": "loop", "step": step, "parents": {}, **(metadata or {})}
    return saver.put(after, made, told, made["channel_versions"])


def values(saver: BaseCheckpointSaver[Any], at: RunnableConfig) -> dict[str, Any]:
    """Return the values of a checkpoint's channels."""
    found = saver.get_tuple(at)
    assert found is not None
    return found.checkpoint["channel_values"]
