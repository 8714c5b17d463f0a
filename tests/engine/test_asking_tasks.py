"""`task.ask`: a handler that waits for people holds no worker, and goes on once, with what they saw."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepstate import Answer, Suspended, TaskSpec
from keepstate.engine.queue.queue import Task
from keepstate.engine.space.space import Space
from keepstate.errors import (
    ApprovalClosedError,
    InvalidError,
    LeaseLostError,
    NotAllowedError,
    TaskFailedError,
)
from tests.engine.conftest import Turned
from tests.engine.step_work import result, work

ORDER = {"pay": 100}


async def pay(task: Task) -> Any:
    """Ask two people, and return what the answer says."""
    answer = await task.ask("go", "Pay 100?", subject=task.payload, to=["ann", "bob"], need=2)
    return [answer.approved, answer.subject, answer.by]


async def ask_shortly(task: Task) -> Any:
    return (await task.ask("go", "Pay?", expires_s=60)).approved


# ---- on every backend


async def test_a_handler_waits_for_two_people_and_holds_no_worker(space: Space) -> None:
    await space.queue.put(ORDER, id="t")
    (suspended,) = await work(space.by("agent"), pay)
    assert isinstance(suspended, Suspended)
    (asked,) = await space.approvals.pending()
    assert (asked.id, asked.subject, asked.task, asked.asked_by) == ("t/go", ORDER, "t", "agent")

    await space.approvals.answer("t/go", True, by="ann", saw=asked.digest)
    assert await work(space, pay) == []
    await space.approvals.answer("t/go", True, by="bob", saw=asked.digest)
    assert await work(space, pay) == []
    assert await result(space) == [True, ORDER, "bob"]
    assert [step.kind for step in await space.queue.steps("t")] == ["ask"]


async def test_an_answer_between_asking_and_waiting_wakes_the_task(space: Space) -> None:
    await space.queue.put(ORDER, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    with pytest.raises(Suspended) as waits:
        await pay(task)
    await space.approvals.answer("t/go", False, by="ann")
    await task.suspend(waits.value)

    assert await work(space, pay) == []
    assert await result(space) == [False, ORDER, "ann"]


async def test_a_worker_runs_a_handler_that_asks(space: Space) -> None:
    stop = asyncio.Event()
    await space.queue.put(ORDER, id="t")
    running = asyncio.create_task(space.queue.run(pay, worker="agent", stop=stop))
    while not await space.approvals.pending():
        await asyncio.sleep(0.02)
    for by in ("ann", "bob"):
        await space.approvals.answer("t/go", True, by=by)
    assert await space.queue.result("t", wait_s=60) == [True, ORDER, "bob"]
    stop.set()
    report = await running

    assert (report.completed, report.failed) == (1, 0)


# ---- time


async def test_the_default_answers_when_no_person_does(turned: Turned) -> None:
    async def handler(task: Task) -> Any:
        answer = await task.ask("go", "Pay?", default=False, subject=ORDER, expires_s=60)
        return [answer.value, answer.approved, answer.by, answer.subject]

    await turned.space.queue.put(ORDER, id="t")
    await work(turned.space, handler)
    turned.clock.advance(59_999)
    assert await work(turned.space, handler) == []
    turned.clock.advance(1)
    assert await work(turned.space, handler) == []

    assert await result(turned.space) == [False, False, None, ORDER]
    log = await turned.space.approvals.log("t/go")
    assert [event.kind for event in log] == ["asked", "expired"]


async def test_without_a_default_each_attempt_fails(turned: Turned) -> None:
    await turned.space.queue.put(ORDER, id="t", max_attempts=2)
    await work(turned.space, ask_shortly)
    turned.clock.advance(60_000)
    raised = await work(turned.space, ask_shortly)

    assert [type(each) for each in raised] == [ApprovalClosedError] * 2
    assert all(isinstance(each, ApprovalClosedError) and each.state == "expired" for each in raised)
    with pytest.raises(TaskFailedError, match="expired"):
        await result(turned.space)


async def test_a_withdrawn_question_is_an_error_also_with_a_default(turned: Turned) -> None:
    async def handler(task: Task) -> Any:
        return (await task.ask("go", "Pay?", default=True)).approved

    await turned.space.queue.put(ORDER, id="t", max_attempts=1)
    await work(turned.space, handler)
    await turned.space.approvals.withdraw("t/go", by="boss", reason="moot")
    (error,) = await work(turned.space, handler)

    assert isinstance(error, ApprovalClosedError)
    assert error.state == "withdrawn"


async def test_an_expired_approval_is_settled_before_the_handler_goes_on(turned: Turned) -> None:
    """A clock that falls behind again lets no person answer what a handler took for expired."""
    await turned.space.queue.put(ORDER, id="t")

    async def handler(task: Task) -> Any:
        return (await task.ask("go", "Pay?", default=False, expires_s=60)).approved

    await work(turned.space, handler)
    turned.clock.advance(60_000)
    await work(turned.space, handler)
    stored = await turned.space.approvals.get("t/go")
    assert stored is not None
    assert stored.state == "expired"
    with pytest.raises(ApprovalClosedError):
        await turned.space.approvals.answer("t/go", True, by="ann")


# ---- several questions


async def test_questions_side_by_side_are_asked_together(turned: Turned) -> None:
    async def handler(task: Task) -> Any:
        await task.steps()  # reads what is recorded, so that the first question need not wait for a store
        found: list[Answer] = await asyncio.gather(*(task.ask(name, f"{name}?") for name in ("a", "b")))
        return [answer.approved for answer in found]

    await turned.space.queue.put(1, id="t")
    await work(turned.space, handler)
    assert [each.id for each in await turned.space.approvals.pending()] == ["t/a", "t/b"]
    for name in ("a", "b"):
        await turned.space.approvals.answer(f"t/{name}", name == "a", by="ann")
    await work(turned.space, handler)

    assert await result(turned.space) == [True, False]


async def test_a_later_run_of_a_task_asks_again(turned: Turned) -> None:
    async def handler(task: Task) -> Any:
        return (await task.ask("go", "Pay?")).approved

    for number, said in enumerate((True, False)):
        await turned.space.queue.put(number, id="t", if_present="replace")
        await work(turned.space, handler)
        (asked,) = await turned.space.approvals.pending()
        await turned.space.approvals.answer(asked.id, said, by="ann")
        await work(turned.space, handler)
        assert await result(turned.space) is said


async def test_a_run_from_a_later_step_keeps_the_answer_and_asks_nobody(turned: Turned) -> None:
    async def handler(task: Task) -> Any:
        answer = await task.ask("go", "Pay?")
        return await task.step("pay", lambda: answer.approved)

    await turned.space.queue.put(1, id="t")
    await work(turned.space, handler)
    await turned.space.approvals.answer("t/go", True, by="ann")
    await work(turned.space, handler)
    await turned.space.queue.rerun("t", from_step="pay", as_id="u")

    assert await work(turned.space, handler) == []
    assert await result(turned.space, "u") is True


# ---- what is refused


async def test_a_worker_that_lost_its_claim_asks_nobody(turned: Turned) -> None:
    await turned.space.queue.put(ORDER, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=1)
    turned.clock.advance(2_000)
    (again,) = await turned.space.queue.claim("w2", lease_s=60)
    with pytest.raises(LeaseLostError):
        await pay(task)

    assert await turned.space.approvals.pending() == []
    await again.complete()


async def test_the_asking_worker_may_not_answer(turned: Turned) -> None:
    agent = turned.space.by("agent")
    await agent.queue.put(ORDER, id="t")

    async def handler(task: Task) -> Any:
        return (await task.ask("go", "Pay?")).approved

    await work(agent, handler)
    with pytest.raises(NotAllowedError):
        await turned.space.approvals.answer("t/go", True, by="agent")


@pytest.mark.parametrize("given", [{"default": "yes"}, {"question": ""}, {"to": "ann"}, {"need": 0}])
async def test_a_wrong_question_asks_nobody(turned: Turned, given: dict[str, Any]) -> None:
    await turned.space.queue.put(ORDER, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    with pytest.raises(InvalidError):
        await task.ask("go", **({"question": "Pay?"} | given))

    assert await turned.space.approvals.pending() == []


async def test_an_answer_to_an_ended_task_wakes_nothing(turned: Turned) -> None:
    await turned.space.queue.put(ORDER, id="t")
    await work(turned.space, pay)
    await turned.space.queue.cancel("t", by="boss")
    await turned.space.approvals.ask("More?", id="more", then=TaskSpec())
    await turned.space.queue.discard("approval/more")
    await turned.space.approvals.answer("t/go", False, by="ann")
    await turned.space.approvals.answer("more", True, by="ann")

    assert await turned.space.queue.claim("w", lease_s=60) == []
