"""What the blocks about state, agents and workflows must have done, by their headings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from keepstate import StateConfig, StateManager, WorkflowStatus
from tests.managers.domain_checks import DOMAIN_CHECKS
from tests.managers.samples import Namespace

Check = Callable[[Namespace], Coroutine[Any, Any, None]]


async def initialized(names: Namespace) -> None:
    config: StateConfig = names["state_manager"].config

    assert isinstance(names["state_manager"], StateManager)
    assert (config.key_prefix, config.ttl) == ("agenticai:", 3_600)


async def operated(names: Namespace) -> None:
    state: StateManager = names["state_manager"]

    assert names["agent_state"] == {"status": "running", "current_task": "analyze_data", "progress": 0.45}
    assert names["keys"] == [] and await state.list_keys() == []
    await state.save("agent:kept", {"progress": 0.45})
    assert await state.update("agent:kept", {"progress": 0.75}) == {"progress": 0.75}


async def subscribed(names: Namespace) -> None:
    state: StateManager = names["state_manager"]
    told: list[Any] = []

    async def tell(key: str, old: Any, new: Any) -> None:
        told.append((key, old, new))

    assert not state.unsubscribe("agent:*", names["on_state_change"])
    state.subscribe("agent:*", tell)
    await state.update("agent:kept", {"status": "idle"})
    await state.drain()
    assert told == [("agent:kept", {"progress": 0.75}, {"progress": 0.75, "status": "idle"})]
    assert state.unsubscribe("agent:*", tell)


async def snapshot_saved(names: Namespace) -> None:
    assert names["snapshots"] == [names["snapshot"]]
    assert names["snapshots"][0].metadata == {"version": "1.0", "task_count": 42}
    assert names["snapshots"][0].timestamp.tzinfo is None


async def checkpointed(names: Namespace) -> None:
    assert names["checkpoint"].step == 5 and names["checkpoint"].recoverable
    assert names["agent"].restored == [names["checkpoint"].state]
    assert names["checkpoint"].state["intermediate_results"] == [1, 2, 3]


async def recovered(names: Namespace) -> None:
    assert names["recovered"].checkpoint == names["checkpoint"]
    assert names["result"] == "resumed" and len(names["agent"].restored) == 2


async def tracked(names: Namespace) -> None:
    step = await names["workflow_state"].get_step("research_pipeline", 1)

    assert (names["current"].current_step, names["current"].total_steps) == (1, 10)
    assert names["current"].status is WorkflowStatus.RUNNING
    assert (step.name, step.result, step.duration_ms) == ("data_collection", {"documents": 150}, 5_400)


async def workflow_checkpointed(names: Namespace) -> None:
    state = await names["workflow_state"].get("research_pipeline")

    assert names["checkpoints"] == [names["checkpoint"]]
    assert names["checkpoint"].state == {"pages": 12}
    assert (state.current_step, state.context) == (5, {"topic": "AI"})


async def ended(names: Namespace) -> None:
    state = await names["workflow_state"].get("research_pipeline")

    assert names["status"] is WorkflowStatus.PAUSED and str(names["status"]) == "WorkflowStatus.PAUSED"
    assert (state.status, state.reason) == (WorkflowStatus.CANCELLED, "User requested cancellation")


async def described(names: Namespace) -> None:
    assert names["backend"].store_url.startswith(("memory://", "file://", "redis://"))
    if names["backend"].store_url.startswith("redis://"):
        assert "prefix=agenticai%3A" in names["backend"].store_url
        assert "max_connections=10" in names["backend"].store_url


async def imported(names: Namespace) -> None:
    managers = [name for name in names if name.endswith(("Manager", "Store"))]
    assert len(managers) == 7 and all(isinstance(names[name], type) for name in managers)


CHECKS: dict[str, Check] = {
    "Overview": imported,
    "Initialization": initialized,
    "Basic Operations": operated,
    "State Subscriptions": subscribed,
    "Creating Agent Snapshots": snapshot_saved,
    "Checkpointing": checkpointed,
    "Agent Recovery": recovered,
    "Workflow State Tracking": tracked,
    "Workflow Checkpointing": workflow_checkpointed,
    "Pause and Resume": ended,
    "Memory Backend (Development)": described,
    "File Backend (Single Instance)": described,
    "Redis Backend (Production)": described,
    **DOMAIN_CHECKS,
}
