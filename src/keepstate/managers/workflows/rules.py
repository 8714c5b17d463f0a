"""Rules for workflows and their steps, checked before anything is written."""

from __future__ import annotations

from math import inf

from keepstate.errors import InvalidError
from keepstate.managers.parameters import encode_canonical
from keepstate.managers.records import check_record
from keepstate.managers.workflows.records import STEP, WORKFLOW, StepState, WorkflowState, WorkflowStatus
from keepstate.values import limits


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
        check_number(name, getattr(state, name), 0)
    check_within(state, state.current_step)
    if state.steps_completed not in (0, state.current_step):
        raise InvalidError(
            f"`steps_completed` is {state.steps_completed}, which does not say which steps. Pass the value "
            "of "
            "`current_step` if they are the first steps, or start at 0 and report each step."
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
    check_number("step_number", step.step_number, 1)
    if step.status not in STEP.table:
        raise InvalidError(f"`status` is {step.status!r}. Use one of {', '.join(STEP.table)}.")
    if step.duration_ms is not None and not 0 <= step.duration_ms < inf:
        raise InvalidError(
            f"`duration_ms` is {step.duration_ms!r}. Pass a number of milliseconds, 0 or more."
        )


def check_number(name: str, number: object, least: int) -> None:
    """Raise `InvalidError` for a value that is not an int of at least `least`."""
    if type(number) is not int or not least <= number <= limits.COUNT:
        raise InvalidError(f"`{name}` is {number!r}. Pass an int of {least} or more.")
