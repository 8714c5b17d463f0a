"""A machine asks people by approvals: each is asked with the transition, and moves the machine once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import keepstate.sync
from keepstate import AgentStateMachine, Question, TaskSpec, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import (
    ApprovalClosedError,
    InvalidError,
    NotAllowedError,
    NotLoadedError,
    TransitionError,
)
from tests.engine.conftest import Turned

STATES = ["open", "asking", "paid", "refused", "late"]
TRANSITIONS = {
    ("open", "price_known"): "asking",
    ("asking", "agree"): "paid",
    ("asking", "refuse"): "refused",
    ("asking", "give_up"): "late",
}
PAY = Question(
    "Pay 12 EUR?", subject={"amount": 12}, to=["ann"], yes="agree", no="refuse", closed="give_up",
    expires_s=60, then=TaskSpec(kind="machine"),
)  # fmt: skip


def order(ks: Keepstate, question: Any = PAY, **given: Any) -> AgentStateMachine:
    return AgentStateMachine(
        "order-7", persistence=ks, states=STATES, transitions=TRANSITIONS, waiting=["asking"],
        questions={"asking": question}, **given,
    )  # fmt: skip


async def asking(ks: Keepstate, question: Any = PAY, **given: Any) -> AgentStateMachine:
    machine = order(ks, question, **given)
    await machine.transition("price_known", price=12)
    return machine


# ---- on every backend


async def test_a_machine_asks_with_its_transition_and_a_task_runs_it_on(ks: Keepstate) -> None:
    machine = await asking(ks)
    assert await machine.run(wait_s=0) == "asking"
    space = ks.space("machine/order-7")
    (asked,) = await space.approvals.pending(to="ann")
    assert (asked.subject, await machine.approval()) == ({"amount": 12}, asked)
    await ks.deliver()
    assert [found.title for found in await ks.find(kind="approval", state="pending")] == ["Pay 12 EUR?"]
    assert await space.queue.claim("w", lease_s=60) == []

    await space.approvals.answer(asked.id, True, by="ann", saw=asked.digest)
    (task,) = await space.queue.claim("w", lease_s=60, kinds=["machine"])
    assert task.payload == "order-7"
    assert await order(ks).run(wait_s=0) == "paid"
    await task.complete()
    assert await machine.refresh() == "paid"
    assert machine.data == {"price": 12, "feedback": True}
    assert [made.event for made in await machine.history()] == ["price_known", "agree"]


# ---- answering


@pytest.mark.parametrize(("answer", "state"), [(True, "paid"), (False, "refused")])
async def test_what_is_provided_answers_the_approval(turned: Turned, answer: bool, state: str) -> None:
    machine = await asking(turned.ks)
    for given in ({}, {"by": "ann", "event": "agree"}):
        with pytest.raises(InvalidError, match="Pass `by`"):
            await machine.provide(answer, **given)
    with pytest.raises(NotAllowedError):
        await machine.provide(answer, by="bob")

    await machine.provide(answer, by="ann")
    assert await machine.wait_for_user(timeout_s=0) is answer
    with pytest.raises(ApprovalClosedError):
        await machine.provide(not answer, by="ann")
    assert await machine.run() == state


async def test_without_a_question_nobody_answers_an_approval(turned: Turned) -> None:
    machine = AgentStateMachine(
        "order-7", persistence=turned.ks, states=STATES, transitions=TRANSITIONS, waiting=["asking"]
    )
    await machine.transition("price_known")
    with pytest.raises(InvalidError, match="no approval"):
        await machine.provide(True, by="ann")
    await machine.provide("agree")

    assert await machine.run() == "paid"
    assert await machine.approval() is None


async def test_the_answer_to_a_schema_names_the_event(turned: Turned) -> None:
    schema = {"enum": ["agree", "refuse"]}
    machine = await asking(
        turned.ks, lambda data: Question(f"Pay {data['price']}?", schema=schema), guards={}
    )
    await machine.refresh()
    found = await machine.approval()
    assert found is not None and found.question == "Pay 12?"
    with pytest.raises(InvalidError):
        await machine.provide("give_up", by="ann")

    await machine.provide("refuse", by="ann")
    assert await machine.run() == "refused"
    assert machine.data["feedback"] == "refuse"


# ---- closing


@pytest.mark.parametrize("end", ["expired", "withdrawn"])
async def test_a_closed_question_moves_the_machine_by_its_event(turned: Turned, end: str) -> None:
    machine = await asking(turned.ks)
    approvals = turned.ks.space("machine/order-7").approvals
    (asked,) = await approvals.pending()
    if end == "expired":
        turned.clock.advance(60_000)
    else:
        await approvals.withdraw(asked.id, by="boss")

    assert await machine.run(wait_s=0) == "late"
    assert "feedback" not in machine.data
    found = await machine.approval()
    assert found is not None and found.state == end
    assert [event.kind for event in await approvals.log(asked.id)] == ["asked", end]


async def test_a_closed_question_without_an_event_is_raised(turned: Turned) -> None:
    machine = await asking(turned.ks, Question("Pay?", expires_s=60, yes="agree", no="refuse"))
    with pytest.raises(NotLoadedError):
        await machine.wait_for_user(timeout_s=0)
    turned.clock.advance(60_000)

    with pytest.raises(ApprovalClosedError):
        await machine.run(wait_s=0)
    with pytest.raises(ApprovalClosedError):
        await machine.wait_for_user(timeout_s=0)
    assert await machine.transition("give_up") == "late"


async def test_another_transition_withdraws_the_question(turned: Turned) -> None:
    machine = await asking(turned.ks)
    await machine.transition("give_up")

    found = await machine.approval()
    assert found is not None and (found.state, found.closed_by) == ("withdrawn", "machine")
    (task,) = await turned.ks.space("machine/order-7").queue.claim("w", lease_s=60)
    assert await order(turned.ks).run(wait_s=0) == "late"
    await task.complete()


async def test_an_answer_that_a_guard_forbids_is_asked_for_again(turned: Turned) -> None:
    guards = {("asking", "agree"): lambda data: data.get("is_checked")}
    machine = await asking(turned.ks, guards=guards)
    await machine.provide(True, by="ann")
    with pytest.raises(TransitionError, match="guard"):
        await machine.run()

    assert await machine.run(wait_s=0) == "asking"
    (asked,) = await turned.ks.space("machine/order-7").approvals.pending()
    assert asked.id == "machine/1/2"
    machine.data["is_checked"] = True
    await machine.provide(False, by="ann")
    assert await machine.run() == "refused"


async def test_an_answer_to_a_machine_that_was_deleted_is_not_taken(turned: Turned) -> None:
    machine = await asking(turned.ks)
    await machine.provide(True, by="ann")
    space = turned.ks.space("machine/order-7")
    await space.documents.delete("machine")

    again = await asking(turned.ks)
    assert await again.run(wait_s=0) == "asking"
    found = await again.approval()
    assert found is not None and (found.id, found.state) == ("machine/1/2", "pending")


async def test_in_a_transaction_question_and_transition_are_one_batch(turned: Turned) -> None:
    space = turned.space

    async def fail(tx: Any) -> None:
        machine = AgentStateMachine(
            "order-7", space=tx, states=STATES, transitions=TRANSITIONS, waiting=["asking"],
            questions={"asking": PAY},
        )  # fmt: skip
        await machine.transition("price_known")
        assert len(await tx.approvals.pending()) == 1
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        await space.transact(fail)
    assert await space.approvals.pending() == []


# ---- tables


@pytest.mark.parametrize(
    "question",
    [
        Question("?", yes="agree"), Question("?", yes="agree", no="fly"),
        Question("?", schema={"type": "string"}), Question("?", schema={"enum": ["agree", "fly"]}),
        Question("?", schema={"enum": ["agree"]}, yes="agree"), "Pay?", None,
        Question("?", yes="agree", no="refuse", closed="fly"),
    ],
)  # fmt: skip
async def test_a_question_with_an_answer_that_leads_nowhere_is_refused(turned: Turned, question: Any) -> None:
    with pytest.raises(InvalidError):
        order(turned.ks, question)
    machine = order(turned.ks, lambda data: question)
    with pytest.raises(InvalidError):
        await machine.transition("price_known")
    assert await machine.refresh() == "open"


@pytest.mark.parametrize("state", ["open", "paid", "flying"])
def test_only_a_waiting_state_that_is_entered_asks(turned: Turned, state: str) -> None:
    with pytest.raises(InvalidError):
        AgentStateMachine(
            "order-7", persistence=turned.ks, states=STATES, transitions=TRANSITIONS, waiting=["asking"],
            questions={state: PAY},
        )  # fmt: skip
    with pytest.raises(InvalidError, match="no event leads to it"):
        AgentStateMachine(
            "order-7", persistence=turned.ks, states=["a", "b"], transitions={("a", "go"): "b"},
            waiting=["a"], questions={"a": Question("?")},
        )  # fmt: skip


# ---- blocking


class Payment(sync.AgentStateMachine):
    """A machine that names its question in the class."""

    STATES = STATES
    TRANSITIONS = TRANSITIONS
    WAITING = ("asking",)
    WORK = {}  # noqa: RUF012
    QUESTIONS = {"asking": PAY}  # noqa: RUF012


def test_a_class_names_its_questions(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/a.db") as ks:
        machine = Payment("order-7", persistence=ks)
        machine.transition("price_known")
        assert machine.run(wait_s=0) == "asking"
        machine.provide(True, by="ann")

        assert Payment("order-7", persistence=ks).run(wait_s=0) == "paid"
        found = machine.approval()
        assert found is not None and found.answer is not None and found.answer.approved
