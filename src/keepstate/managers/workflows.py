"""Workflows: their steps, in any order and as often as workers report them, paused, resumed, gone back to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import Any, ClassVar, Final

from keepstate._runner import Colour
from keepstate.engine.admission import admit_instance, admit_text
from keepstate.engine.glob import escaped
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.space import Space
from keepstate.engine.times import admit_wait
from keepstate.engine.transaction import Transaction
from keepstate.errors import AlreadyExistsError, NotFoundError
from keepstate.managers.backends import Backend
from keepstate.managers.manager import Manager
from keepstate.managers.moments import LATEST, Moment, Moments, admit_id, forget_old
from keepstate.managers.place import Folder
from keepstate.managers.records import admit_record
from keepstate.managers.workflow_records import (
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
from keepstate.managers.workflow_rules import (
    admit_in,
    admit_number,
    admit_state,
    admit_step,
    admit_within,
    is_complete,
    is_repeated,
)
from keepstate.stores.protocol import Store
from keepstate.values import limits

_STATE: Final = "state"
_STEP: Final = "step"
_CHECKPOINT: Final = "checkpoint"

Change = Callable[[Folder, WorkflowRecord], Awaitable[WorkflowState]]


class WorkflowStateManager(Manager):
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
        _colour: Colour = "async",
    ) -> None:
        """Makes a manager; asks the store nothing.

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
            _colour=_colour,
        )

    # ---- workflows

    async def create(self, state: WorkflowState) -> WorkflowState:
        """Begins a workflow, and returns it as it is kept.

        Raises:
            AlreadyExistsError: There is one of this id.
            InvalidError: Its numbers do not agree.
        """
        admit_state(state)
        done = state.current_step
        begun = WorkflowRecord(replace(state, steps_completed=done), done_before=done)
        folder = self._folder(state.workflow_id)

        async def work(inside: Folder) -> WorkflowState:
            if await inside.space.documents.entry(inside.name(_STATE)) is not None:
                raise AlreadyExistsError(f"workflow {state.workflow_id!r} is there already; take another id")
            return await _written(inside, begun, begun.state)

        return await self._together(folder, work, message="create")

    async def get(self, workflow_id: str) -> WorkflowState | None:
        """Returns where a workflow stands, or None if there is none of this id."""
        found = await _found(self._folder(workflow_id))
        return None if found is None else found.state

    async def get_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Returns how a workflow stands, or None if there is none of this id."""
        found = await self.get(workflow_id)
        return None if found is None else found.status

    async def list_workflows(self, status: WorkflowStatus | None = None) -> list[str]:
        """Returns the ids of all workflows, or of those that stand so."""
        if status is not None:
            admit_instance("status", status, WorkflowStatus)
        ids = await self._ids()
        if status is None:
            return ids
        return [id for id in ids if await self.get_status(id) is status]

    async def update_context(self, workflow_id: str, patch: Mapping[str, Any]) -> WorkflowState:
        """Puts keys into a workflow's context, whoever else does, and returns where it stands."""
        admit_instance("patch", patch, Mapping)

        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowState:
            return replace(now.state, context={**now.state.context, **patch})

        return await self._changed(workflow_id, change, "update the context")

    async def delete(self, workflow_id: str) -> bool:
        """Removes a workflow with its history, and returns whether there was one."""
        return await self._forget(self._folder(workflow_id), branches=(_CHECKPOINT,), last=_STATE)

    # ---- steps

    async def update_step(self, workflow_id: str, step: StepState) -> WorkflowState:
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
        """Returns where the workflow stands after a step that was not done before."""
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
            await Moments(inside, _CHECKPOINT).add(
                checkpoint, id=checkpoint.checkpoint_id, message=f"checkpoint {checkpoint.checkpoint_id}"
            )
        return state

    async def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """Returns a step, or None if nothing was reported of it, or the workflow went back behind it."""
        admit_number("step_number", step_number, 1)
        folder = self._folder(workflow_id)
        now = await _found(folder)
        stored: StepRecord | None = await folder.space.documents.get(folder.name(_STEP, f"{step_number:09d}"))
        return stored.step if now is not None and stored is not None and stored.counts_in(now) else None

    async def list_steps(self, workflow_id: str) -> list[StepState]:
        """Returns the steps of which something was reported, in order of their numbers."""
        folder = self._folder(workflow_id)
        now = await _found(folder)
        if now is None:
            return []
        return [stored.step async for _, stored in folder.values(_STEP) if stored.counts_in(now)]

    # ---- checkpoints

    async def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Keeps a checkpoint, and returns the id of its commit; the history keeps one that it replaces.

        Raises:
            NotFoundError: There is no such workflow.
        """
        admit_record("checkpoint", checkpoint, WorkflowCheckpoint)
        admit_id("checkpoint_id", checkpoint.checkpoint_id)
        admit_number("step", checkpoint.step, 0)
        folder = self._folder(checkpoint.workflow_id)

        async def work(inside: Folder) -> Moment:
            now = _there(await _found(inside), checkpoint.workflow_id)
            admit_within(now.state, checkpoint.step)
            context = now.state.context if checkpoint.context is None else checkpoint.context
            return await Moments(inside, _CHECKPOINT).add(
                replace(checkpoint, context=context),
                id=checkpoint.checkpoint_id,
                message=f"checkpoint {checkpoint.checkpoint_id}",
            )

        message = f"checkpoint {checkpoint.checkpoint_id}"
        return (await self._together(folder, work, message=message)).commit

    async def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Returns a checkpoint, or None if there is none of this id."""
        found: WorkflowCheckpoint | None = await Moments(self._folder(workflow_id), _CHECKPOINT).get(
            checkpoint_id
        )
        return found

    async def list_checkpoints(
        self, workflow_id: str, *, limit: int | None = None
    ) -> list[WorkflowCheckpoint]:
        """Returns a workflow's checkpoints in the order in which they were saved.

        Args:
            workflow_id: The workflow.
            limit: Only the last so many.
        """
        return await Moments(self._folder(workflow_id), _CHECKPOINT).list(limit)

    async def resume_from(self, workflow_id: str, checkpoint_id: str = LATEST) -> WorkflowCheckpoint:
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
        admit_text("checkpoint_id", checkpoint_id)
        found: list[WorkflowCheckpoint] = []

        async def change(inside: Folder, now: WorkflowRecord) -> WorkflowRecord:
            found[:] = [await Moments(inside, _CHECKPOINT).demanded(checkpoint_id)]
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

    # ---- pausing and ending

    async def pause(self, workflow_id: str) -> WorkflowState:
        """Lets no further step begin, and returns where the workflow stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return await self._moved(workflow_id, WorkflowStatus.PAUSED)

    async def resume(self, workflow_id: str) -> WorkflowState:
        """Lets a paused workflow go on, and returns where it stands.

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
        """Ends a workflow for good, and returns where it stands; twice is once, with the first reason.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is completed.
        """
        if reason is not None:
            admit_text("reason", reason)
        return await self._moved(workflow_id, WorkflowStatus.CANCELLED, reason=reason)

    async def complete(self, workflow_id: str) -> WorkflowState:
        """Ends a workflow whose steps nobody counts, and returns where it stands; twice is once.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It is not running.
        """
        return await self._moved(workflow_id, WorkflowStatus.COMPLETED)

    async def fail(self, workflow_id: str, error: object) -> WorkflowState:
        """Says that a workflow cannot go on, and returns where it stands; `resume_from` lets it.

        Raises:
            NotFoundError: There is no such workflow.
            TransitionError: It has ended.
        """
        return await self._moved(workflow_id, WorkflowStatus.FAILED, error=str(error))

    async def wait_until_resumed(self, workflow_id: str, *, timeout_s: float | None = None) -> WorkflowStatus:
        """Returns how the workflow stands once it is not paused; PAUSED if the time was over before.

        Args:
            workflow_id: The workflow.
            timeout_s: How long to wait; without it, for ever.

        Raises:
            NotFoundError: There is no such workflow, or it was deleted.
        """
        if timeout_s is not None:
            admit_wait("timeout_s", timeout_s)
        folder = self._folder(workflow_id)
        deadline_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        async with folder.space.documents.watch(escaped(folder.name(_STATE))) as watch:
            while True:
                status = _there(await _found(folder), workflow_id).state.status
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
            now = _there(await _found(inside), workflow_id)
            new = await change(inside, now)
            return now.state if new is now else await _written(inside, new, new.state)

        return await self._together(folder, work, message=message)

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Removes a workflow that ended before then; of one that goes on, old checkpoints and the past."""
        found = await _found(folder)
        if found is None:
            return 0
        has_ended = WORKFLOW.is_final(found.state.status) or found.state.status is WorkflowStatus.FAILED
        if has_ended:
            is_old = found.state.updated_at is not None and found.state.updated_at <= before
            return int(is_old and await self.delete(folder.id))
        removed, since = await forget_old(folder, (_CHECKPOINT,), before, self._together)
        await self._prune(folder, since)
        return removed


async def _found(folder: Folder) -> WorkflowRecord | None:
    found: WorkflowRecord | None = await folder.space.documents.get(folder.name(_STATE))
    return found


async def _written(inside: Folder, record: WorkflowRecord, state: WorkflowState) -> WorkflowState:
    state = replace(state, updated_at=await inside.space.now())
    await inside.space.documents.put(inside.name(_STATE), replace(record, state=state))
    return state


def _there(found: WorkflowRecord | None, workflow_id: str) -> WorkflowRecord:
    if found is None:
        raise NotFoundError(f"there is no workflow {workflow_id!r}; create it first")
    return found
