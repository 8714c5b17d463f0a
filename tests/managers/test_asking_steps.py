"""Steps of workflows that wait for people: approvals that end a step in the batch that settles them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import keepstate.sync
from keepstate import StepState, TaskSpec, WorkflowState, WorkflowStateManager, WorkflowStatus, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import (
    AlreadyExistsError,
    ApprovalClosedError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    TransitionError,
)
from tests.engine.conftest import Turned

STEP = StepState(1, "pay")


async def workflows(ks: Keepstate, total_steps: int = 2) -> WorkflowStateManager:
    manager = WorkflowStateManager(persistence=ks)
    await manager.create(WorkflowState("w", total_steps=total_steps))
    return manager


async def step(manager: WorkflowStateManager) -> StepState:
    found = await manager.get_step("w", 1)
    assert found is not None
    return found


async def state(ks: Keepstate, id: str = "step/1/1") -> str:
    found = await ks.space("workflow/w").approvals.get(id)
    assert found is not None
    return found.state


# ---- on every backend


async def test_a_step_waits_for_people_and_ends_with_their_answer(ks: Keepstate) -> None:
    manager = await workflows(ks)
    asked = await manager.ask_step("w", STEP, "Pay?", subject={"amount": 12}, to=["ann", "bob"], need=2)
    again = await manager.ask_step("w", STEP, "Pay?", subject={"amount": 12}, to=["ann", "bob"], need=2)
    assert (asked.id, again.id) == ("step/1/1", "step/1/1")
    waiting = await step(manager)
    assert (waiting.status, waiting.name, waiting.approval) == ("running", "pay", asked.id)
    await ks.deliver()
    assert [found.title for found in await ks.find(kind="approval", state="pending")] == ["Pay?"]

    first = await manager.answer_step("w", 1, True, by="ann", saw=asked.digest)
    assert (first.steps_completed, (await step(manager)).status) == (0, "running")
    second = await manager.answer_step("w", 1, True, by="bob")
    done = await step(manager)
    assert (second.steps_completed, done.status, done.result) == (1, "completed", True)
    assert await manager.answer_step("w", 1, True, by="bob") == second
    with pytest.raises(ApprovalClosedError):
        await manager.answer_step("w", 1, False, by="ann")


# ---- answers


async def test_a_no_fails_the_step_which_may_ask_again(turned: Turned) -> None:
    manager = await workflows(turned.ks)
    await manager.ask_step("w", STEP, "Pay?", to=["ann"])
    with pytest.raises(NotAllowedError):
        await manager.answer_step("w", 1, True, by="bob")
    await manager.answer_step("w", 1, False, by="ann", note="too dear")
    failed = await step(manager)
    assert (failed.status, failed.error) == ("failed", "refused by ann: too dear")

    await manager.ask_step("w", STEP, "Pay less?")
    await manager.answer_step("w", 1, True, by="ann")
    assert (await step(manager)).status == "completed"
    assert await state(turned.ks, "step/1/2") == "answered"


async def test_the_value_of_a_schema_is_the_result(turned: Turned) -> None:
    manager = await workflows(turned.ks)
    await manager.ask_step("w", STEP, "How much?", schema={"type": "integer", "maximum": 5})
    with pytest.raises(InvalidError):
        await manager.answer_step("w", 1, 9, by="ann")
    await manager.answer_step("w", 1, 3, by="ann")

    assert (await step(manager)).result == 3


async def test_a_no_is_a_value_of_a_schema(turned: Turned) -> None:
    manager = await workflows(turned.ks)
    await manager.ask_step("w", STEP, "With the index?", schema={"type": "boolean"})
    await manager.answer_step("w", 1, False, by="ann")

    found = await step(manager)
    assert (found.status, found.result) == ("completed", False)


async def test_an_answer_by_another_door_wakes_a_task_that_settles_the_step(turned: Turned) -> None:
    manager, space = await workflows(turned.ks), turned.ks.space("workflow/w")
    asked = await manager.ask_step("w", STEP, "Pay?", then=TaskSpec("w", kind="settle"))
    await manager.settle_step("w", 1)
    assert (await step(manager)).status == "running"

    await space.approvals.answer(asked.id, True, by="ann")
    (task,) = await space.queue.claim("w", lease_s=60, kinds=["settle"])
    after = await manager.settle_step(task.payload, 1)
    assert ((await step(manager)).status, after.steps_completed) == ("completed", 1)
    assert await manager.settle_step("w", 1) == after


@pytest.mark.parametrize("end", ["expired", "withdrawn"])
async def test_a_closed_approval_fails_the_step(turned: Turned, end: str) -> None:
    manager, approvals = await workflows(turned.ks), turned.ks.space("workflow/w").approvals
    asked = await manager.ask_step("w", STEP, "Pay?", expires_s=60)
    if end == "expired":
        turned.clock.advance(60_000)
    else:
        await approvals.withdraw(asked.id, by="boss", reason="not now")
    with pytest.raises(ApprovalClosedError):
        await manager.answer_step("w", 1, True, by="ann")
    await manager.settle_step("w", 1)

    failed = await step(manager)
    assert (failed.status, failed.error) == (
        "failed",
        "expired" if end == "expired" else "withdrawn by boss: not now",
    )
    assert [event.kind for event in await approvals.log(asked.id)] == ["asked", end]


# ---- ends of another kind


async def end_step(manager: WorkflowStateManager) -> object:
    return await manager.update_step("w", StepState(1, "pay", "skipped"))


async def cancel(manager: WorkflowStateManager) -> object:
    return await manager.cancel("w")


async def fail(manager: WorkflowStateManager) -> object:
    return await manager.fail("w", "broken")


async def go_back(manager: WorkflowStateManager) -> object:
    return await manager.resume_from("w", "start")


@pytest.mark.parametrize("end", [end_step, cancel, fail, go_back])
async def test_a_step_that_does_not_wait_any_more_withdraws_its_approval(
    turned: Turned, end: Callable[[WorkflowStateManager], Awaitable[object]]
) -> None:
    manager = await workflows(turned.ks)
    await manager.checkpoint(keepstate.WorkflowCheckpoint("w", "start", 0))
    await manager.ask_step("w", STEP, "Pay?", then=TaskSpec())
    await end(manager)

    assert await state(turned.ks) == "withdrawn"
    assert [task.id for task in await turned.ks.space("workflow/w").queue.claim("w", lease_s=60)] == [
        "approval/step/1/1"
    ]


async def test_a_paused_workflow_takes_the_answer(turned: Turned) -> None:
    manager = await workflows(turned.ks)
    await manager.ask_step("w", STEP, "Pay?")
    await manager.pause("w")
    with pytest.raises(TransitionError):
        await manager.ask_step("w", StepState(2), "Publish?")

    after = await manager.answer_step("w", 1, True, by="ann")
    assert (after.status, after.steps_completed) == (WorkflowStatus.PAUSED, 1)


async def test_a_deleted_workflow_of_a_shared_space_asks_nothing_any_more(turned: Turned) -> None:
    manager = WorkflowStateManager(space=turned.space)
    await manager.create(WorkflowState("w"))
    asked = await manager.ask_step("w", STEP, "Pay?")
    await manager.delete("w")

    found = await turned.space.approvals.get(asked.id)
    assert found is not None and found.state == "withdrawn"
    await manager.create(WorkflowState("w"))
    assert (await manager.ask_step("w", STEP, "Pay?")).id != asked.id


async def test_what_is_not_asked_is_not_answered(turned: Turned) -> None:
    manager = await workflows(turned.ks)
    calls: list[Any] = [
        lambda: manager.answer_step("w", 1, True, by="ann"),
        lambda: manager.settle_step("w", 1),
    ]
    for call in calls:
        with pytest.raises(TransitionError, match="waits for no approval"):
            await call()
    await manager.update_step("w", StepState(1, "pay", "running"))
    for call in calls:
        with pytest.raises(TransitionError, match="waits for no approval"):
            await call()
    with pytest.raises(NotFoundError):
        await manager.ask_step("absent", STEP, "Pay?")
    await manager.ask_step("w", STEP, "Pay?")
    with pytest.raises(AlreadyExistsError):
        await manager.ask_step("w", STEP, "Pay more?")


async def test_a_step_and_its_approval_are_in_one_transaction(turned: Turned) -> None:
    async def work(tx: Any) -> None:
        manager = WorkflowStateManager(space=tx)
        await manager.create(WorkflowState("w", total_steps=1))
        await manager.ask_step("w", STEP, "Pay?")
        after = await manager.answer_step("w", 1, True, by="ann")
        assert after.status is WorkflowStatus.COMPLETED

    await turned.space.transact(work)
    assert await WorkflowStateManager(space=turned.space).get_status("w") is WorkflowStatus.COMPLETED


# ---- blocking


def test_a_blocking_workflow_asks(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/a.db") as ks:
        manager = sync.WorkflowStateManager(persistence=ks)
        manager.create(WorkflowState("w", total_steps=1))
        manager.ask_step("w", STEP, "Pay?")

        assert manager.answer_step("w", 1, True, by="ann").status is WorkflowStatus.COMPLETED
