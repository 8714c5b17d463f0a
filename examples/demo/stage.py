"""The spaces of the demo: one recorded space that the whole team shares, and one for the tool's results.

An agent finishes a task in one transaction: result, shared counters, knowledge base, checkpoint and event.
A transaction covers one space, so all of these are in the team's space. A transaction cannot undo the effects
of a tool, so the tool has its own space.
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
"""Each agent has one checkpoint, replaced with each module. The history has the earlier ones."""
STEPS: Final = ("collect", "index", "link", "report")
INDEX: Final = STEPS.index("index") + 1
LEASE_S: Final = 2.0
ATTEMPTS: Final = 1_000

_NAMES: Final = ("ada", "ben", "cleo", "dora", "emil", "fay", "gus", "hana")


def agents(count: int) -> list[str]:
    """Return the names of `count` agents."""
    return [_NAMES[number] if number < len(_NAMES) else f"agent {number + 1}" for number in range(count)]


@dataclass(frozen=True, slots=True)
class Managers:
    """The managers of the team's shared state."""

    teams: OrchestrationStateManager
    workflows: WorkflowStateManager
    bases: KnowledgeStateManager
    agents: AgentStateStore


def open_managers(space: Space | Transaction) -> Managers:
    """Return managers on a space, or on a transaction, which their calls then join."""
    return Managers(
        OrchestrationStateManager(space=space, lease_s=LEASE_S),
        WorkflowStateManager(space=space, checkpoint_interval=1),
        KnowledgeStateManager(space=space),
        AgentStateStore(space=space),
    )


def open_run(ks: Keepstate, name: str, author: str) -> Space:
    """Return the recorded space that the team shares."""
    return ks.space(name, author=author, record=True)


def tools_space(name: str) -> str:
    """Return the name of the space with the tool's executions and results."""
    return f"{name}/tools"


def open_tools(ks: Keepstate, name: str) -> ToolStateManager:
    """Return the manager of the tool, which caches results. The caller closes it."""
    return ToolStateManager(space=ks.space(tools_space(name)), cache_results=True)
