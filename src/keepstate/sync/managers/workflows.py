"""Blocking twins of `keepstate.managers.workflows.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from keepstate._finish import finish
from keepstate.engine.approvals.records import Approval, TaskSpec
from keepstate.managers.record_history import LATEST
from keepstate.managers.workflows import manager as managers
from keepstate.managers.workflows.records import StepState, WorkflowCheckpoint, WorkflowState, WorkflowStatus
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import inner_options


class WorkflowStateManager(Manager[managers.WorkflowStateManager]):
    """Stores workflows, each in its space `workflow/<id>`.

    Attributes:
        checkpoint_interval: Number of completed steps between two automatic checkpoints; None for none.
    """

    def __init__(self, *, checkpoint_interval: int | None = 5, **storage: Unpack[ManagerStorage]) -> None:
        super().__init__(
            managers.WorkflowStateManager(checkpoint_interval=checkpoint_interval, **inner_options(storage))
        )

    @property
    def checkpoint_interval(self) -> int | None:
        """Number of completed steps between two automatic checkpoints; None for none."""
        return self._inner.checkpoint_interval

    def create(self, state: WorkflowState) -> WorkflowState:
        """Create a workflow, and return it as stored.

        Raises:
            AlreadyExistsError: A workflow with this id exists.
            InvalidError: Its numbers do not agree.
        """
        return finish(self._inner.create(state))

    def get(self, workflow_id: str) -> WorkflowState | None:
        """Return a workflow, or None if there is none with this id."""
        return finish(self._inner.get(workflow_id))

    def get_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Return the status of a workflow, or None if there is none with this id."""
        return finish(self._inner.get_status(workflow_id))

    def list_workflows(self, status: WorkflowStatus | None = None) -> list[str]:
        """Return the ids of all workflows, or of those with a status."""
        return finish(self._inner.list_workflows(status))

    def update_context(self, workflow_id: str, patch: Mapping[str, Any]) -> WorkflowState:
        """Put keys into a workflow's context, and return the workflow. Concurrent updates lose no key."""
        return finish(self._inner.update_context(workflow_id, patch))

    def delete(self, workflow_id: str) -> bool:
        """Remove a workflow with its history, and return whether it existed."""
        return finish(self._inner.delete(workflow_id))

    def pause(self, workflow_id: str) -> WorkflowState:
        """Pause a workflow so that no further step begins, and return it. A second pause does nothing.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow has ended.
        """
        return finish(self._inner.pause(workflow_id))

    def resume(self, workflow_id: str) -> WorkflowState:
        """Resume a paused workflow, and return it.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow is not paused.
        """
        return finish(self._inner.resume(workflow_id))

    def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """Cancel a workflow, and return it. A second call does nothing and keeps the first reason.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow is completed.
        """
        return finish(self._inner.cancel(workflow_id, reason))

    def complete(self, workflow_id: str) -> WorkflowState:
        """Complete a workflow whose number of steps is not known, and return it. A second call does nothing.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow is not running.
        """
        return finish(self._inner.complete(workflow_id))

    def fail(self, workflow_id: str, error: object) -> WorkflowState:
        """Mark a workflow as failed, and return it. `resume_from` can continue it.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow has ended.
        """
        return finish(self._inner.fail(workflow_id, error))

    def wait_until_resumed(self, workflow_id: str, *, timeout_s: float | None = None) -> WorkflowStatus:
        """Wait until a workflow is not paused, and return its status; PAUSED after the timeout.

        Args:
            workflow_id: The workflow.
            timeout_s: Maximum seconds to wait; by default there is no limit.

        Raises:
            NotFoundError: The workflow does not exist, or was deleted.
        """
        return finish(self._inner.wait_until_resumed(workflow_id, timeout_s=timeout_s))

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

    def ask_step(
        self,
        workflow_id: str,
        step: StepState,
        question: str,
        *,
        subject: object = None,
        schema: object = None,
        to: Sequence[str] = (),
        need: int = 1,
        expires_s: float | None = None,
        then: TaskSpec | None = None,
    ) -> Approval:
        """Let a step wait for people, and return the approval that is asked in the same batch.

        The step is running until the approval is settled. Asking the same again returns the first approval.
        Any door of approvals can answer it. After `answer_step` the step has ended; after another answer,
        let the task of `then` call `settle_step`.

        Args:
            workflow_id: The workflow.
            step: The step; its number and name are used.
            question: The question; this and the other arguments are those of `approvals.ask`.
            subject: The thing that is decided about.
            schema: A JSON Schema of the answer. Default: the answer is yes or no.
            to: The people and groups who may answer.
            need: The number of different people who have to say yes.
            expires_s: Seconds after which it takes no answer. Default: it does not expire.
            then: A task that becomes ready when the approval is settled.

        Raises:
            AlreadyExistsError: The step waits for the answer to another question.
            NotFoundError: The workflow does not exist.
            TransitionError: The state of the workflow or of the step does not allow it to begin.
        """
        return finish(
            self._inner.ask_step(
                workflow_id,
                step,
                question,
                subject=subject,
                schema=schema,
                to=to,
                need=need,
                expires_s=expires_s,
                then=then,
            )
        )

    def answer_step(
        self,
        workflow_id: str,
        step_number: int,
        value: object,
        *,
        by: str,
        group: str | None = None,
        note: str = "",
        saw: str | None = None,
    ) -> WorkflowState:
        """Answer the approval of a step, end the step in the same batch, and return the workflow.

        A yes, or a value of the schema, completes the step with this result. A no makes it failed. While more
        people have to say yes, it stays running. The same answer sent again changes nothing.

        Args:
            workflow_id: The workflow.
            step_number: The number of the step.
            value: The answer; this and the other arguments are those of `approvals.answer`.
            by: The person who answers, as the caller has verified it.
            group: The group that the person answers for.
            note: A note.
            saw: The digest of the approval as the person saw it.

        Raises:
            ApprovalClosedError: It was answered otherwise, has expired or was withdrawn.
            NotAllowedError: The person asked, or is not among those asked.
            NotFoundError: The workflow does not exist.
            TransitionError: The step waits for no approval, or the workflow has ended.
        """
        return finish(
            self._inner.answer_step(workflow_id, step_number, value, by=by, group=group, note=note, saw=saw)
        )

    def settle_step(self, workflow_id: str, step_number: int) -> WorkflowState:
        """End a step as its approval was settled elsewhere, and return the workflow.

        A step whose approval is pending goes on waiting, and one that has ended stays as it is; so a task may
        call it any number of times. An approval that has expired or was withdrawn makes the step failed.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The step waits for no approval, or the workflow has ended.
        """
        return finish(self._inner.settle_step(workflow_id, step_number))

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
