"""Steps of workflows, reported in any order and any number of times, and their checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import NotFoundError
from keepstate.managers.binding import Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.record_history import LATEST, RecordHistory, SavedRecord, check_record_id
from keepstate.managers.records import check_record
from keepstate.managers.workflows.records import (
    DONE,
    STEP,
    WORKFLOW,
    StepRecord,
    StepState,
    WorkflowCheckpoint,
    WorkflowRecord,
    WorkflowState,
    WorkflowStatus,
)
from keepstate.managers.workflows.rules import (
    check_allowed,
    check_number,
    check_step,
    check_within,
    is_complete,
    is_repeated,
)

STATE: Final = "state"
CHECKPOINT: Final = "checkpoint"
"""Prefix of the documents with checkpoints."""
_STEP: Final = "step"

Change = Callable[[Namespace, WorkflowRecord], Awaitable[WorkflowState]]


class WorkflowSteps(Manager):
    """The step and checkpoint operations of `WorkflowStateManager`."""

    checkpoint_interval: int | None

    # ---- steps

    async def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
        """Write the state of a step, and return the workflow.

        The first step starts a pending workflow, and the last one completes it. Reporting a completed step
        again does nothing. While a workflow is paused or has failed, steps can end but not begin.

        Args:
            workflow_id: The workflow.
            step: The step.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The state of the workflow or of the step does not allow the change.
        """
        check_step(step)

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowState:
            return await self._apply_step(inside, now, step)

        return await self._change_state(workflow_id, change, f"step {step.step_number} {step.status}")

    async def _apply_step(self, inside: Namespace, now: WorkflowRecord, step: StepState) -> WorkflowState:
        state, name = now.state, inside.name(_STEP, f"{step.step_number:09d}")
        check_within(state, step.step_number)
        stored: StepRecord | None = await inside.space.documents.get(name)
        known = stored.step if stored is not None and stored.counts_in(now) else None
        if known is not None and known.status in DONE and is_repeated(known, step):
            return state
        check_allowed(state, step)
        if known is not None and known.status != step.status:
            STEP.check(f"{step.step_number} of {state.workflow_id}", known.status, step.status)
        elif known is not None and known.status in DONE:
            raise STEP.make_error(
                f"{step.step_number} of {state.workflow_id}",
                known.status,
                f"{step.status} with another result",
            )
        step = replace(step, updated_at=await inside.space.now())
        await inside.space.documents.put(name, StepRecord(step, len(now.resumed)))
        if state.status is WorkflowStatus.PENDING:
            state = replace(state, status=WorkflowStatus.RUNNING)
        counts = step.status in DONE and step.step_number > now.done_before
        return await self._count_step(inside, state, step) if counts else state

    async def _count_step(self, inside: Namespace, state: WorkflowState, step: StepState) -> WorkflowState:
        """Return the state of a workflow after one more step is done."""
        state = replace(
            state,
            steps_completed=state.steps_completed + 1,
            current_step=max(state.current_step, step.step_number),
        )
        if state.status is WorkflowStatus.RUNNING and is_complete(state):
            state = replace(state, status=WorkflowStatus.COMPLETED)
        if self.checkpoint_interval and state.steps_completed % self.checkpoint_interval == 0:
            checkpoint = WorkflowCheckpoint(
                workflow_id=state.workflow_id,
                checkpoint_id=f"auto-{state.steps_completed}",
                step=state.current_step,
                state=state,
                context=state.context,
                timestamp=await inside.space.now(),
            )
            await RecordHistory(inside, CHECKPOINT).add(
                checkpoint, id=checkpoint.checkpoint_id, message=f"checkpoint {checkpoint.checkpoint_id}"
            )
        return state

    async def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """Return a step, or None if it was not reported, or the workflow was resumed from before it."""
        check_number("step_number", step_number, 1)
        namespace = self._namespace(workflow_id)
        now = await find_workflow(namespace)
        stored: StepRecord | None = await namespace.space.documents.get(
            namespace.name(_STEP, f"{step_number:09d}")
        )
        return stored.step if now is not None and stored is not None and stored.counts_in(now) else None

    async def list_steps(self, workflow_id: str) -> list[StepState]:
        """Return the reported steps, ordered by number."""
        namespace = self._namespace(workflow_id)
        now = await find_workflow(namespace)
        if now is None:
            return []
        return [stored.step async for _, stored in namespace.values(_STEP) if stored.counts_in(now)]

    # ---- checkpoints

    async def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint, and return the id of its commit. A replaced checkpoint stays in the history.

        Raises:
            NotFoundError: The workflow does not exist.
        """
        check_record("checkpoint", checkpoint, WorkflowCheckpoint)
        check_record_id("checkpoint_id", checkpoint.checkpoint_id)
        check_number("step", checkpoint.step, 0)
        namespace = self._namespace(checkpoint.workflow_id)

        async def work(inside: Namespace) -> SavedRecord:
            now = require_workflow(await find_workflow(inside), checkpoint.workflow_id)
            check_within(now.state, checkpoint.step)
            context = now.state.context if checkpoint.context is None else checkpoint.context
            return await RecordHistory(inside, CHECKPOINT).add(
                replace(checkpoint, context=context),
                id=checkpoint.checkpoint_id,
                message=f"checkpoint {checkpoint.checkpoint_id}",
            )

        message = f"checkpoint {checkpoint.checkpoint_id}"
        return (await self._run_together(namespace, work, message=message)).commit

    async def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Return a checkpoint, or None if there is none with this id."""
        found: WorkflowCheckpoint | None = await RecordHistory(self._namespace(workflow_id), CHECKPOINT).get(
            checkpoint_id
        )
        return found

    async def list_checkpoints(
        self, workflow_id: str, *, limit: int | None = None
    ) -> list[WorkflowCheckpoint]:
        """Return a workflow's checkpoints, oldest first.

        Args:
            workflow_id: The workflow.
            limit: Return only the last `limit` checkpoints.
        """
        return await RecordHistory(self._namespace(workflow_id), CHECKPOINT).list(limit)

    async def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowCheckpoint:
        """Go back to a checkpoint, and return it.

        Step and context become those of the checkpoint, and later steps must be done again. The workflow is
        then running, or stays paused if it was.

        Args:
            workflow_id: The workflow.
            checkpoint_id: The checkpoint; `latest` selects the newest.

        Raises:
            NotFoundError: The workflow or checkpoint does not exist.
            TransitionError: The workflow is completed or cancelled.
        """
        check_text("checkpoint_id", checkpoint_id)
        found: list[WorkflowCheckpoint] = []

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            found[:] = [await RecordHistory(inside, CHECKPOINT).require(checkpoint_id)]
            return await self._go_back(inside, now, found[0])

        await self._rewrite(workflow_id, change, f"resume from {checkpoint_id}")
        return found[0]

    async def _go_back(
        self, inside: Namespace, now: WorkflowRecord, checkpoint: WorkflowCheckpoint
    ) -> WorkflowRecord:
        state = now.state
        status = state.status
        if status not in (WorkflowStatus.PAUSED, WorkflowStatus.RUNNING):
            WORKFLOW.check(state.workflow_id, status, WorkflowStatus.RUNNING)
            status = WorkflowStatus.RUNNING
        done_before = min(now.done_before, checkpoint.step)
        now = replace(now, resumed=(*now.resumed, checkpoint.step), done_before=done_before)
        done = [
            stored
            async for _, stored in inside.values(_STEP, after=f"{done_before:09d}")
            if stored.counts_in(now) and stored.step.status in DONE
        ]
        state = replace(
            state,
            status=status,
            current_step=checkpoint.step,
            context=state.context if checkpoint.context is None else checkpoint.context,
            error=None,
            steps_completed=done_before + len(done),
        )
        return replace(now, state=state)

    # ---- changes

    async def _change_state(self, workflow_id: str, change: Change, message: str) -> WorkflowState:
        async def rewrite(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            state = await change(inside, now)
            return now if state is now.state else replace(now, state=state)

        return await self._rewrite(workflow_id, rewrite, message)

    async def _rewrite(
        self,
        workflow_id: str,
        change: Callable[[Namespace, WorkflowRecord], Awaitable[WorkflowRecord]],
        message: str,
    ) -> WorkflowState:
        namespace = self._namespace(workflow_id)

        async def work(inside: Namespace) -> WorkflowState:
            now = require_workflow(await find_workflow(inside), workflow_id)
            new = await change(inside, now)
            return now.state if new is now else await write_workflow(inside, new, new.state)

        return await self._run_together(namespace, work, message=message)


async def find_workflow(namespace: Namespace) -> WorkflowRecord | None:
    """Return the stored workflow, or None if there is none."""
    found: WorkflowRecord | None = await namespace.space.documents.get(namespace.name(STATE))
    return found


async def write_workflow(inside: Namespace, record: WorkflowRecord, state: WorkflowState) -> WorkflowState:
    """Write the state of a workflow with the store's time, and return the state."""
    state = replace(state, updated_at=await inside.space.now())
    await inside.space.documents.put(inside.name(STATE), replace(record, state=state))
    return state


def require_workflow(found: WorkflowRecord | None, workflow_id: str) -> WorkflowRecord:
    """Return a workflow that was read, or raise.

    Raises:
        NotFoundError: The workflow does not exist.
    """
    if found is None:
        raise NotFoundError(f"workflow {workflow_id!r} does not exist. Call create() first.")
    return found
