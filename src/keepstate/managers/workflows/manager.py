"""Workflows: creation, pause and resumption, their end, and waiting for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any, ClassVar

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_text, check_wait, require_instance
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AlreadyExistsError
from keepstate.managers.backends import Backend
from keepstate.managers.binding import Namespace
from keepstate.managers.record_history import delete_old_records
from keepstate.managers.workflows.records import WORKFLOW, WorkflowRecord, WorkflowState, WorkflowStatus
from keepstate.managers.workflows.rules import check_initial_state, is_complete
from keepstate.managers.workflows.steps import (
    CHECKPOINT,
    STATE,
    WorkflowSteps,
    find_workflow,
    require_workflow,
    write_workflow,
)
from keepstate.stores.protocol import Store
from keepstate.values import limits


class WorkflowStateManager(WorkflowSteps):
    """Stores workflows, each in its space `workflow/<id>`.

    Attributes:
        checkpoint_interval: Number of completed steps between two automatic checkpoints; None for none.
    """

    _kind: ClassVar[str] = "workflow"

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
        checkpoint_interval: int | None = 5,
        _mode: Mode = "async",
    ) -> None:
        """Make a manager, without a read.

        Args:
            persistence: `memory`, `file`, `sqlite`, `redis` or `postgres`; a URL, a description, or an open
                store.
            url: With a name that needs one.
            redis_url: With `redis`.
            file_path: With `file` or `sqlite`.
            space: A space or transaction that stores all workflows, in place of a store.
            checkpoint_interval: Number of completed steps between two automatic checkpoints; None for none.
        """
        if checkpoint_interval is not None:
            limits.admit_count("checkpoint_interval", checkpoint_interval)
        self.checkpoint_interval = checkpoint_interval
        super().__init__(
            persistence=persistence,
            url=url,
            redis_url=redis_url,
            file_path=file_path,
            space=space,
            _mode=_mode,
        )

    # ---- workflows

    async def create(self, state: WorkflowState) -> WorkflowState:
        """Create a workflow, and return it as stored.

        Raises:
            AlreadyExistsError: A workflow with this id exists.
            InvalidError: Its numbers do not agree.
        """
        check_initial_state(state)
        done = state.current_step
        begun = WorkflowRecord(replace(state, steps_completed=done), done_before=done)
        namespace = self._namespace(state.workflow_id)

        async def work(inside: Namespace) -> WorkflowState:
            if await inside.space.documents.entry(inside.name(STATE)) is not None:
                raise AlreadyExistsError(f"workflow {state.workflow_id!r} exists already. Use another id.")
            return await write_workflow(inside, begun, begun.state)

        return await self._run_together(namespace, work, message="create")

    async def get(self, workflow_id: str) -> WorkflowState | None:
        """Return a workflow, or None if there is none with this id."""
        found = await find_workflow(self._namespace(workflow_id))
        return None if found is None else found.state

    async def get_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Return the status of a workflow, or None if there is none with this id."""
        found = await self.get(workflow_id)
        return None if found is None else found.status

    async def list_workflows(self, status: WorkflowStatus | None = None) -> list[str]:
        """Return the ids of all workflows, or of those with a status."""
        if status is not None:
            require_instance("status", status, WorkflowStatus)
        ids = await self._ids()
        if status is None:
            return ids
        return [id for id in ids if await self.get_status(id) is status]

    async def update_context(self, workflow_id: str, patch: Mapping[str, Any]) -> WorkflowState:
        """Put keys into a workflow's context, and return the workflow. Concurrent updates lose no key."""
        require_instance("patch", patch, Mapping)

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowState:
            return replace(now.state, context={**now.state.context, **patch})

        return await self._change_state(workflow_id, change, "update the context")

    async def delete(self, workflow_id: str) -> bool:
        """Remove a workflow with its history, and return whether it existed."""
        return await self._forget(self._namespace(workflow_id), branches=(CHECKPOINT,), last=STATE)

    # ---- pause and end

    async def pause(self, workflow_id: str) -> WorkflowState:
        """Pause a workflow so that no further step begins, and return it. A second pause does nothing.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow has ended.
        """
        return await self._move_to(workflow_id, WorkflowStatus.PAUSED)

    async def resume(self, workflow_id: str) -> WorkflowState:
        """Resume a paused workflow, and return it.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow is not paused.
        """

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowState:
            state = now.state
            if state.status is WorkflowStatus.RUNNING:
                return state
            if state.status is not WorkflowStatus.PAUSED:
                raise WORKFLOW.make_error(workflow_id, state.status, "RUNNING by resuming")
            return replace(
                state, status=WorkflowStatus.COMPLETED if is_complete(state) else WorkflowStatus.RUNNING
            )

        return await self._change_state(workflow_id, change, "resume")

    async def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """Cancel a workflow, and return it. A second call does nothing and keeps the first reason.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow is completed.
        """
        if reason is not None:
            check_text("reason", reason)
        return await self._move_to(workflow_id, WorkflowStatus.CANCELLED, reason=reason)

    async def complete(self, workflow_id: str) -> WorkflowState:
        """Complete a workflow whose number of steps is not known, and return it. A second call does nothing.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow is not running.
        """
        return await self._move_to(workflow_id, WorkflowStatus.COMPLETED)

    async def fail(self, workflow_id: str, error: object) -> WorkflowState:
        """Mark a workflow as failed, and return it. `resume_from` can continue it.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The workflow has ended.
        """
        return await self._move_to(workflow_id, WorkflowStatus.FAILED, error=str(error))

    async def wait_until_resumed(self, workflow_id: str, *, timeout_s: float | None = None) -> WorkflowStatus:
        """Wait until a workflow is not paused, and return its status; PAUSED after the timeout.

        Args:
            workflow_id: The workflow.
            timeout_s: Maximum seconds to wait; by default there is no limit.

        Raises:
            NotFoundError: The workflow does not exist, or was deleted.
        """
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        namespace = self._namespace(workflow_id)
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        async with namespace.space.documents.watch(escape_pattern(namespace.name(STATE))) as watch:
            while True:
                status = require_workflow(await find_workflow(namespace), workflow_id).state.status
                left_s = 60.0 if deadline_s is None else deadline_s - self._clock.monotonic_s()
                if status is not WorkflowStatus.PAUSED or left_s <= 0:
                    return status
                await watch.take(left_s)

    # ---- changes

    async def _move_to(self, workflow_id: str, wanted: WorkflowStatus, **facts: Any) -> WorkflowState:
        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowState:
            if now.state.status is wanted:
                return now.state
            WORKFLOW.check(workflow_id, now.state.status, wanted)
            return replace(now.state, status=wanted, **facts)

        return await self._change_state(workflow_id, change, wanted.value)

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove a workflow that ended before a time, or old checkpoints and history of a live one."""
        found = await find_workflow(namespace)
        if found is None:
            return 0
        if _has_ended(found.state):
            if not _ended_before(found.state, before):
                return 0
            is_over = await self._run_together(namespace, partial(_cancel_ended, before=before))
            return int(is_over and await self.delete(namespace.id))
        removed, since = await delete_old_records(namespace, (CHECKPOINT,), before, self._run_together)
        await self._prune(namespace, since)
        return removed


def _has_ended(state: WorkflowState) -> bool:
    return WORKFLOW.is_final(state.status) or state.status is WorkflowStatus.FAILED


def _ended_before(state: WorkflowState, before: datetime) -> bool:
    return _has_ended(state) and state.updated_at is not None and state.updated_at <= before


async def _cancel_ended(inside: Namespace, before: datetime) -> bool:
    """Return whether a workflow ended before a time. Cancels a failed one, so that it is not resumed."""
    found = await find_workflow(inside)
    if found is None or not _ended_before(found.state, before):
        return False
    if found.state.status is WorkflowStatus.FAILED:
        cancelled = replace(found.state, status=WorkflowStatus.CANCELLED)
        await inside.space.documents.put(inside.name(STATE), replace(found, state=cancelled))
    return True
