"""Records of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.managers.records import record, stored_enum
from keepstate.managers.transitions import Transitions


@stored_enum("WorkflowStatus")
class WorkflowStatus(Enum):
    """The status of a workflow."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


WORKFLOW: Final = Transitions(
    "workflow",
    {
        WorkflowStatus.PENDING: (
            WorkflowStatus.RUNNING,
            WorkflowStatus.PAUSED,
            WorkflowStatus.FAILED,
            WorkflowStatus.CANCELLED,
        ),
        WorkflowStatus.RUNNING: (
            WorkflowStatus.PAUSED,
            WorkflowStatus.COMPLETED,
            WorkflowStatus.FAILED,
            WorkflowStatus.CANCELLED,
        ),
        WorkflowStatus.PAUSED: (
            WorkflowStatus.RUNNING,
            WorkflowStatus.FAILED,
            WorkflowStatus.CANCELLED,
        ),
        WorkflowStatus.FAILED: (WorkflowStatus.RUNNING, WorkflowStatus.CANCELLED),
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
    """

    step_number: int
    name: str = ""
    status: str = "pending"
    result: Any = None
    duration_ms: float | None = None
    error: str | None = None
    updated_at: datetime | None = field(default=None, compare=False)


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
    """

    state: WorkflowState
    resumed: tuple[int, ...] = ()
    done_before: int = 0


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
