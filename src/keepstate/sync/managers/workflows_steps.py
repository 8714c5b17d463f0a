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
    """The step and checkpoint operations of `WorkflowStateManager`."""

    def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
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
        return finish(self._inner.update_step(workflow_id, step))

    def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """Return a step, or None if it was not reported, or the workflow was resumed from before it."""
        return finish(self._inner.get_step(workflow_id, step_number))

    def list_steps(self, workflow_id: str) -> list[StepState]:
        """Return the reported steps, ordered by number."""
        return finish(self._inner.list_steps(workflow_id))

    def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint, and return the id of its commit. A replaced checkpoint stays in the history.

        Raises:
            NotFoundError: The workflow does not exist.
        """
        return finish(self._inner.checkpoint(checkpoint))

    def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Return a checkpoint, or None if there is none with this id."""
        return finish(self._inner.get_checkpoint(workflow_id, checkpoint_id))

    def list_checkpoints(self, workflow_id: str, *, limit: int | None = None) -> list[WorkflowCheckpoint]:
        """Return a workflow's checkpoints, oldest first.

        Args:
            workflow_id: The workflow.
            limit: Return only the last `limit` checkpoints.
        """
        return finish(self._inner.list_checkpoints(workflow_id, limit=limit))

    def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowCheckpoint:
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
        return finish(self._inner.resume_from(workflow_id, checkpoint_id))
