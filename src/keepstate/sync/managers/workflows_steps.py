"""Blocking twins of `keepstate.managers.workflows.steps`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.record_history import LATEST
from keepstate.managers.workflows import steps as managers
from keepstate.managers.workflows.records import StepState, WorkflowCheckpoint, WorkflowState
from keepstate.sync.managers.manager import Manager

Inner = TypeVar("Inner", bound=managers.WorkflowSteps)


class WorkflowSteps(Manager[Inner]):
    """What a `WorkflowStateManager` does for steps and checkpoints."""

    def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
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
        return finish(self._inner.update_step(workflow_id, step))

    def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """Return a step, or None if nothing was reported of it, or the workflow went back behind it."""
        return finish(self._inner.get_step(workflow_id, step_number))

    def list_steps(self, workflow_id: str) -> list[StepState]:
        """Return the steps of which something was reported, in order of their numbers."""
        return finish(self._inner.list_steps(workflow_id))

    def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keep a checkpoint, and return the id of its commit; the history keeps one that it replaces.

        Raises:
            NotFoundError: There is no such workflow.
        """
        return finish(self._inner.checkpoint(checkpoint))

    def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Return a checkpoint, or None if there is none of this id."""
        return finish(self._inner.get_checkpoint(workflow_id, checkpoint_id))

    def list_checkpoints(self, workflow_id: str, *, limit: int | None = None) -> list[WorkflowCheckpoint]:
        """Return a workflow's checkpoints in the order in which they were saved.

        Args:
            workflow_id: The workflow.
            limit: Only the last so many.
        """
        return finish(self._inner.list_checkpoints(workflow_id, limit=limit))

    def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowCheckpoint:
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
        return finish(self._inner.resume_from(workflow_id, checkpoint_id))
