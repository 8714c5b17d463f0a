"""An agent of the demo: claims modules and does each in one transaction, until none is left."""

from __future__ import annotations

from contextlib import suppress

from examples.demo import stage
from examples.demo.survey import NOTHING, Totals, add_module, imported_packages, survey
from examples.demo.tool import ask
from keepstate import (
    AgentCheckpoint,
    AgentRecoveryManager,
    LeaseLostError,
    Space,
    TeamTask,
    ToolStateManager,
    Transaction,
    WorkflowStatus,
)

WAITING = "waiting"
"""The status of an agent while the workflow is paused."""


class Agent:
    """One agent. It counts its finished modules, and continues from that count after a kill."""

    def __init__(self, id: str, run: Space, tools: ToolStateManager) -> None:
        self.id, self.done = id, NOTHING
        self._run, self._tools, self._managers = run, tools, stage.open_managers(run)

    def restore_from_checkpoint(self, state: Totals) -> None:
        """Restore the count of finished modules."""
        self.done = state

    async def work(self) -> None:
        """Continue from the checkpoint of this agent's name, and work until nothing is left to index."""
        if await self._managers.agents.latest_checkpoint(self.id) is not None:
            recovery = AgentRecoveryManager(self._managers.agents)
            recovery.register(self)
            found = await recovery.recover(self.id)
            await self._run.events.append(
                {"type": "recovered", "agent": self.id, "attempt": found.attempt, "done": self.done}
            )
        while (task := await self._claim_next()) is not None:
            await self._do(task)

    async def _claim_next(self) -> TeamTask | None:
        teams, workflows = self._managers.teams, self._managers.workflows
        while True:
            workflow = await workflows.get(stage.WORKFLOW)
            if workflow is None or workflow.current_step >= stage.INDEX:
                return None
            if workflow.status is WorkflowStatus.PAUSED:
                await teams.update_agent_status(stage.TEAM, self.id, WAITING)
                await workflows.wait_until_resumed(stage.WORKFLOW)
                await teams.update_agent_status(stage.TEAM, self.id, "idle")
            task = await teams.claim_task(stage.TEAM, self.id, wait_s=0.2)
            if task is not None:
                return task

    async def _do(self, task: TeamTask) -> None:
        """Index a module, unless another agent has taken over its task."""
        module, found = task.id, survey(task.id)
        for name in imported_packages(found):
            await ask(self._tools, name, id=f"{module}, attempt {task.attempt}: {name}")
        done, tries = add_module(self.done, found), 0

        async def record(tx: Transaction) -> None:
            nonlocal tries
            tries += 1
            inside = stage.open_managers(tx)
            await inside.teams.complete_task(
                stage.TEAM, module, found["lines"], agent_id=self.id, token=task.token
            )
            await inside.bases.complete_document(
                stage.BASE,
                module,
                embeddings=found["functions"] + found["classes"],
                size_bytes=found["bytes"],
            )
            await tx.documents.put(f"module/{module}", found)
            await tx.documents.update("totals", lambda totals: add_module(totals, found), default=NOTHING)
            await inside.agents.save_checkpoint(
                AgentCheckpoint(self.id, stage.CHECKPOINT, step=done["modules"], state=done)
            )
            facts = {"module": module, "agent": self.id, "attempt": task.attempt, "tries": tries}
            await tx.events.append({"type": "indexed", **facts})

        with suppress(LeaseLostError):
            await self._run.by(message=f"index {module}").transact(record, attempts=stage.ATTEMPTS)
            self.done = done
