"""Going back in time where conflicts raise: what a run has asked for goes with the run, and with nobody else.

LangGraph makes the config that a run stores with of the one that it got when it asked where to begin. So the
id in there tells whether it was sent back. What is noted elsewhere, by the saver or by a context, would be
true of others as well who look at old checkpoints meanwhile.
"""

from __future__ import annotations

from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple


class Past(str):
    """The id of a checkpoint that others have followed already: who stores with it knows that it forks."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        # As with a plain text, what is derived from it compares by its own rule.
        return str.__eq__(self, other) if type(other) in (str, Past) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return str.__ne__(self, other) if type(other) in (str, Past) else NotImplemented

    __hash__ = str.__hash__

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def going_back(found: CheckpointTuple, *, is_past: bool) -> CheckpointTuple:
    """Return a checkpoint to go on from: after it, if that goes back in time, and beside it, as a copy."""
    config = _past(found.config) if is_past else found.config
    parent = found.parent_config
    return found._replace(config=config, parent_config=None if parent is None else _past(parent))


def _past(config: RunnableConfig) -> RunnableConfig:
    named = config.get("configurable", {})
    return {**config, "configurable": named | {"checkpoint_id": Past(named["checkpoint_id"])}}
