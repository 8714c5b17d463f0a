"""What type checkers know of managers, with `await` and without."""

from __future__ import annotations

from typing import Any, assert_type

import keepstate
from keepstate import (
    AgentCheckpoint,
    AgentSnapshot,
    ManagerSize,
    Recovery,
    SizeAlert,
    Space,
    StateMoment,
    StepState,
    Transaction,
    WorkflowState,
    WorkflowStatus,
    sync,
)


async def told(key: str, old: Any, new: Any) -> None: ...


def alerted(alert: SizeAlert) -> None: ...


async def asynchronous(space: Space, tx: Transaction) -> None:
    async with keepstate.StateManager(keepstate.StateConfig(backend="memory")) as state:
        assert_type(state, keepstate.StateManager)
        assert_type(await state.list_keys("agent:*"), list[str])
        assert_type(await state.history("k"), list[StateMoment])
        assert_type(await state.size(), ManagerSize)
        state.subscribe("*", told)
        state.on_size_alert(limit_bytes=1, callback=alerted)
        async with state.transaction() as inside:
            assert_type(inside, keepstate.StateManager)
    agents = keepstate.AgentStateStore(space=tx)
    assert_type(await agents.get_checkpoint("a", "c"), AgentCheckpoint | None)
    assert_type(await agents.list_snapshots("a"), list[AgentSnapshot])
    assert_type(await keepstate.AgentRecoveryManager(agents).recover("a"), Recovery)
    workflows = keepstate.WorkflowStateManager(
        persistence=keepstate.SQLiteBackend("x"), checkpoint_interval=5
    )
    assert_type(await workflows.get("w"), WorkflowState | None)
    assert_type(await workflows.update_step("w", StepState(1)), WorkflowState)
    assert_type(await workflows.wait_until_resumed("w"), WorkflowStatus)


def blocking(space: sync.Space, foreign: Space) -> None:
    with sync.StateManager(space=space) as state, state.transaction() as inside:
        assert_type(inside, sync.StateManager)
        assert_type(inside.list_keys(), list[str])
    agents = sync.AgentStateStore(persistence="memory")
    assert_type(agents.list_checkpoints("a"), list[AgentCheckpoint])
    assert_type(sync.AgentRecoveryManager(agents).recover("a"), Recovery)
    assert_type(sync.WorkflowStateManager(space=space).get_status("w"), WorkflowStatus | None)
    sync.AgentStateStore(space=foreign)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
