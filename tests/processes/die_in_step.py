"""Finish a step in one transaction, and be killed in it: `python die_in_step.py URL RECORD STEP`.

The transaction writes a workflow's step, a task's end, an agent's checkpoint and an event. Before the step of
that number the process is killed; with a number past the last one it lives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import keepstate
from keepstate import (
    AgentCheckpoint,
    AgentCoordinationState,
    AgentStateStore,
    OrchestrationStateManager,
    Space,
    StepState,
    TeamState,
    WorkflowState,
    WorkflowStateManager,
)


async def prepare(run: Space) -> None:
    """Begin a workflow and hand its task to an agent."""
    await WorkflowStateManager(space=run).create(WorkflowState(workflow_id="w", total_steps=2))
    team = OrchestrationStateManager(space=run)
    agent = AgentCoordinationState(agent_id="agent")
    await team.create_team(TeamState(team_id="t", agents={"agent": agent}))
    await team.enqueue_task("t", {"id": "task"})
    await team.claim_task("t", "agent")


async def finish(run: Space, killed_before: int) -> None:
    """Do the step and all that belongs to it, or dies."""
    async with run.transaction(message="step 1") as tx:
        done = StepState(step_number=1, name="collect", status="completed", result=[1])
        point = AgentCheckpoint(agent_id="agent", checkpoint_id="c", step=1, state={"result": [1]})
        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: WorkflowStateManager(space=tx, checkpoint_interval=1).update_step("w", done),
            lambda: OrchestrationStateManager(space=tx).complete_task("t", "task", [1]),
            lambda: AgentStateStore(space=tx).save_checkpoint(point),
            lambda: tx.events.append({"finished": 1}),
        ]
        for number, step in enumerate(steps):
            if number == killed_before:
                os.kill(os.getpid(), signal.SIGKILL)
            await step()
        if killed_before == len(steps):
            os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, record: bool, killed_before: int) -> None:
    async with keepstate.open(url) as ks:
        run = ks.space("run/42", author="worker", record=record)
        if await WorkflowStateManager(space=run).get("w") is None:
            await prepare(run)
        await finish(run, killed_before)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])))
