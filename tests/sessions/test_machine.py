"""State machines: what may follow what, durable transitions, waits that survive, and runs that are killed."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstate import AgentStateMachine, Space, StepResult, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import (
    ConflictError,
    InvalidError,
    NotLoadedError,
    TransitionError,
)
from tests.engine.conftest import Turned

AWKWARD_IDS = ["1", "a/b", "a%2Fb", "a:b", "two words", "naïve 🦜", "\n", "i" * 190]


class Booking(AgentStateMachine):
    """The agent of the tests, in the form of a subclass."""

    async def plan(self) -> None:
        self.data["steps"] = 2

    def execute_step(self) -> StepResult:
        if "feedback" not in self.data:
            return StepResult(needs_input=True)
        self.data["done"] = self.data.get("done", 0) + 1
        return StepResult(complete=self.data["done"] == self.data["steps"])


async def test_a_machine_begins_idle_and_follows_its_table(ks: Keepstate) -> None:
    machine = AgentStateMachine("1", persistence=ks)

    await machine.refresh()
    assert (machine.current_state, machine.data) == ("idle", {})
    assert await machine.transition("new_task", goal="Book flight to NYC") == "planning"
    assert await machine.transition("plan_ready") == "executing"
    assert await machine.transition("task_complete") == "done"
    assert machine.is_done
    assert machine.data == {"goal": "Book flight to NYC"}


async def test_what_the_table_does_not_have_is_refused_and_changes_nothing(ks: Keepstate) -> None:
    machine = AgentStateMachine("1", persistence=ks)

    with pytest.raises(ValueError, match=r"Invalid transition: idle \+ plan_ready") as refused:
        await machine.transition("plan_ready", goal="x")
    assert isinstance(refused.value, TransitionError)
    assert (refused.value.current, refused.value.wanted) == ("idle", "plan_ready")
    assert await machine.history() == []
    assert (await machine.refresh(), machine.data) == ("idle", {})


async def test_another_handle_sees_each_transition_and_the_data_with_it(ks: Keepstate) -> None:
    machine, other = (AgentStateMachine("1", persistence=ks) for _ in range(2))
    await machine.transition("new_task")
    machine.data["plan"] = ["look", "book"]
    await machine.transition("plan_ready")

    assert await other.refresh() == "executing"
    assert other.data == {"plan": ["look", "book"]}
    assert [(one.number, one.state, one.event, one.target) for one in await other.history()] == [
        (1, "idle", "new_task", "planning"),
        (2, "planning", "plan_ready", "executing"),
    ]


async def test_two_who_change_different_data_both_do(ks: Keepstate) -> None:
    ours, theirs = (AgentStateMachine("1", persistence=ks) for _ in range(2))
    await ours.transition("new_task")
    await theirs.refresh()
    await theirs.transition("plan_ready", seat="aisle")

    ours.data["airline"] = "Delta"
    await ours.transition("step_complete")

    assert ours.data == {"airline": "Delta", "seat": "aisle"}
    await theirs.refresh()
    ours.data["seat"], theirs.data["seat"] = "window", "middle"
    await ours.transition("step_complete")
    with pytest.raises(ConflictError, match="data\\['seat'\\]"):
        await theirs.transition("step_complete")
    assert len(await ours.history()) == 4


async def test_many_who_count_at_once_make_each_transition_once(ks: Keepstate) -> None:
    first = AgentStateMachine("1", persistence=ks)
    await first.transition("new_task")
    await first.transition("plan_ready")

    machines = [AgentStateMachine("1", persistence=ks) for _ in range(6)]
    await asyncio.gather(*(machine.transition("step_complete") for machine in machines))

    assert [one.number for one in await first.history()] == list(range(1, 9))


async def test_guards_and_actions_see_and_change_the_data(ks: Keepstate) -> None:
    told: list[str] = []

    def paid(data: dict[str, Any]) -> None:
        told.append("left")
        data["receipt"] = data["amount"]

    machine = AgentStateMachine(
        "order",
        persistence=ks,
        states=["open", "paid", "sent"],
        transitions={("open", "pay"): "paid", ("paid", "send"): "sent", ("open", "send"): "sent"},
        guards={("open", "pay"): lambda data: data["amount"] > 0},
        on_leave={"open": paid},
        on_enter={"sent": lambda data: data.update(sent=True)},
    )

    with pytest.raises(ValueError, match=r"A guard forbids the transition: open \+ pay"):
        await machine.transition("pay", amount=0)
    assert told == []
    await machine.transition("pay", amount=5)
    await machine.transition("send")
    assert machine.data == {"amount": 5, "receipt": 5, "sent": True}


async def test_a_run_does_the_work_and_waits_for_the_user(ks: Keepstate) -> None:
    machine = Booking("1", persistence=ks)
    await machine.transition("new_task")

    assert await machine.run(wait_s=0) == "waiting_feedback"
    running = asyncio.create_task(Booking("1", persistence=ks).run())
    await AgentStateMachine("1", persistence=ks).provide("the 9 o'clock")
    assert await asyncio.wait_for(running, 60) == "done"
    await machine.refresh()
    assert machine.data == {"steps": 2, "feedback": "the 9 o'clock", "done": 2}


async def test_an_answer_given_while_nobody_runs_is_there_later(ks: Keepstate) -> None:
    machine = Booking("1", persistence=ks)
    await machine.transition("new_task")
    await machine.run(wait_s=0)

    await machine.provide("yes")
    with pytest.raises(TransitionError, match="has an answer already"):
        await machine.provide("no")
    assert await Booking("1", persistence=ks).wait_for_user(0) == "yes"
    assert await Booking("1", persistence=ks).run(wait_s=0) == "done"
    with pytest.raises(TransitionError, match="is not waiting"):
        await machine.provide("more")
    with pytest.raises(TransitionError, match="is not waiting"):
        await machine.wait_for_user(0)


ASKING: dict[str, Any] = {
    "states": ["asking", "booked", "refused"],
    "transitions": {("asking", "approve"): "booked", ("asking", "reject"): "refused"},
    "waiting": ["asking"],
}


async def test_the_answer_says_by_which_of_several_events_a_wait_leads_on(ks: Keepstate) -> None:
    by_event, by_answer = (AgentStateMachine(id, persistence=ks, **ASKING) for id in "12")

    await by_event.provide({"why": "too dear"}, event="reject")
    await by_answer.provide("approve")
    assert await by_event.wait_for_user(0) == {"why": "too dear"}

    assert [await by_event.run(), await by_answer.run()] == ["refused", "booked"]
    await by_event.refresh()
    assert by_event.data == {"feedback": {"why": "too dear"}}


async def test_an_answer_that_leads_nowhere_is_refused_when_it_is_given(ks: Keepstate) -> None:
    machine = AgentStateMachine("1", persistence=ks, **ASKING)

    with pytest.raises(InvalidError, match=r"one of \['approve', 'reject'\]"):
        await machine.provide("perhaps")
    with pytest.raises(TransitionError, match=r"asking \+ perhaps"):
        await machine.provide("yes", event="perhaps")
    assert await machine.run(wait_s=0) == "asking"
    await machine.provide("approve")
    assert await machine.run() == "booked"


async def test_an_answer_that_a_guard_refuses_makes_room_for_another(ks: Keepstate) -> None:
    guards = {("asking", "approve"): lambda data: data["feedback"] == "by two"}
    machine = AgentStateMachine("1", persistence=ks, guards=guards, **ASKING)
    await machine.provide("by one", event="approve")

    with pytest.raises(TransitionError, match="A guard forbids"):
        await machine.run()
    await machine.provide("by two", event="approve")
    assert await machine.run() == "booked"
    assert [one.event for one in await machine.history()] == ["approve"]


async def test_a_state_that_the_table_does_not_know_is_an_error(ks: Keepstate) -> None:
    states, table = ["draft", "ready"], {("draft", "go"): "ready"}
    await AgentStateMachine("1", persistence=ks, states=states, transitions=table).transition("go")
    renamed = AgentStateMachine(
        "1", persistence=ks, states=["draft", "finished"], transitions={("draft", "go"): "finished"}
    )

    for calling in (renamed.refresh(), renamed.run(), renamed.transition("go"), renamed.provide(1)):
        with pytest.raises(
            InvalidError, match=r"Machine '1' is in state 'ready', .* only 'draft', 'finished'"
        ):
            await calling
    assert [one.target for one in await renamed.history()] == ["ready"]


async def test_guards_and_actions_may_be_coroutine_functions(ks: Keepstate) -> None:
    async def allowed(data: dict[str, Any]) -> bool:
        return bool(data["amount"])

    async def receipt(data: dict[str, Any]) -> None:
        data["receipt"] = data["amount"]

    machine = AgentStateMachine(
        "1",
        persistence=ks,
        guards={("idle", "new_task"): allowed},
        on_leave={"idle": receipt},
        on_enter={"planning": receipt},
    )
    with pytest.raises(TransitionError, match="A guard forbids"):
        await machine.transition("new_task", amount=0)
    await machine.transition("new_task", amount=5)

    assert machine.data == {"amount": 5, "receipt": 5}
    with pytest.raises(InvalidError, match="blocking mode needs a plain function"):
        sync.AgentStateMachine("1", persistence="memory://", on_enter={"planning": receipt})


async def test_work_that_fails_leaves_the_machine_where_it_was(ks: Keepstate) -> None:
    def failing(data: dict[str, Any]) -> None:
        data["half"] = True
        raise RuntimeError("no answer")

    machine = AgentStateMachine("1", persistence=ks, work={"planning": failing})
    await machine.transition("new_task")

    with pytest.raises(RuntimeError, match="no answer"):
        await machine.run()
    assert (await machine.refresh(), machine.data) == ("planning", {})


async def test_a_machine_in_a_transaction_joins_its_batch(space: Space) -> None:
    async with space.transaction() as tx:
        await AgentStateMachine("1", space=tx).transition("new_task")
        await tx.documents.put("beside", 1)
    with pytest.raises(RuntimeError):
        async with space.transaction() as tx:
            await AgentStateMachine("1", space=tx).transition("plan_ready")
            raise RuntimeError

    assert await AgentStateMachine("1", space=space).refresh() == "planning"
    async with space.transaction() as tx:
        with pytest.raises(InvalidError, match="takes effect at once"):
            await AgentStateMachine("1", space=tx).run()


async def test_machines_of_awkward_ids_keep_apart_in_one_space(space: Space) -> None:
    for number, id in enumerate(AWKWARD_IDS):
        await AgentStateMachine(id, space=space).transition("new_task", number=number)

    for number, id in enumerate(AWKWARD_IDS):
        machine = AgentStateMachine(id, space=space)
        await machine.refresh()
        assert machine.data == {"number": number}
        assert len(await machine.history()) == 1


async def test_each_moment_of_a_machine_can_be_read_again(ks: Keepstate) -> None:
    machine = AgentStateMachine("1", persistence=ks)
    await machine.transition("new_task", goal="a")
    await machine.transition("plan_ready", goal="b")

    before = await ks.space("machine/1").at("main~1")

    assert (before["machine"].state, before["machine"].data) == ("planning", {"goal": "a"})


async def test_what_was_not_read_is_not_told(turned: Turned) -> None:
    machine = AgentStateMachine("1", persistence=turned.ks)

    with pytest.raises(NotLoadedError):
        _ = machine.current_state
    assert "not read yet" in repr(machine)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"id": "i" * 200},
        {"states": []},
        {"states": ["a", "a"]},
        {"states": ["a"], "transitions": {("a", "go"): "b"}},
        {"waiting": ["nowhere"]},
        {"persistence": 1},
        {"space": 1},
        {"guards": {("idle", "new_task"): 1}},
        {"guards": {("idle", "new_tusk"): bool}},
        {"guards": {"idle": bool}},
        {"on_enter": {"plannin": print}},
        {"on_leave": {"idel": print}},
        {"on_leave": {"idle": 1}},
        {"work": {"plannin": print}},
        {"work": {"planning": 1}},
        {"work": {"waiting_feedback": print}},
        {"work": {"done": print}},
        {"states": "ab"},
        {"states": ["a", 2]},
        {"states": ["a", ""]},
        {"states": 1},
        {"transitions": {"idle": "planning"}},
        {"transitions": {("idle", "go", "on"): "planning"}},
        {"transitions": {("idle", 1): "planning"}},
        {"transitions": [("idle", "go", "planning")]},
        {"waiting": "idle"},
        {"waiting": ["done"]},
    ],
    ids=repr,
)
def test_what_makes_no_machine_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        AgentStateMachine(**wrong)


def test_a_machine_is_drawn_in_mermaid() -> None:
    drawn = AgentStateMachine("1").diagram().splitlines()

    assert drawn[:3] == ["stateDiagram-v2", "    [*] --> idle", "    idle --> planning: new_task"]
    assert drawn[-1] == "    done --> [*]"


def test_names_that_mermaid_cannot_read_stand_in_quotes() -> None:
    drawn = AgentStateMachine(
        states=["to do", "in: work", "end", "s1", 'said "no"'],
        transitions={("to do", "go: on"): "in: work", ("in: work", "a;b"): "end", ("end", "x"): "s1"},
    ).diagram()

    assert drawn.splitlines() == [
        "stateDiagram-v2",
        '    state "to do" as s2',
        '    state "in#58; work" as s3',
        '    state "end" as s4',
        '    state "said #34;no#34;" as s5',
        "    [*] --> s2",
        "    s2 --> s3: go#58; on",
        "    s3 --> s4: a#59;b",
        "    s4 --> s1: x",
        "    s1 --> [*]",
        "    s5 --> [*]",
    ]


class Mistyped(AgentStateMachine):
    WORK: ClassVar = {"planning": "plann"}

    def plan(self) -> None: ...


class Misplaced(AgentStateMachine):
    WORK: ClassVar = {"plannin": "plan"}

    def plan(self) -> None: ...


@pytest.mark.parametrize("kind", [Mistyped, Misplaced])
def test_a_class_whose_work_would_never_be_done_is_refused(kind: type[AgentStateMachine]) -> None:
    with pytest.raises(InvalidError, match="plann"):
        kind()


EVENTS = sorted({event for _, event in AgentStateMachine.TRANSITIONS})


@settings(max_examples=60)
@given(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_any_events_lead_where_the_table_says(events: list[str]) -> None:
    state, made = "idle", 0
    with sync.open("memory://") as ks:
        machine = sync.AgentStateMachine("1", persistence=ks)
        for event in events:
            target = AgentStateMachine.TRANSITIONS.get((state, event))
            if target is None:
                with pytest.raises(ValueError, match="Invalid transition"):
                    machine.transition(event)
            else:
                state, made = machine.transition(event, last=event), made + 1
                assert state == target
        assert machine.refresh() == state
        assert [one.number for one in machine.history()] == list(range(1, made + 1))


async def test_arrays_in_the_data_are_compared_as_they_would_be_stored(ks: Keepstate) -> None:
    machine = AgentStateMachine("1", persistence=ks)
    await machine.transition("new_task", found=np.arange(3))
    await machine.transition("plan_ready", goal="Rome")
    await machine.transition("step_complete", found=np.arange(4))

    await machine.refresh()
    assert machine.data["found"].tolist() == [0, 1, 2, 3] and machine.data["goal"] == "Rome"
