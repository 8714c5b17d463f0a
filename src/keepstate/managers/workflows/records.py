"""What is kept of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.managers.records import member, record
from keepstate.managers.transitions import Transitions


@member("WorkflowStatus")
class WorkflowStatus(Enum):
    """How a workflow stands."""

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
"""A step that is done is done, unless the workflow resumes from before it."""

DONE: Final = frozenset({"completed", "skipped"})


@record("WorkflowState")
class WorkflowState:
    """Where a workflow stands.

    Attributes:
        workflow_id: The workflow.
        status: How it stands.
        total_steps: How many steps it has; 0 if that is not known.
        current_step: The highest step that was completed, or what it was resumed from. Of one that is
            created: the steps up to it were done elsewhere, and count as completed.
        context: What its steps share.
        reason: Why it was cancelled.
        error: What it failed of.
        steps_completed: How many steps are done.
        updated_at: When it was last written, by the store's clock; None before.
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
        step_number: Its number, from 1.
        name: What it is called.
        status: `pending`, `running`, `completed`, `failed` or `skipped`.
        result: What it came to.
        duration_ms: How long it took.
        error: What went wrong.
        updated_at: When it was last written, by the store's clock; None before.
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
    """A point from which a workflow can go on.

    Attributes:
        workflow_id: The workflow.
        checkpoint_id: Names it; the same name again replaces it.
        step: The step that it stands behind.
        state: What the application needs to go on.
        context: What the workflow's context is set to when it resumes; None is what it is when saved.
        timestamp: When, as the application says; no order follows from it.
        saved_at: When it was saved, by the store's clock; None before.
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
    """A workflow as it is stored.

    Attributes:
        state: Where it stands.
        resumed: The steps that it was resumed from, one after the other: what was done before of steps
            behind such a one does not count.
        done_before: The steps up to this one were done before the workflow was created here.
    """

    state: WorkflowState
    resumed: tuple[int, ...] = ()
    done_before: int = 0


@record("StepRecord")
class StepRecord:
    """A step as it is stored.

    Attributes:
        step: The step.
        round: How often the workflow had been resumed from a checkpoint by then.
    """

    step: StepState
    round: int = 0

    def counts_in(self, workflow: WorkflowRecord) -> bool:
        """Return whether no resumption has gone back behind it."""
        return all(self.step.step_number <= step for step in workflow.resumed[self.round :])
