"""What can be said of a workflow and its steps, before anything is written."""

from __future__ import annotations

from math import inf

from keepstate.errors import InvalidError
from keepstate.managers.parameters import sameness
from keepstate.managers.records import admit_record
from keepstate.managers.workflows.records import STEP, WORKFLOW, StepState, WorkflowState, WorkflowStatus
from keepstate.values import limits


def is_complete(state: WorkflowState) -> bool:
    """Return whether all steps are done, where it is known how many there are."""
    return 0 < state.total_steps <= state.steps_completed


def is_repeated(known: StepState, step: StepState) -> bool:
    """Return whether a step is reported again as it is known."""
    return known.status == step.status and sameness(known.result) == sameness(step.result)


def admit_in(state: WorkflowState, step: StepState) -> None:
    """Raise `TransitionError` where the workflow's state lets no step become so."""
    is_beginning = step.status in ("pending", "running")
    is_held = state.status in (WorkflowStatus.PAUSED, WorkflowStatus.FAILED)
    if WORKFLOW.is_final(state.status) or (is_held and is_beginning):
        raise WORKFLOW.refused(
            state.workflow_id, state.status, f"one whose step {step.step_number} is {step.status}"
        )


def admit_state(state: WorkflowState) -> None:
    """Raise `InvalidError` for what no workflow can begin as."""
    admit_record("state", state, WorkflowState)
    for name in ("total_steps", "current_step", "steps_completed"):
        check_number(name, getattr(state, name), 0)
    admit_within(state, state.current_step)
    if state.steps_completed not in (0, state.current_step):
        raise InvalidError(
            f"`steps_completed` is {state.steps_completed}, and which steps those are is not said: give as "
            "many as `current_step` if they are the first ones, or report each to a workflow that begins at 0"
        )
    is_done = 0 < state.total_steps == state.current_step
    if is_done and state.status in (WorkflowStatus.PENDING, WorkflowStatus.RUNNING):
        raise InvalidError(
            f"`status` is {state.status.name}, and all {state.total_steps} steps are done; give COMPLETED"
        )


def admit_within(state: WorkflowState, step: int) -> None:
    """Raise `InvalidError` for a number that no step of a workflow has."""
    if 0 < state.total_steps < step:
        raise InvalidError(f"workflow {state.workflow_id!r} has {state.total_steps} steps, none is {step}")


def admit_step(step: StepState) -> None:
    """Raise `InvalidError` for what no step can be."""
    admit_record("step", step, StepState)
    check_number("step_number", step.step_number, 1)
    if step.status not in STEP.table:
        raise InvalidError(f"`status` is {step.status!r}; a step is {', '.join(STEP.table)}")
    if step.duration_ms is not None and not 0 <= step.duration_ms < inf:
        raise InvalidError(
            f"`duration_ms` is {step.duration_ms!r}; it is a number of milliseconds, 0 or more"
        )


def check_number(name: str, number: object, least: int) -> None:
    """Raise `InvalidError` for what is no number of steps, of so many at the least."""
    if type(number) is not int or not least <= number <= limits.COUNT:
        raise InvalidError(f"`{name}` is {number!r}; it is an int of {least} or more")
