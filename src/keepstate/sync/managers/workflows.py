"""Blocking twins of `keepstate.managers.workflows`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from keepstate._finish import finish
from keepstate.managers import workflows as managers
from keepstate.managers.backends import Backend
from keepstate.managers.moments import LATEST
from keepstate.managers.workflow_records import StepState, WorkflowCheckpoint, WorkflowState, WorkflowStatus
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.manager import Manager
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class WorkflowStateManager(Manager[managers.WorkflowStateManager]):
    """Keeps workflows, each in its space `workflow/<id>`.

    Attributes:
        checkpoint_interval: After how many completed steps a checkpoint is made by itself; None for never.
    """

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        checkpoint_interval: int | None = 5,
    ) -> None:
        super().__init__(
            managers.WorkflowStateManager(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                checkpoint_interval=checkpoint_interval,
                _colour="blocking",
            )
        )

    @property
    def checkpoint_interval(self) -> int | None:
        """After how many completed steps a checkpoint is made by itself; None for never."""
        return self._inner.checkpoint_interval

    def create(self, state: WorkflowState) -> WorkflowState:
        """Begins a workflow, and returns it as it is kept.

        Raises:
            AlreadyExistsError: There is one of this id.
            InvalidError: Its numbers do not agree.
        """
        return finish(self._inner.create(state))

    def get(self, workflow_id: str) -> WorkflowState | None:
        """Returns where a workflow stands, or None if there is none of this id."""
        return finish(self._inner.get(workflow_id))

    def get_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Returns how a workflow stands, or None if there is none of this id."""
        return finish(self._inner.get_status(workflow_id))

    def list_workflows(self, status: WorkflowStatus | None = None) -> list[str]:
        """Returns the ids of all workflows, or of those that stand so."""
        return finish(self._inner.list_workflows(status))

    def update_context(self, workflow_id: str, patch: Mapping[str, Any]) -> WorkflowState:
        """Puts keys into a workflow's context, whoever else does, and returns where it stands."""
        return finish(self._inner.update_context(workflow_id, patch))

    def delete(self, workflow_id: str) -> bool:
        """Removes a workflow with its history, and returns whether there was one."""
        return finish(self._inner.delete(workflow_id))

    def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
        """Writes how a step stands, and returns where the workflow stands then.

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
        """Returns a step, or None if nothing was reported of it, or the workflow went back behind it."""
        return finish(self._inner.get_step(workflow_id, step_number))

    def list_steps(self, workflow_id: str) -> list[StepState]:
        """Returns the steps of which something was reported, in order of their numbers."""
        return finish(self._inner.list_steps(workflow_id))

    def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keeps a checkpoint, and returns the id of its commit; the history keeps one that it replaces.

        Raises:
            NotFoundError: There is no such workflow.
        """
        return finish(self._inner.checkpoint(checkpoint))

    def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Returns a checkpoint, or None if there is none of this id."""
        return finish(self._inner.get_checkpoint(workflow_id, checkpoint_id))

    def list_checkpoints(self, workflow_id: str, *, limit: int | None = None) -> list[WorkflowCheckpoint]:
        """Returns a workflow's checkpoints in the order in which they were saved.

        Args:
            workflow_id: The workflow.
            limit: Only the last so many.
        """
        return finish(self._inner.list_checkpoints(workflow_id, limit=limit))

    def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowCheckpoint:
        """Goes back to a checkpoint, and returns it.

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

    def pause(self, workflow_id: str) -> WorkflowState:
        """Lets no further step begin, and returns where the workflow stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return finish(self._inner.pause(workflow_id))

    def resume(self, workflow_id: str) -> WorkflowState:
        """Lets a paused workflow go on, and returns where it stands.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not paused.
        """
        return finish(self._inner.resume(workflow_id))

    def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """Ends a workflow for good, and returns where it stands; twice is once, with the first reason.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is completed.
        """
        return finish(self._inner.cancel(workflow_id, reason))

    def complete(self, workflow_id: str) -> WorkflowState:
        """Ends a workflow whose steps nobody counts, and returns where it stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not running.
        """
        return finish(self._inner.complete(workflow_id))

    def fail(self, workflow_id: str, error: object) -> WorkflowState:
        """Says that a workflow cannot go on, and returns where it stands; `resume_from` lets it.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return finish(self._inner.fail(workflow_id, error))

    def wait_until_resumed(self, workflow_id: str, *, timeout_s: float | None = None) -> WorkflowStatus:
        """Returns how the workflow stands once it is not paused; PAUSED if the time was over before.

        Args:
            workflow_id: The workflow.
            timeout_s: How long to wait; without it, for ever.

        Raises:
            NotFoundError: There is no such workflow, or it was deleted.
        """
        return finish(self._inner.wait_until_resumed(workflow_id, timeout_s=timeout_s))
