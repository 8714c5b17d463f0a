"""Workflows: their states, their steps in any order and any number of times, and their checkpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final, Unpack

from keepstate.engine.approvals.records import Approval, TaskSpec
from keepstate.engine.documents.collection import Collection
from keepstate.engine.kernel.arguments import check_text, check_wait, require_instance
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.errors import AlreadyExistsError, NotFoundError
from keepstate.managers.binding import ManagerStorage, Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.record_history import LATEST, RecordHistory, check_record_id
from keepstate.managers.records import check_record
from keepstate.managers.workflows import approvals
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
    check_allowed,
    check_initial_state,
    check_step,
    check_within,
    is_complete,
    is_repeated,
)
from keepstate.values import limits

STATE: Final = "state"
CHECKPOINT: Final = "checkpoint"

Change = Callable[[Namespace, WorkflowRecord], Awaitable[WorkflowRecord]]


class WorkflowStateManager(Manager):
    """Stores workflows, each in its space `workflow/<id>`.

    Attributes:
        checkpoint_interval: Number of completed steps between two automatic checkpoints; None for none.
    """

    _kind: ClassVar[str] = "workflow"

    def __init__(
        self,
        *,
        checkpoint_interval: int | None = 5,
        **storage: Unpack[ManagerStorage],
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
        super().__init__(**storage)

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
            return await write_workflow(inside, begun)

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

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            return now.with_state(context={**now.state.context, **patch})

        return await self._change(workflow_id, change, "update the context")

    async def delete(self, workflow_id: str) -> bool:
        """Remove a workflow with its history, and return whether it existed."""
        namespace = self._namespace(workflow_id)
        found = await find_workflow(namespace)
        if found is not None and found.waiting and not namespace.has_own_space:

            async def stop(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
                return await _stop_waiting(inside, now, now.waiting, "the workflow was deleted")

            await self._change(workflow_id, stop, "stop waiting")
        return await self._forget(namespace, branches=(CHECKPOINT,), last=STATE)

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

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            status = now.state.status
            if status is WorkflowStatus.RUNNING:
                return now
            if status is not WorkflowStatus.PAUSED:
                raise WORKFLOW.make_error(workflow_id, status, "RUNNING by resuming")
            is_done = is_complete(now.state)
            return now.with_state(status=WorkflowStatus.COMPLETED if is_done else WorkflowStatus.RUNNING)

        return await self._change(workflow_id, change, "resume")

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
        message = f"step {step.step_number} {step.status}"
        return await self._change(workflow_id, partial(self._apply_step, step=step), message)

    async def _apply_step(
        self, inside: Namespace, now: WorkflowRecord, step: StepState, *, approval: str | None = None
    ) -> WorkflowRecord:
        """Write a step, and close the approval that it waited for, unless it waits for this one."""
        state, what = now.state, f"{step.step_number} of {now.state.workflow_id}"
        check_within(state, step.step_number)
        known = await _find_step(inside, now, step.step_number)
        if known is not None and known.status in DONE and is_repeated(known, step):
            return now
        check_allowed(state, step)
        if known is not None and known.status != step.status:
            STEP.check(what, known.status, step.status)
        elif known is not None and known.status in DONE:
            raise STEP.make_error(what, known.status, f"{step.status} with another result")
        now = await self._wait_for(inside, now, known, step, approval)
        step = replace(step, updated_at=await inside.space.now(), approval=approval)
        await _steps(inside).put(_step_id(step.step_number), StepRecord(step, len(now.resumed)))
        if state.status is WorkflowStatus.PENDING:
            state = replace(state, status=WorkflowStatus.RUNNING)
        if step.status in DONE and step.step_number > now.done_before:
            state = await self._count_step(inside, state, step)
        return replace(now, state=state)

    async def _wait_for(
        self,
        inside: Namespace,
        now: WorkflowRecord,
        known: StepState | None,
        step: StepState,
        approval: str | None,
    ) -> WorkflowRecord:
        if known is not None and known.approval != approval:
            now = await approvals.withdraw_all(
                inside, now, [known], f"step {step.step_number} is {step.status}"
            )
        others = tuple(number for number in now.waiting if number != step.step_number)
        is_waiting = approval is not None and step.status == "running"
        return replace(now, waiting=(*others, step.step_number) if is_waiting else others)

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
            await self._add_checkpoint(inside, checkpoint)
        return state

    # ---- steps that wait for people

    async def ask_step(
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
        check_step(step)
        step = replace(step, status="running")
        asked: list[Approval] = []

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            known = await _find_step(inside, now, step.step_number)
            is_waiting = known is not None and known.status == "running"
            id = known.approval if known is not None and is_waiting else None
            if id is None:
                id = await approvals.new_approval_id(inside, step.step_number)
            asked[:] = [
                await inside.space.approvals.ask(
                    question, id=id, subject=subject, schema=schema, to=to, need=need, expires_s=expires_s,
                    then=then,
                )
            ]  # fmt: skip
            return await self._apply_step(inside, now, step, approval=id)

        await self._change(workflow_id, change, f"ask step {step.step_number}")
        return asked[0]

    async def answer_step(
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
        limits.admit_count("step_number", step_number)

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            step = await _find_step(inside, now, step_number)
            if step is None or step.approval is None:
                approvals.require_waiting(workflow_id, step_number, step)
                return now
            approval = await inside.space.approvals.answer(
                step.approval, value, by=by, group=group, note=note, saw=saw
            )
            return await self._end_step(inside, now, step, approval)

        return await self._change(workflow_id, change, f"answer step {step_number}")

    async def settle_step(self, workflow_id: str, step_number: int) -> WorkflowState:
        """End a step as its approval was settled elsewhere, and return the workflow.

        A step whose approval is pending goes on waiting, and one that has ended stays as it is; so a task may
        call it any number of times. An approval that has expired or was withdrawn makes the step failed.

        Raises:
            NotFoundError: The workflow does not exist.
            TransitionError: The step waits for no approval, or the workflow has ended.
        """
        limits.admit_count("step_number", step_number)

        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            step = await _find_step(inside, now, step_number)
            if step is not None and step.approval is not None and step.status != "running":
                return now
            id = approvals.require_waiting(workflow_id, step_number, step)
            assert step is not None
            return await self._end_step(inside, now, step, await inside.space.approvals.expire(id))

        return await self._change(workflow_id, change, f"settle step {step_number}")

    async def _end_step(
        self, inside: Namespace, now: WorkflowRecord, step: StepState, approval: Approval
    ) -> WorkflowRecord:
        if approval.state == "pending" or step.status != "running":
            return now
        return await self._apply_step(inside, now, approvals.end_of(step, approval), approval=approval.id)

    async def get_step(self, workflow_id: str, step_number: int) -> StepState | None:
        """Return a step, or None if it was not reported, or the workflow was resumed from before it."""
        limits.admit_count("step_number", step_number)
        namespace = self._namespace(workflow_id)
        now = await find_workflow(namespace)
        return None if now is None else await _find_step(namespace, now, step_number)

    async def list_steps(self, workflow_id: str) -> list[StepState]:
        """Return the reported steps, ordered by number."""
        namespace = self._namespace(workflow_id)
        now = await find_workflow(namespace)
        if now is None:
            return []
        return [stored.step async for stored in _steps(namespace).values() if stored.counts_in(now)]

    # ---- checkpoints

    async def checkpoint(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint, and return the id of its commit. A replaced checkpoint stays in the history.

        Raises:
            NotFoundError: The workflow does not exist.
        """
        check_record("checkpoint", checkpoint, WorkflowCheckpoint)
        check_record_id("checkpoint_id", checkpoint.checkpoint_id)
        limits.admit_count("step", checkpoint.step, 0)
        namespace = self._namespace(checkpoint.workflow_id)

        async def work(inside: Namespace) -> str:
            now = require_workflow(await find_workflow(inside), checkpoint.workflow_id)
            check_within(now.state, checkpoint.step)
            context = now.state.context if checkpoint.context is None else checkpoint.context
            return await self._add_checkpoint(inside, replace(checkpoint, context=context))

        return await self._run_together(namespace, work, message=f"checkpoint {checkpoint.checkpoint_id}")

    async def _add_checkpoint(self, inside: Namespace, checkpoint: WorkflowCheckpoint) -> str:
        id = checkpoint.checkpoint_id
        return await self._checkpoints(inside).add(checkpoint, id=id, message=f"checkpoint {id}")

    def _checkpoints(self, namespace: Namespace) -> RecordHistory[WorkflowCheckpoint]:
        return RecordHistory(namespace, CHECKPOINT, self._run_together)

    async def get_checkpoint(self, workflow_id: str, checkpoint_id: str) -> WorkflowCheckpoint | None:
        """Return a checkpoint, or None if there is none with this id."""
        return await self._checkpoints(self._namespace(workflow_id)).get(checkpoint_id)

    async def list_checkpoints(
        self, workflow_id: str, *, limit: int | None = None
    ) -> list[WorkflowCheckpoint]:
        """Return a workflow's checkpoints, oldest first.

        Args:
            workflow_id: The workflow.
            limit: Return only the last `limit` checkpoints.
        """
        return await self._checkpoints(self._namespace(workflow_id)).list(limit)

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
            found[:] = [await self._checkpoints(inside).require(checkpoint_id)]
            return await self._go_back(inside, now, found[0])

        await self._change(workflow_id, change, f"resume from {checkpoint_id}")
        return found[0]

    async def _go_back(
        self, inside: Namespace, now: WorkflowRecord, checkpoint: WorkflowCheckpoint
    ) -> WorkflowRecord:
        status = now.state.status
        if status not in (WorkflowStatus.PAUSED, WorkflowStatus.RUNNING):
            WORKFLOW.check(now.state.workflow_id, status, WorkflowStatus.RUNNING)
            status = WorkflowStatus.RUNNING
        dropped = [number for number in now.waiting if number > checkpoint.step]
        now = await _stop_waiting(inside, now, dropped, f"resumed from step {checkpoint.step}")
        done_before = min(now.done_before, checkpoint.step)
        now = replace(now, resumed=(*now.resumed, checkpoint.step), done_before=done_before)
        done = [
            stored
            async for _, stored in _steps(inside).items(_step_id(done_before))
            if stored.counts_in(now) and stored.step.status in DONE
        ]
        return now.with_state(
            status=status,
            current_step=checkpoint.step,
            context=now.state.context if checkpoint.context is None else checkpoint.context,
            error=None,
            steps_completed=done_before + len(done),
        )

    # ---- changes

    async def _change(self, workflow_id: str, change: Change, message: str) -> WorkflowState:
        async def work(inside: Namespace) -> WorkflowState:
            now = require_workflow(await find_workflow(inside), workflow_id)
            new = await change(inside, now)
            is_same = new.state is now.state and new.waiting == now.waiting
            return now.state if is_same else await write_workflow(inside, new)

        return await self._run_together(self._namespace(workflow_id), work, message=message)

    async def _move_to(self, workflow_id: str, wanted: WorkflowStatus, **facts: Any) -> WorkflowState:
        async def change(inside: Namespace, now: WorkflowRecord) -> WorkflowRecord:
            if now.state.status is wanted:
                return now
            WORKFLOW.check(workflow_id, now.state.status, wanted)
            if wanted is not WorkflowStatus.PAUSED:
                now = await _stop_waiting(inside, now, now.waiting, f"the workflow is {wanted.value}")
            return now.with_state(status=wanted, **facts)

        return await self._change(workflow_id, change, wanted.value)

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
        removed, since = await self._checkpoints(namespace).clean(before)
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
        await inside.put(found.with_state(status=WorkflowStatus.CANCELLED), STATE)
    return True


def _steps(namespace: Namespace) -> Collection[StepRecord]:
    return namespace.collection("step")


def _step_id(number: int) -> str:
    return f"{number:09d}"


async def _find_step(namespace: Namespace, now: WorkflowRecord, number: int) -> StepState | None:
    """Return a step, unless a later resumption of the workflow went back to before it."""
    stored = await _steps(namespace).get(_step_id(number))
    return stored.step if stored is not None and stored.counts_in(now) else None


async def _stop_waiting(
    inside: Namespace, now: WorkflowRecord, numbers: Sequence[int], reason: str
) -> WorkflowRecord:
    """Withdraw the approvals that steps wait for, and return the workflow."""
    steps = [await _find_step(inside, now, number) for number in numbers]
    return await approvals.withdraw_all(inside, now, steps, reason)


async def find_workflow(namespace: Namespace) -> WorkflowRecord | None:
    """Return the stored workflow, or None if there is none."""
    found: WorkflowRecord | None = await namespace.get(STATE)
    return found


async def write_workflow(inside: Namespace, record: WorkflowRecord) -> WorkflowState:
    """Write a workflow with the store's time, and return its state."""
    record = record.with_state(updated_at=await inside.space.now())
    await inside.put(record, STATE)
    return record.state


def require_workflow(found: WorkflowRecord | None, workflow_id: str) -> WorkflowRecord:
    """Return a workflow that was read, or raise.

    Raises:
        NotFoundError: The workflow does not exist.
    """
    if found is None:
        raise NotFoundError(f"workflow {workflow_id!r} does not exist. Call create() first.")
    return found
