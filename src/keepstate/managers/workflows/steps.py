"""Steps of workflows, in any order and as often as workers report them, and the checkpoints behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import NotFoundError
from keepstate.managers.binding import Folder
from keepstate.managers.manager import Manager
from keepstate.managers.record_history import LATEST, Moment, Moments, admit_id
from keepstate.managers.records import admit_record
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
    admit_in,
    admit_step,
    admit_within,
    check_number,
    is_complete,
    is_repeated,
)

STATE: Final = "state"
CHECKPOINT: Final = "checkpoint"
"""The names of the documents of a workflow begin with these, or with that of its steps."""
_STEP: Final = "step"

Change = Callable[[Folder, WorkflowRecord], Awaitable[WorkflowState]]


class WorkflowSteps(Manager):
    """What a `WorkflowStateManager` does for steps and checkpoints."""

    checkpoint_interval: int | None

    # ---- steps

    async def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
        """Write how a step stands, and return where the workflow stands then.

        The first step starts a pending workflow, the last one completes it. To report a completed step again
        does nothing. While a workflow is paused or has failed, steps end but none begins.

        Args:
            workflow_id: The workflow.
            step: The step.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: The workflow or the step cannot go there from where it is.
        """
        admit_step(step)

        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowState:
            return await self._stepped(inside, now, step)

        return await self._changed(workflow_id, change, f"step {step.step_number} {step.status}")

    async def _stepped(self, inside: Folder, now: WorkflowRecord, step: StepState) -> WorkflowState:
        state, name = now.state, inside.name(_STEP, f"{step.step_number:09d}")
        admit_within(state, step.step_number)
        stored: StepRecord | None = await inside.space.documents.get(name)
        known = stored.step if stored is not None and stored.counts_in(now) else None
        if known is not None and known.status in DONE and is_repeated(known, step):
            return state
        admit_in(state, step)
        if known is not None and known.status != step.status:
            STEP.check(f"{step.step_number} of {state.workflow_id}", known.status, step.status)
        elif known is not None and known.status in DONE:
            raise STEP.refused(
                f"{step.step_number} of {state.workflow_id}",
                known.status,
                f"{step.status} with another result",
            )
        step = replace(step, updated_at=await inside.space.now())
        await inside.space.documents.put(name, StepRecord(step, len(now.resumed)))
        if state.status is WorkflowStatus.PENDING:
            state = replace(state, status=WorkflowStatus.RUNNING)
        counts = step.status in DONE and step.step_number > now.done_before
        return await self._advanced(inside, state, step) if counts else state

    async def _advanced(self, inside: Folder, state: WorkflowState, step: StepState) -> WorkflowState:
        """Return where the workflow stands after a step that was not done before."""
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
            await Moments(inside, CHECKPOINT).add(
                checkpoint, id=checkpoint.checkpoint_id, message=f"checkpoint {checkpoint.checkpoint_id}"
            )
        return state

    async def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """Return a step, or None if nothing was reported of it, or the workflow went back behind it."""
        check_number("step_number", step_number, 1)
        folder = self._folder(workflow_id)
        now = await find_workflow(folder)
        stored: StepRecord | None = await folder.space.documents.get(folder.name(_STEP, f"{step_number:09d}"))
        return stored.step if now is not None and stored is not None and stored.counts_in(now) else None

    async def list_steps(self, workflow_id: str) -> list[StepState]:
        """Return the steps of which something was reported, in order of their numbers."""
        folder = self._folder(workflow_id)
        now = await find_workflow(folder)
        if now is None:
            return []
        return [stored.step async for _, stored in folder.values(_STEP) if stored.counts_in(now)]

    # ---- checkpoints

    async def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keep a checkpoint, and return the id of its commit; the history keeps one that it replaces.

        Raises:
            NotFoundError: There is no such workflow.
        """
        admit_record("checkpoint", checkpoint, WorkflowCheckpoint)
        admit_id("checkpoint_id", checkpoint.checkpoint_id)
        check_number("step", checkpoint.step, 0)
        folder = self._folder(checkpoint.workflow_id)

        async def work(inside: Folder) -> Moment:
            now = need_workflow(await find_workflow(inside), checkpoint.workflow_id)
            admit_within(now.state, checkpoint.step)
            context = now.state.context if checkpoint.context is None else checkpoint.context
            return await Moments(inside, CHECKPOINT).add(
                replace(checkpoint, context=context),
                id=checkpoint.checkpoint_id,
                message=f"checkpoint {checkpoint.checkpoint_id}",
            )

        message = f"checkpoint {checkpoint.checkpoint_id}"
        return (await self._together(folder, work, message=message)).commit

    async def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Return a checkpoint, or None if there is none of this id."""
        found: WorkflowCheckpoint | None = await Moments(self._folder(workflow_id), CHECKPOINT).get(
            checkpoint_id
        )
        return found

    async def list_checkpoints(
        self, workflow_id: str, *, limit: int | None = None
    ) -> list[WorkflowCheckpoint]:
        """Return a workflow's checkpoints in the order in which they were saved.

        Args:
            workflow_id: The workflow.
            limit: Only the last so many.
        """
        return await Moments(self._folder(workflow_id), CHECKPOINT).list(limit)

    async def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowCheckpoint:
        """Go back to a checkpoint, and return it.

        Step and context become those of the checkpoint; steps behind it are to be done again. The workflow
        runs then, unless it is paused: it stays so.

        Args:
            workflow_id: The workflow.
            checkpoint_id: The checkpoint; `latest` is the one that was saved last.

        Raises:
            NotFoundError: There is no such workflow or checkpoint.
            TransitionError: The workflow is completed or cancelled.
        """
        check_text("checkpoint_id", checkpoint_id)
        found: list[WorkflowCheckpoint] = []

        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowRecord:
            found[:] = [await Moments(inside, CHECKPOINT).demanded(checkpoint_id)]
            return await self._gone_back(inside, now, found[0])

        await self._rewritten(workflow_id, change, f"resume from {checkpoint_id}")
        return found[0]

    async def _gone_back(
        self, inside: Folder, now: WorkflowRecord, checkpoint: WorkflowCheckpoint
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

    # ---- changing

    async def _changed(self, workflow_id: str, change: Change, message: str) -> WorkflowState:
        async def rewritten(inside: Folder, now: WorkflowRecord) -> WorkflowRecord:
            state = await change(inside, now)
            return now if state is now.state else replace(now, state=state)

        return await self._rewritten(workflow_id, rewritten, message)

    async def _rewritten(
        self,
        workflow_id: str,
        change: Callable[[Folder, WorkflowRecord], Awaitable[WorkflowRecord]],
        message: str,
    ) -> WorkflowState:
        folder = self._folder(workflow_id)

        async def work(inside: Folder) -> WorkflowState:
            now = need_workflow(await find_workflow(inside), workflow_id)
            new = await change(inside, now)
            return now.state if new is now else await write_workflow(inside, new, new.state)

        return await self._together(folder, work, message=message)


async def find_workflow(folder: Folder) -> WorkflowRecord | None:
    """Return a workflow as it is stored, or None if there is none."""
    found: WorkflowRecord | None = await folder.space.documents.get(folder.name(STATE))
    return found


async def write_workflow(inside: Folder, record: WorkflowRecord, state: WorkflowState) -> WorkflowState:
    """Write where a workflow stands, with the store's time, and return that."""
    state = replace(state, updated_at=await inside.space.now())
    await inside.space.documents.put(inside.name(STATE), replace(record, state=state))
    return state


def need_workflow(found: WorkflowRecord | None, workflow_id: str) -> WorkflowRecord:
    """Return the workflow that was found.

    Raises:
        NotFoundError: There was none.
    """
    if found is None:
        raise NotFoundError(f"there is no workflow {workflow_id!r}; create it first")
    return found
