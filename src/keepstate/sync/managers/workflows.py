"""Blocking twins of `keepstate.managers.workflows.manager`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from keepstate._finish import finish
from keepstate.managers.backends import Backend
from keepstate.managers.workflows import manager as managers
from keepstate.managers.workflows.records import WorkflowState, WorkflowStatus
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.workflows_steps import WorkflowSteps
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class WorkflowStateManager(WorkflowSteps[managers.WorkflowStateManager]):
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
                _mode="blocking",
            )
        )

    @property
    def checkpoint_interval(self) -> int | None:
        """After how many completed steps a checkpoint is made by itself; None for never."""
        return self._inner.checkpoint_interval

    def create(self, state: WorkflowState) -> WorkflowState:
        """Begin a workflow, and return it as it is kept.

        Raises:
            AlreadyExistsError: There is one of this id.
            InvalidError: Its numbers do not agree.
        """
        return finish(self._inner.create(state))

    def get(self, workflow_id: str) -> WorkflowState | None:
        """Return where a workflow stands, or None if there is none of this id."""
        return finish(self._inner.get(workflow_id))

    def get_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Return how a workflow stands, or None if there is none of this id."""
        return finish(self._inner.get_status(workflow_id))

    def list_workflows(self, status: WorkflowStatus | None = None) -> list[str]:
        """Return the ids of all workflows, or of those that stand so."""
        return finish(self._inner.list_workflows(status))

    def update_context(self, workflow_id: str, patch: Mapping[str, Any]) -> WorkflowState:
        """Put keys into a workflow's context, whoever else does, and return where it stands."""
        return finish(self._inner.update_context(workflow_id, patch))

    def delete(self, workflow_id: str) -> bool:
        """Remove a workflow with its history, and return whether there was one."""
        return finish(self._inner.delete(workflow_id))

    def pause(self, workflow_id: str) -> WorkflowState:
        """Let no further step begin, and return where the workflow stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return finish(self._inner.pause(workflow_id))

    def resume(self, workflow_id: str) -> WorkflowState:
        """Let a paused workflow go on, and return where it stands.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not paused.
        """
        return finish(self._inner.resume(workflow_id))

    def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """End a workflow for good, and return where it stands; twice is once, with the first reason.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is completed.
        """
        return finish(self._inner.cancel(workflow_id, reason))

    def complete(self, workflow_id: str) -> WorkflowState:
        """End a workflow whose steps nobody counts, and return where it stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not running.
        """
        return finish(self._inner.complete(workflow_id))

    def fail(self, workflow_id: str, error: object) -> WorkflowState:
        """Say that a workflow cannot go on, and return where it stands; `resume_from` lets it.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return finish(self._inner.fail(workflow_id, error))

    def wait_until_resumed(self, workflow_id: str, *, timeout_s: float | None = None) -> WorkflowStatus:
        """Return how the workflow stands once it is not paused; PAUSED if the time was over before.

        Args:
            workflow_id: The workflow.
            timeout_s: How long to wait; without it, for ever.

        Raises:
            NotFoundError: There is no such workflow, or it was deleted.
        """
        return finish(self._inner.wait_until_resumed(workflow_id, timeout_s=timeout_s))
