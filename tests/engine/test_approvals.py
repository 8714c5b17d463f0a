"""Approvals: a question is settled once, by people who may, in the batch that wakes the task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import keepstate
from keepstate import Approval, TaskSpec, sync
from keepstate.engine.approvals.records import asked_key, mark_key
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import (
    AlreadyExistsError,
    ApprovalClosedError,
    CorruptError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    TransitionError,
)
from keepstate.stores.protocol import Batch, Delete
from keepstate.stores.protocol import Put as StorePut
from tests.engine.conftest import Turned

PLAN = {"send": 100, "to": "acme"}


async def state(space: Space, id: str = "pay") -> str:
    found = await space.approvals.get(id)
    assert found is not None
    return found.state


async def task_state(space: Space, id: str) -> str:
    task = await space.queue.get(id)
    assert task is not None
    return task.state


async def refused(error: type[Exception], call: Awaitable[object], text: str = "") -> None:
    with pytest.raises(error, match=text or None):
        await call


# ---- on every backend


async def test_an_approval_is_asked_and_answered_once(space: Space) -> None:
    asked = await space.by("agent").approvals.ask("Pay 100?", id="pay", subject=PLAN, to=["ann", "bob"])
    assert (asked.state, asked.subject, asked.asked_by, asked.to) == (
        "pending",
        PLAN,
        "agent",
        ("ann", "bob"),
    )

    answered = await space.approvals.answer("pay", True, by="ann", note="fine", saw=asked.digest)
    again = await space.approvals.answer("pay", True, by="ann")
    assert answered.answer is not None
    assert (answered.state, answered.closed_by) == ("answered", "ann")
    assert (answered.answer.approved, answered.answer.note, answered.answer.subject) == (True, "fine", PLAN)
    assert again == answered == await space.approvals.get("pay")
    assert await space.approvals.wait("pay") == answered.answer
    await refused(ApprovalClosedError, space.approvals.answer("pay", False, by="ann"))
    await refused(ApprovalClosedError, space.approvals.answer("pay", True, by="bob"))
    await refused(ApprovalClosedError, space.approvals.withdraw("pay", by="bob"))
    events = [(event.kind, event.by, event.value) for event in await space.approvals.log("pay")]
    assert events == [("asked", "agent", None), ("answered", "ann", True)]


async def test_the_task_that_follows_is_woken_by_the_answer_and_by_nothing_before(space: Space) -> None:
    then = TaskSpec({"order": 7}, kind="pay")
    asked = await space.approvals.ask("Pay?", id="pay", then=then)
    assert asked.task == "approval/pay"
    assert await space.queue.claim("w", lease_s=60) == []

    await space.approvals.answer("pay", False, by="ann")
    (task,) = await space.queue.claim("w", lease_s=60, kinds=["pay"])
    assert (task.id, task.payload) == ("approval/pay", {"order": 7})
    await task.complete()
    await space.approvals.answer("pay", False, by="ann")
    assert await space.queue.claim("w", lease_s=60) == []


async def test_different_people_are_counted_and_one_no_closes(space: Space) -> None:
    await space.by("agent").approvals.ask("Pay?", id="pay", need=2, then=TaskSpec())
    first = await space.approvals.answer("pay", True, by="ann")
    again = await space.approvals.answer("pay", True, by="ann")
    assert [vote.by for vote in first.votes] == ["ann"]
    assert (again.state, again.votes) == ("pending", first.votes)
    await refused(NotAllowedError, space.approvals.answer("pay", True, by="agent"))
    assert await task_state(space, "approval/pay") == "waiting"

    second = await space.approvals.answer("pay", True, by="bob")
    assert (second.state, await task_state(space, "approval/pay")) == ("answered", "ready")
    assert (await space.approvals.answer("pay", True, by="ann")).state == "answered"
    await refused(ApprovalClosedError, space.approvals.answer("pay", True, by="carl"))

    await space.approvals.ask("Pay more?", id="more", need=3)
    await space.approvals.answer("more", True, by="ann")
    denied = await space.approvals.answer("more", False, by="ann")
    assert denied.answer is not None
    assert (denied.state, denied.answer.approved) == ("answered", False)


async def test_an_approval_is_listed_while_it_is_pending(space: Space) -> None:
    for number in range(12):
        to = ["ann"] if number % 2 else ["ann", "bob"]
        await space.approvals.ask(f"Number {number}?", id=f"a{number:02}", to=to)
    await space.approvals.answer("a00", True, by="bob")
    await space.approvals.withdraw("a01", by="ann")
    await space.approvals.assign("a02", ["bob", "eve"], by="ann")

    first = await space.approvals.pending(to="ann", limit=5)
    rest = await space.approvals.pending(to="ann", limit=5, after=first.next)
    assert {each.id for each in [*first, *rest]} == {f"a{number:02}" for number in range(3, 12)}
    assert rest.next is None
    assert [each.id for each in await space.approvals.pending(to="eve")] == ["a02"]
    assert len(await space.approvals.pending()) == 10
    assert await space.approvals.pending(to="agent") == []


async def test_a_transaction_settles_an_approval_with_what_was_done(space: Space) -> None:
    await space.approvals.ask("Pay?", id="pay")

    async def pay(tx: Any) -> None:
        answered: Approval = await tx.approvals.answer("pay", True, by="ann")
        assert answered.state == "answered"
        assert [event.kind for event in await tx.approvals.log("pay")] == ["asked", "answered"]
        await tx.documents.put("paid", 100)

    async def fail(tx: Any) -> None:
        await pay(tx)
        raise RuntimeError("no")

    await refused(RuntimeError, space.transact(fail))
    assert await state(space) == "pending"
    await space.transact(pay)
    assert await state(space) == "answered"


async def test_of_answers_at_once_one_is_stored(space: Space) -> None:
    await space.approvals.ask("Pay?", id="pay", then=TaskSpec())
    people = [f"person {number}" for number in range(8)]
    calls = [space.approvals.answer("pay", bool(number % 2), by=by) for number, by in enumerate(people)]
    ended = await asyncio.gather(*calls, return_exceptions=True)

    won = [each for each in ended if isinstance(each, Approval)]
    assert len(won) == 1
    assert sum(isinstance(each, ApprovalClosedError) for each in ended) == 7
    assert [event.kind for event in await space.approvals.log("pay")] == ["asked", "answered"]
    (task,) = await space.queue.claim("w", lease_s=60)
    assert (task.id, (await space.queue.counts())["ready"]) == ("approval/pay", 0)


async def test_pending_approvals_of_a_tenant_are_found(ks: Keepstate) -> None:
    one, two = ks.space("order/1"), ks.space("order/2")
    await one.approvals.ask("Pay one?", id="pay")
    await two.approvals.ask("Pay two?", id="pay")
    found = await ks.find(kind="approval", state="pending")
    assert {(each.space, each.id, each.title) for each in found} == {
        ("order/1", "pay", "Pay one?"),
        ("order/2", "pay", "Pay two?"),
    }

    await two.approvals.answer("pay", True, by="ann")
    assert [each.space for each in await ks.find(kind="approval", state="pending")] == ["order/1"]
    assert [each.space for each in await ks.find(kind="approval", state="answered")] == ["order/2"]


async def test_blocking_code_asks_and_answers(url: str) -> None:
    def run() -> str:
        with sync.open(url) as ks:
            approvals = ks.space("run/1").approvals
            approvals.ask("Pay?", id="pay", subject=PLAN)
            approvals.answer("pay", True, by="ann")
            assert approvals.wait("pay", timeout_s=1).subject == PLAN
            assert len(approvals.log("pay")) == 2
            return approvals.pending().__class__.__name__

    assert await asyncio.to_thread(run) == "Page"


async def test_the_same_asked_again_gets_the_first_and_other_terms_are_refused(turned: Turned) -> None:
    ask = turned.space.approvals.ask
    terms: dict[str, Any] = {
        "to": ["ann", "bob"],
        "need": 2,
        "expires_s": 60,
        "then": TaskSpec({"pay": 100}, kind="pay"),
    }
    asked = await ask("Pay?", id="pay", subject=PLAN, **terms)
    await turned.space.approvals.assign("pay", ["eve", "dan"], by="ann")
    turned.clock.advance(1_000)

    again = await ask("Pay?", id="pay", subject=PLAN, **terms | {"to": ["bob", "ann"]})
    assert (again.asked_at, again.expires_at) == (asked.asked_at, asked.expires_at)
    assert again.to == ("eve", "dan")
    for other in (
        {"to": ["ann"]},
        {"to": ["eve", "dan"]},
        {"need": 1},
        {"expires_s": 59},
        {"expires_s": None},
        {"then": None},
        {"then": TaskSpec({"pay": 101}, kind="pay")},
        {"then": TaskSpec({"pay": 100}, kind="pay", priority=1)},
    ):
        await refused(AlreadyExistsError, ask("Pay?", id="pay", subject=PLAN, **terms | other), "`expires_s`")
    await refused(AlreadyExistsError, ask("Pay?", id="pay", subject=1, **terms), "something else")

    await turned.space.approvals.answer("pay", False, by="eve")
    assert (await ask("Pay?", id="pay", subject=PLAN, **terms)).state == "answered"
    assert len(await turned.space.queue.list()) == 1


# ---- rights


async def test_who_asked_may_not_answer_by_any_way(turned: Turned) -> None:
    agent = turned.space.by("agent").approvals
    await refused(InvalidError, agent.ask("Pay?", id="pay", to=["agent", "ann"]), "may not answer")
    await agent.ask("Pay?", id="pay", to=["ann", "editors"])
    approvals = turned.space.approvals

    await refused(NotAllowedError, approvals.answer("pay", True, by="agent"))
    await refused(NotAllowedError, approvals.answer("pay", True, by="agent", group="editors"))
    await refused(InvalidError, approvals.assign("pay", ["agent"], by="ann"), "may not answer")
    assert await state(turned.space) == "pending"


async def test_only_those_who_are_asked_answer(turned: Turned) -> None:
    approvals = turned.space.approvals
    await approvals.ask("Pay?", id="pay", to=["editors", "ann"], need=2)
    await refused(NotAllowedError, approvals.answer("pay", True, by="editors/eve"))
    await refused(NotAllowedError, approvals.answer("pay", True, by="eve", group="admins"))
    await refused(NotAllowedError, approvals.answer("pay", True, by="eve"))

    await approvals.answer("pay", True, by="ann")
    twice = await approvals.answer("pay", True, by="ann", group="editors")
    assert (twice.state, len(twice.votes)) == ("pending", 1)
    assert (await approvals.answer("pay", True, by="bob", group="editors")).state == "answered"
    await approvals.ask("Who?", id="open")
    await refused(InvalidError, approvals.answer("open", True, by="eve", group="editors"), "no group")


async def test_the_yes_of_a_removed_person_does_not_count(turned: Turned) -> None:
    approvals = turned.space.approvals
    await approvals.ask("Pay?", id="pay", to=["ann", "bob"], need=2)
    await approvals.answer("pay", True, by="ann")
    moved = await approvals.assign("pay", ["bob", "eve"], by="bob")
    assert moved.votes == ()

    await refused(NotAllowedError, approvals.answer("pay", True, by="ann"))
    assert (await approvals.answer("pay", True, by="bob")).state == "pending"
    assert (await approvals.answer("pay", True, by="eve")).state == "answered"
    kinds = [(event.kind, event.by) for event in await approvals.log("pay")]
    assert kinds[:3] == [("asked", None), ("answered", "ann"), ("assigned", "bob")]


async def test_a_yes_for_a_group_counts_as_long_as_the_group_is_asked(turned: Turned) -> None:
    approvals = turned.space.approvals
    await approvals.ask("Pay?", id="pay", to=["editors", "ann"], need=2)
    await approvals.answer("pay", True, by="eve", group="editors")

    moved = await approvals.assign("pay", ["editors", "bob"], by="ann")
    assert [(vote.by, vote.group) for vote in moved.votes] == [("eve", "editors")]
    without = await approvals.assign("pay", ["bob", "eve"], by="ann")
    assert without.votes == ()


async def test_a_person_who_saw_something_else_answers_nothing(turned: Turned) -> None:
    approvals = turned.space.approvals
    other = await approvals.ask("Pay?", id="other", subject={"send": 1})
    asked = await approvals.ask("Pay?", id="pay", subject={"send": 1_000_000})
    assert asked.digest != other.digest

    await refused(InvalidError, approvals.answer("pay", True, by="ann", saw=other.digest), "saw")
    await refused(InvalidError, approvals.answer("pay", True, by="ann", saw="ä"), "saw")
    assert await state(turned.space) == "pending"


async def test_a_subject_that_was_changed_in_the_store_is_damage(turned: Turned) -> None:
    await turned.space.approvals.ask("Pay?", id="pay", subject={"send": 1})
    other = await turned.space.approvals.ask("Pay?", id="other", subject={"send": 9})
    store = await turned.space.executor.store()
    (entry,) = (await store.read("run/1", [asked_key(other.id)])).entries
    assert entry is not None
    await store.apply([Batch("run/1", [StorePut(asked_key("pay"), entry.value)])])

    await refused(CorruptError, turned.space.approvals.get("pay"), "digest")
    await refused(CorruptError, turned.space.approvals.answer("pay", True, by="ann"), "digest")


# ---- time


async def test_the_time_of_the_store_decides_about_the_last_answer(turned: Turned) -> None:
    approvals = turned.space.approvals
    for id in ("early", "late"):
        await approvals.ask("Pay?", id=id, expires_s=60, then=TaskSpec())
    turned.clock.advance(59_999)
    assert (await approvals.answer("early", True, by="ann")).state == "answered"
    turned.clock.advance(1)

    await refused(ApprovalClosedError, approvals.answer("late", True, by="ann"), "has expired")
    await refused(ApprovalClosedError, approvals.withdraw("late", by="ann"), "has expired")
    await refused(ApprovalClosedError, approvals.assign("late", ["ann"], by="ann"), "has expired")
    await refused(ApprovalClosedError, approvals.wait("late", timeout_s=5), "has expired")
    late = await approvals.get("late")
    assert late is not None
    assert (late.state, late.closed_at, late.answer) == ("expired", late.expires_at, None)
    assert await approvals.pending() == []
    assert {task.id for task in await turned.space.queue.claim("w", lease_s=60, count=9)} == {
        "approval/early",
        "approval/late",
    }
    assert (await approvals.answer("early", True, by="ann")).state == "answered"


async def test_an_answer_that_comes_as_the_approval_expires_is_refused_by_the_store(turned: Turned) -> None:
    await turned.space.approvals.ask("Pay?", id="pay", expires_s=60)
    turned.clock.advance(59_999)

    async def late(tx: Any) -> None:
        await tx.approvals.answer("pay", True, by="ann")
        turned.clock.advance(1)

    await refused(ApprovalClosedError, turned.space.transact(late), "has expired")
    assert await state(turned.space) == "expired"


async def test_an_expired_approval_is_not_found_among_the_pending_ones(turned: Turned) -> None:
    await turned.space.approvals.ask("Pay?", id="pay", expires_s=60)
    (found,) = await turned.ks.find(kind="approval", state="pending")
    assert found.due_at is not None
    turned.clock.advance(60_000)
    assert await turned.ks.find(kind="approval", state="pending") == []
    assert [each.state for each in await turned.ks.find(kind="approval")] == ["expired"]

    await turned.ks.deliver()
    (found,) = await turned.ks.find(kind="approval", state="expired")
    assert (found.id, found.due_at) == ("pay", None)


async def test_a_waiting_task_waits_at_most_until_the_approval_expires(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", delay_s=3600)
    await turned.space.approvals.ask("Pay?", id="pay", task="t", expires_s=60)
    turned.clock.advance(59_000)
    assert await turned.space.queue.claim("w", lease_s=60) == []
    turned.clock.advance(1_000)
    assert [task.id for task in await turned.space.queue.claim("w", lease_s=60)] == ["t"]

    await turned.space.queue.put(2, id="u", delay_s=3600)
    await turned.space.approvals.ask("Pay?", id="more", task="u")
    await turned.space.approvals.answer("more", True, by="ann")
    assert [task.id for task in await turned.space.queue.claim("w", lease_s=60)] == ["u"]


async def test_a_task_that_is_due_before_the_approval_expires_waits_no_longer(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", delay_s=60)
    await turned.space.approvals.ask("Pay?", id="pay", task="t", expires_s=3600)
    turned.clock.advance(60_000)

    assert [task.id for task in await turned.space.queue.claim("w", lease_s=60)] == ["t"]


# ---- schemas


SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer", "minimum": 1, "maximum": 500},
        "method": {"enum": ["card", "bank"]},
        "lines": {"type": "array", "maxItems": 2, "items": {"type": "string", "maxLength": 3}},
    },
    "required": ["amount"],
    "additionalProperties": False,
}


async def test_an_answer_fits_its_schema(turned: Turned) -> None:
    approvals = turned.space.approvals
    await approvals.ask("How much?", id="pay", schema=SCHEMA)
    for wrong, text in (
        (True, "object"),
        ({}, "amount"),
        ({"amount": True}, "value.amount"),
        ({"amount": 501}, "value.amount"),
        ({"amount": 5.0}, "value.amount"),
        ({"amount": 5, "method": "cash"}, "value.method"),
        ({"amount": 5, "lines": ["a", "long"]}, r"value.lines\[1\]"),
        ({"amount": 5, "lines": ["a"] * 3}, "3 items"),
        ({"amount": 5, "more": 1}, "more"),
        ({"amount": 5, 1: 1}, "give a str"),
    ):
        await refused(InvalidError, approvals.answer("pay", wrong, by="ann"), text)
    answered = await approvals.answer("pay", {"amount": 5, "method": "bank"}, by="ann")

    assert answered.answer is not None
    assert answered.answer.value == {"amount": 5, "method": "bank"}
    assert answered.answer.approved
    assert (await approvals.answer("pay", {"amount": 5, "method": "bank"}, by="ann")) == answered


@pytest.mark.parametrize(
    ("schema", "value", "is_approved"),
    [
        ({"type": "boolean"}, False, False),
        ({"type": "boolean"}, True, True),
        ({"enum": [False, "later"]}, False, False),
        ({"enum": [False, "later"]}, "later", True),
        ({"type": "integer"}, 0, True),
    ],
)
async def test_a_no_is_no_approval_in_any_schema(
    turned: Turned, schema: Any, value: Any, is_approved: bool
) -> None:
    approvals = turned.space.approvals
    await approvals.ask("Pay?", id="pay", schema=schema)
    answered = await approvals.answer("pay", value, by="ann")

    assert answered.answer is not None
    assert (answered.answer.value, answered.answer.approved) == (value, is_approved)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (str, "give a JSON Schema"),
        ({}, "type"),
        ({"type": "text"}, "type"),
        ({"type": "string", "pattern": "(a+)+$"}, "not supported"),
        ({"type": "string", "minimum": 1}, "not supported"),
        ({"type": "string", "maxLength": -1}, "does not allow"),
        ({"$ref": "#/x"}, "type"),
        ({"type": "object", "properties": {"a": {"type": "x"}}}, r"properties\.a"),
        ({"type": "array", "items": 1}, r"schema\.items"),
        ({"enum": []}, "does not allow"),
    ],
)
async def test_a_rule_that_would_be_ignored_is_refused(turned: Turned, schema: Any, text: str) -> None:
    await refused(InvalidError, turned.space.approvals.ask("What?", id="x", schema=schema), text)
    assert await turned.space.approvals.get("x") is None


async def test_a_number_that_is_none_fits_no_bound(turned: Turned) -> None:
    schema = {"type": "number", "minimum": 0, "maximum": 9}
    await turned.space.approvals.ask("How much?", id="x", schema=schema)
    await refused(InvalidError, turned.space.approvals.answer("x", float("nan"), by="ann"), "at most 9")


# ---- wrong calls

Call = Callable[[Any], Awaitable[object]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a: a.ask(""), InvalidError, "question"),
        (lambda a: a.ask("?" * 70_000), InvalidError, "question"),
        (lambda a: a.ask(1), InvalidError, "question"),
        (lambda a: a.ask("?", id=""), InvalidError, "id"),
        (lambda a: a.ask("?", to="ann"), InvalidError, "give a list"),
        (lambda a: a.ask("?", to=[f"p{n}" for n in range(101)]), InvalidError, "100"),
        (lambda a: a.ask("?", to=[""]), InvalidError, "to"),
        (lambda a: a.ask("?", need=0), InvalidError, "need"),
        (lambda a: a.ask("?", need=True), InvalidError, "need"),
        (lambda a: a.ask("?", need=2, schema={"type": "string"}), InvalidError, "one person"),
        (lambda a: a.ask("?", expires_s=0), InvalidError, "expires_s"),
        (lambda a: a.ask("?", subject=object()), InvalidError, ""),
        (lambda a: a.ask("?", task="none"), NotFoundError, "none"),
        (lambda a: a.ask("?", task="done"), TransitionError, "done"),
        (lambda a: a.ask("?", task="done", then=TaskSpec()), InvalidError, "one task"),
        (lambda a: a.ask("?", then=TaskSpec(id="done")), AlreadyExistsError, "done"),
        (lambda a: a.ask("?", then="done"), InvalidError, "TaskSpec"),
        (lambda a: a.ask("Else?", id="known"), AlreadyExistsError, "something else"),
        (lambda a: a.answer("none", True, by="ann"), NotFoundError, "none"),
        (lambda a: a.answer("known", "yes", by="ann"), InvalidError, "yes or no"),
        (lambda a: a.answer("known", 1, by="ann"), InvalidError, "yes or no"),
        (lambda a: a.answer("known", True, by=""), InvalidError, "by"),
        (lambda a: a.answer("known", True, by="ann", note="x" * 5000), InvalidError, "note"),
        (lambda a: a.answer("known", True, by="ann", saw=1), InvalidError, "saw"),
        (lambda a: a.assign("known", [], by="ann"), InvalidError, "empty"),
        (lambda a: a.assign("none", ["ann"], by="ann"), NotFoundError, "none"),
        (lambda a: a.withdraw("none", by="ann"), NotFoundError, "none"),
        (lambda a: a.wait("none"), NotFoundError, "none"),
        (lambda a: a.wait("known", timeout_s=0), TimeoutError, "no answer"),
        (lambda a: a.log("none"), NotFoundError, "none"),
        (lambda a: a.pending(limit=0), InvalidError, "limit"),
        (lambda a: a.pending(after="x"), InvalidError, "after"),
    ],
)
async def test_a_wrong_call_writes_nothing(turned: Turned, call: Call, error: type, text: str) -> None:
    space = turned.space
    await space.queue.put(1, id="done")
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.complete()
    asked = await space.approvals.ask("Known?", id="known")
    before = await space.revision()

    await refused(error, call(space.approvals), text)
    assert await space.revision() == before
    assert await space.approvals.get("known") == asked
    assert await space.approvals.ask("Known?", id="known") == asked


async def test_a_log_does_not_grow_without_end(turned: Turned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstate.values.limits.APPROVAL_EVENTS", 3)
    approvals = turned.space.approvals
    await approvals.ask("Pay?", id="pay")
    for name in ("ann", "bob"):
        await approvals.assign("pay", [name], by="boss")
    await refused(InvalidError, approvals.assign("pay", ["eve"], by="boss"), "too often")

    assert (await approvals.answer("pay", True, by="bob")).state == "answered"


async def test_a_lost_mark_closes_only_what_can_expire(turned: Turned) -> None:
    await turned.space.approvals.ask("Pay?", id="pay")
    store = await turned.space.executor.store()
    await store.apply([Batch("run/1", [Delete(mark_key("pay"))])])

    assert await state(turned.space) == "pending"
    assert (await turned.space.approvals.answer("pay", True, by="ann")).state == "answered"


def test_an_approval_wakes_the_caller_that_waits_for_it() -> None:
    async def whole() -> None:
        async with keepstate.open("memory://") as ks:
            approvals = ks.space("a").approvals
            await approvals.ask("Pay?", id="pay")
            waiting = asyncio.create_task(approvals.wait("pay", timeout_s=60))
            await asyncio.sleep(0)
            await approvals.answer("pay", True, by="ann")
            assert (await waiting).approved

    asyncio.run(whole())
