"""Records of a workflow, and the rules that are checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from enum import Enum
from math import inf
from typing import Any, Final

from keepstate.engine.kernel.arguments import check_choice
from keepstate.engine.kernel.transitions import Transitions
from keepstate.errors import InvalidError
from keepstate.managers.records import check_record, encode_canonical, record, stored_enum
from keepstate.values import limits


@stored_enum("WorkflowStatus")
class WorkflowStatus(Enum):
    """The status of a workflow."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_W = WorkflowStatus
WORKFLOW: Final = Transitions(
    "workflow",
    {
        _W.PENDING: {_W.RUNNING, _W.PAUSED, _W.FAILED, _W.CANCELLED},
        _W.RUNNING: {_W.PAUSED, _W.COMPLETED, _W.FAILED, _W.CANCELLED},
        _W.PAUSED: {_W.RUNNING, _W.FAILED, _W.CANCELLED},
        _W.FAILED: {_W.RUNNING, _W.CANCELLED},
    },
)
"""COMPLETED and CANCELLED are final."""

STEP: Final = Transitions(
    "step",
    {
        "pending": ("running", "completed", "failed", "skipped"),
        "running": ("pending", "completed", "failed", "skipped"),
        "failed": ("pending", "running", "completed", "skipped"),
        "completed": (),
        "skipped": (),
    },
)
"""A completed or skipped step stays so, unless the workflow resumes from before it."""

DONE: Final = frozenset({"completed", "skipped"})


@record("WorkflowState")
class WorkflowState:
    """The state of a workflow.

    Attributes:
        workflow_id: The workflow.
        status: Its status.
        total_steps: Number of steps; 0 if it is not known.
        current_step: The highest completed step, or the step it was resumed from. On creation: the steps up
            to it were done elsewhere, and count as completed.
        context: Data that its steps share.
        reason: Reason of a cancellation.
        error: Error of a failure.
        steps_completed: Number of completed and skipped steps.
        updated_at: Time of the last write, by the store's clock; None before.
    """

    workflow_id: str
    status: WorkflowStatus = WorkflowStatus.PENDING
    total_steps: int = 0
    current_step: int = 0
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reason: str | None = None
    error: str | None = None
    steps_completed: int = field(default=0, compare=False)
    updated_at: datetime | None = field(default=None, compare=False)


@record("StepState")
class StepState:
    """One step of a workflow.

    Attributes:
        step_number: Number of the step, from 1.
        name: Name of the step.
        status: `pending`, `running`, `completed`, `failed` or `skipped`.
        result: Result of the step.
        duration_ms: Duration in milliseconds.
        error: The error of a failure.
        updated_at: Time of the last write, by the store's clock; None before.
        approval: Id of the approval that it waits for while it is running, or that has ended it. `ask_step`
            sets it.
    """

    step_number: int
    name: str = ""
    status: str = "pending"
    result: Any = None
    duration_ms: float | None = None
    error: str | None = None
    updated_at: datetime | None = field(default=None, compare=False)
    approval: str | None = field(default=None, compare=False)


@record("WorkflowCheckpoint")
class WorkflowCheckpoint:
    """A point from which a workflow can continue.

    Attributes:
        workflow_id: The workflow.
        checkpoint_id: Id of the checkpoint; saving the same id again replaces it.
        step: The last step before the checkpoint.
        state: The data that the application needs to continue.
        context: The workflow's context after resuming; None saves the current context.
        timestamp: Time of the checkpoint, as the application reports it. It does not define the order.
        saved_at: Time of saving, by the store's clock; None before.
    """

    workflow_id: str
    checkpoint_id: str
    step: int
    state: Any = None
    context: Mapping[str, Any] | None = None
    timestamp: datetime | None = None
    saved_at: datetime | None = field(default=None, compare=False)


@record("WorkflowRecord")
class WorkflowRecord:
    """A workflow as stored.

    Attributes:
        state: Its state.
        resumed: The steps that it was resumed from, in order. Steps after such a step that were done before
            the resumption do not count.
        done_before: The steps up to this one were done before the workflow was created here.
        waiting: The steps that wait for an approval.
    """

    state: WorkflowState
    resumed: tuple[int, ...] = ()
    done_before: int = 0
    waiting: tuple[int, ...] = ()

    def with_state(self, **changes: Any) -> WorkflowRecord:
        """Return the workflow with changes of its state."""
        return replace(self, state=replace(self.state, **changes))


@record("StepRecord")
class StepRecord:
    """A step as stored.

    Attributes:
        step: The step.
        round: Number of resumptions of the workflow before the step was written.
    """

    step: StepState
    round: int = 0

    def counts_in(self, workflow: WorkflowRecord) -> bool:
        """Return whether no later resumption went back to before this step."""
        return all(self.step.step_number <= step for step in workflow.resumed[self.round :])


def is_complete(state: WorkflowState) -> bool:
    """Return whether all steps are done, if their number is known."""
    return 0 < state.total_steps <= state.steps_completed


def is_repeated(known: StepState, step: StepState) -> bool:
    """Return whether a report repeats the known state of a step."""
    return known.status == step.status and encode_canonical(known.result) == encode_canonical(step.result)


def check_allowed(state: WorkflowState, step: StepState) -> None:
    """Raise `TransitionError` if the state of the workflow does not allow this state of a step."""
    is_beginning = step.status in ("pending", "running")
    is_held = state.status in (WorkflowStatus.PAUSED, WorkflowStatus.FAILED)
    if WORKFLOW.is_final(state.status) or (is_held and is_beginning):
        raise WORKFLOW.make_error(
            state.workflow_id, state.status, f"one whose step {step.step_number} is {step.status}"
        )


def check_initial_state(state: WorkflowState) -> None:
    """Raise `InvalidError` for a state that a workflow cannot start with."""
    check_record("state", state, WorkflowState)
    for name in ("total_steps", "current_step", "steps_completed"):
        limits.admit_count(name, getattr(state, name), 0)
    check_within(state, state.current_step)
    if state.steps_completed not in (0, state.current_step):
        raise InvalidError(
            f"`steps_completed` is {state.steps_completed}, which does not say which steps. Pass the value "
            "of `current_step` if they are the first steps, or start at 0 and report each step."
        )
    is_done = 0 < state.total_steps == state.current_step
    if is_done and state.status in (WorkflowStatus.PENDING, WorkflowStatus.RUNNING):
        raise InvalidError(
            f"`status` is {state.status.name}, but all {state.total_steps} steps are done. Pass COMPLETED."
        )


def check_within(state: WorkflowState, step: int) -> None:
    """Raise `InvalidError` for a number above the number of steps."""
    if 0 < state.total_steps < step:
        raise InvalidError(
            f"workflow {state.workflow_id!r} has {state.total_steps} steps, so {step} is not one"
        )


def check_step(step: StepState) -> None:
    """Raise `InvalidError` for an invalid step."""
    check_record("step", step, StepState)
    limits.admit_count("step_number", step.step_number)
    check_choice("status", step.status, *STEP.table)
    if step.duration_ms is not None and not 0 <= step.duration_ms < inf:
        raise InvalidError(
            f"`duration_ms` is {step.duration_ms!r}. Pass a number of milliseconds, 0 or more."
        )
