"""Where the demo plays: one recorded space that the whole team shares, and beside it what its tool keeps.

What belongs together is in one space, so that an agent finishes a task in one transaction: its result, the
shared counters, the knowledge base, its checkpoint and an event, all or nothing. What a tool did cannot be
taken back by a transaction, so that it is kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keepstate import (
    AgentStateStore,
    Keepstate,
    KnowledgeStateManager,
    OrchestrationStateManager,
    Space,
    ToolStateManager,
    Transaction,
    WorkflowStateManager,
)

TEAM: Final = "indexers"
BASE: Final = "library"
WORKFLOW: Final = "index"
TOOL: Final = "locate"
SOURCE: Final = "Lib"
CONDUCTOR: Final = "conductor"
CHECKPOINT: Final = "so far"
"""Each agent has one checkpoint, which is replaced with each module; the history keeps those before."""
STEPS: Final = ("collect", "index", "link", "report")
INDEX: Final = STEPS.index("index") + 1
LEASE_S: Final = 2.0
ATTEMPTS: Final = 1_000

_NAMES: Final = ("ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana")


def agents(count: int) -> list[str]:
    """Return the names of so many agents."""
    return [_NAMES[number] if number < len(_NAMES) else f"agent {number + 1}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class Managers:
    """The managers of what the team shares."""

    teams: OrchestrationStateManager
    workflows: WorkflowStateManager
    bases: KnowledgeStateManager
    agents: AgentStateStore


def managers(place: Space | Transaction) -> Managers:
    """Return managers on a space, or on a transaction that all they do joins."""
    return Managers(
        OrchestrationStateManager(space=place, lease_s=LEASE_S),
        WorkflowStateManager(space=place, checkpoint_interval=1),
        KnowledgeStateManager(space=place),
        AgentStateStore(space=place),
    )


def shared(ks: Keepstate, name: str, author: str) -> Space:
    """Return the space that the team shares; every moment of it is recorded."""
    return ks.space(name, author=author, record=True)


def beside(name: str) -> str:
    """Return the name of the space in which the tool's executions and results are kept."""
    return f"{name}/tools"


def tools(ks: Keepstate, name: str) -> ToolStateManager:
    """Return the manager of the tool, whose results are used again; close it."""
    return ToolStateManager(space=ks.space(beside(name)), cache_results=True)
