"""Workflows: created, paused, resumed, ended, and waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any, ClassVar

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.times import check_wait
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import AlreadyExistsError
from keepstate.managers.backends import Backend
from keepstate.managers.binding import Folder
from keepstate.managers.record_history import forget_old
from keepstate.managers.workflows.records import WORKFLOW, WorkflowRecord, WorkflowState, WorkflowStatus
from keepstate.managers.workflows.rules import admit_state, is_complete
from keepstate.managers.workflows.steps import (
    CHECKPOINT,
    STATE,
    WorkflowSteps,
    find_workflow,
    need_workflow,
    write_workflow,
)
from keepstate.stores.protocol import Store
from keepstate.values import limits


class WorkflowStateManager(WorkflowSteps):
    """Keeps workflows, each in its space `workflow/<id>`.

    Attributes:
        checkpoint_interval: After how many completed steps a checkpoint is made by itself; None for never.
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
        """Make a manager; asks the store nothing.

        Args:
            persistence: `memory`, `file`, `sqlite`, `redis` or `postgres`; a URL, a description, or an open
                store.
            url: With a name that needs one.
            redis_url: With `redis`.
            file_path: With `file` or `sqlite`.
            space: Instead: a space or transaction to keep all workflows in.
            checkpoint_interval: After how many completed steps to make a checkpoint; None for never.
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
        """Begin a workflow, and return it as it is kept.

        Raises:
            AlreadyExistsError: There is one of this id.
            InvalidError: Its numbers do not agree.
        """
        admit_state(state)
        done = state.current_step
        begun = WorkflowRecord(replace(state, steps_completed=done), done_before=done)
        folder = self._folder(state.workflow_id)

        async def work(inside: Folder) -> WorkflowState:
            if await inside.space.documents.entry(inside.name(STATE)) is not None:
                raise AlreadyExistsError(f"workflow {state.workflow_id!r} is there already; take another id")
            return await write_workflow(inside, begun, begun.state)

        return await self._together(folder, work, message="create")

    async def get(self, workflow_id: str) -> WorkflowState | None:
        """Return where a workflow stands, or None if there is none of this id."""
        found = await find_workflow(self._folder(workflow_id))
        return None if found is None else found.state

    async def get_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Return how a workflow stands, or None if there is none of this id."""
        found = await self.get(workflow_id)
        return None if found is None else found.status

    async def list_workflows(self, status: WorkflowStatus | None = None) -> list[str]:
        """Return the ids of all workflows, or of those that stand so."""
        if status is not None:
            require_instance("status", status, WorkflowStatus)
        ids = await self._ids()
        if status is None:
            return ids
        return [id for id in ids if await self.get_status(id) is status]

    async def update_context(self, workflow_id: str, patch: Mapping[str, Any]) -> WorkflowState:
        """Put keys into a workflow's context, whoever else does, and return where it stands."""
        require_instance("patch", patch, Mapping)

        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowState:
            return replace(now.state, context={**now.state.context, **patch})

        return await self._changed(workflow_id, change, "update the context")

    async def delete(self, workflow_id: str) -> bool:
        """Remove a workflow with its history, and return whether there was one."""
        return await self._forget(self._folder(workflow_id), branches=(CHECKPOINT,), last=STATE)

    # ---- pausing and ending

    async def pause(self, workflow_id: str) -> WorkflowState:
        """Let no further step begin, and return where the workflow stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return await self._moved(workflow_id, WorkflowStatus.PAUSED)

    async def resume(self, workflow_id: str) -> WorkflowState:
        """Let a paused workflow go on, and return where it stands.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not paused.
        """

        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowState:
            state = now.state
            if state.status is WorkflowStatus.RUNNING:
                return state
            if state.status is not WorkflowStatus.PAUSED:
                raise WORKFLOW.refused(workflow_id, state.status, "RUNNING by resuming")
            return replace(
                state, status=WorkflowStatus.COMPLETED if is_complete(state) else WorkflowStatus.RUNNING
            )

        return await self._changed(workflow_id, change, "resume")

    async def cancel(self, workflow_id: str, reason: str | None = None) -> WorkflowState:
        """End a workflow for good, and return where it stands; twice is once, with the first reason.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is completed.
        """
        if reason is not None:
            check_text("reason", reason)
        return await self._moved(workflow_id, WorkflowStatus.CANCELLED, reason=reason)

    async def complete(self, workflow_id: str) -> WorkflowState:
        """End a workflow whose steps nobody counts, and return where it stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not running.
        """
        return await self._moved(workflow_id, WorkflowStatus.COMPLETED)

    async def fail(self, workflow_id: str, error: object) -> WorkflowState:
        """Say that a workflow cannot go on, and return where it stands; `resume_from` lets it.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return await self._moved(workflow_id, WorkflowStatus.FAILED, error=str(error))

    async def wait_until_resumed(self, workflow_id: str, *, timeout_s: float | None = None) -> WorkflowStatus:
        """Return how the workflow stands once it is not paused; PAUSED if the time was over before.

        Args:
            workflow_id: The workflow.
            timeout_s: How long to wait; without it, for ever.

        Raises:
            NotFoundError: There is no such workflow, or it was deleted.
        """
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        folder = self._folder(workflow_id)
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        async with folder.space.documents.watch(escape_pattern(folder.name(STATE))) as watch:
            while True:
                status = need_workflow(await find_workflow(folder), workflow_id).state.status
                left_s = 60.0 if deadline_s is None else deadline_s - self._clock.monotonic_s()
                if status is not WorkflowStatus.PAUSED or left_s <= 0:
                    return status
                await watch.take(left_s)

    # ---- changing

    async def _moved(self, workflow_id: str, wanted: WorkflowStatus, **facts: Any) -> WorkflowState:
        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowState:
            if now.state.status is wanted:
                return now.state
            WORKFLOW.check(workflow_id, now.state.status, wanted)
            return replace(now.state, status=wanted, **facts)

        return await self._changed(workflow_id, change, wanted.value)

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Remove a workflow that ended before then; of one that goes on, old checkpoints and the past."""
        found = await find_workflow(folder)
        if found is None:
            return 0
        if _has_ended(found.state):
            if not _is_over(found.state, before):
                return 0
            is_over = await self._together(folder, partial(_end, before=before))
            return int(is_over and await self.delete(folder.id))
        removed, since = await forget_old(folder, (CHECKPOINT,), before, self._together)
        await self._prune(folder, since)
        return removed


def _has_ended(state: WorkflowState) -> bool:
    return WORKFLOW.is_final(state.status) or state.status is WorkflowStatus.FAILED


def _is_over(state: WorkflowState, before: datetime) -> bool:
    return _has_ended(state) and state.updated_at is not None and state.updated_at <= before


async def _end(inside: Folder, before: datetime) -> bool:
    """Return whether a workflow is over since then, and let none that is be resumed while it is removed."""
    found = await find_workflow(inside)
    if found is None or not _is_over(found.state, before):
        return False
    if found.state.status is WorkflowStatus.FAILED:
        cancelled = replace(found.state, status=WorkflowStatus.CANCELLED)
        await inside.space.documents.put(inside.name(STATE), replace(found, state=cancelled))
    return True
