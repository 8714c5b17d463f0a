"""Steps of a workflow that wait for people: an approval of the workflow's space, and what its end means.

A step moves in the batch that settles its approval, or that records how it was settled elsewhere. A step that
ends in another way, or that a resumption or the end of the workflow drops, withdraws its approval in the same
batch. So no approval is pending of a step that does not wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from keepstate.engine.approvals.records import Approval
from keepstate.errors import TransitionError
from keepstate.managers.binding import Namespace
from keepstate.managers.workflows.records import StepState, WorkflowRecord

WITHDRAWER: Final = "workflow"


async def new_approval_id(inside: Namespace, number: int) -> str:
    """Return an id that no approval has, for a question of a step."""
    times = 1
    while await inside.space.approvals.get(id := inside.label(f"step/{number}/{times}")) is not None:
        times += 1
    return id


def require_waiting(workflow_id: str, number: int, step: StepState | None) -> str:
    """Return the id of the approval that a step waits for.

    Raises:
        TransitionError: It waits for none.
    """
    if step is None or step.approval is None or step.status != "running":
        raise TransitionError(
            f"Step {number} of workflow {workflow_id!r} waits for no approval. Call ask_step() first.",
            current=None if step is None else step.status,
            wanted="running",
        )
    return step.approval


async def withdraw(inside: Namespace, id: str, reason: str) -> None:
    """Close the approval of a step that does not wait any more, if nothing has closed it."""
    found = await inside.space.approvals.get(id)
    if found is not None and found.state == "expired":
        await inside.space.approvals.expire(id)
    elif found is not None and found.state == "pending":
        await inside.space.approvals.withdraw(id, by=inside.space.author or WITHDRAWER, reason=reason)


async def withdraw_all(
    inside: Namespace, now: WorkflowRecord, steps: Iterable[StepState | None], reason: str
) -> WorkflowRecord:
    """Close the approvals of steps, and return the workflow without them."""
    dropped: set[int] = set()
    for step in steps:
        if step is not None and step.approval is not None:
            await withdraw(inside, step.approval, reason)
            dropped.add(step.step_number)
    return replace(now, waiting=tuple(each for each in now.waiting if each not in dropped))


def end_of(step: StepState, approval: Approval) -> StepState:
    """Return a step as its settled approval ends it: completed by a yes or a value, failed otherwise."""
    answer = approval.answer
    if answer is not None and (answer.approved or approval.schema is not None):
        return replace(step, status="completed", result=answer.value, error=None)
    if answer is not None:
        told = f"refused by {answer.by}" + (f": {answer.note}" if answer.note else "")
    elif approval.state == "withdrawn":
        told = f"withdrawn by {approval.closed_by}" + (f": {approval.reason}" if approval.reason else "")
    else:
        told = "expired"
    return replace(step, status="failed", error=told)
