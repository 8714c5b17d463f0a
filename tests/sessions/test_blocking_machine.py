"""State machines without `await`: a class derived from the twin says its states and does their work."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import ClassVar

import pytest

from keepstate import StepResult, sync
from keepstate.errors import InvalidError, TransitionError


class Booking(sync.AgentStateMachine):
    """The published agent, with something of its own beside its state."""

    def __init__(self, id: str, ks: sync.Keepstate | str, *, prices: list[int]) -> None:
        super().__init__(id, persistence=ks)
        self.prices = prices

    def plan(self) -> None:
        self.data["steps"] = len(self.prices)

    def execute_step(self) -> StepResult:
        if "feedback" not in self.data:
            return StepResult(needs_input=True)
        found = self.data.setdefault("found", [])
        found.append(self.prices[len(found)])
        return StepResult(complete=len(found) == self.data["steps"])


class Order(sync.AgentStateMachine):
    """Another table, with work of other names."""

    STATES: ClassVar = ["open", "asking", "paid", "sent"]
    TRANSITIONS: ClassVar = {
        ("open", "price_known"): "asking",
        ("asking", "agreed"): "paid",
        ("paid", "sent_off"): "sent",
    }
    WAITING: ClassVar = ("asking",)
    WORK: ClassVar = {"open": "ask_price", "paid": "send"}

    def ask_price(self) -> None:
        self.data["price"] = 12

    def send(self) -> str:
        return "sent_off"


def test_a_derived_class_does_the_work_and_waits_for_the_user() -> None:
    with sync.open("memory://") as ks:
        machine = Booking("1", ks, prices=[3, 4])
        machine.transition("new_task", goal="Book flight to NYC")

        assert machine.run(wait_s=0) == "waiting_feedback"
        Booking("1", ks, prices=[]).provide("the cheap one")
        assert machine.run() == machine.current_state == "done"
        assert machine.data["found"] == [3, 4] and machine.data["feedback"] == "the cheap one"
        assert [one.event for one in machine.history()][-2:] == ["step_complete", "task_complete"]
        assert repr(machine).startswith("<Booking '1' in ")


def test_a_derived_class_has_a_table_of_its_own() -> None:
    with sync.open("memory://") as ks:
        order = Order("1", persistence=ks)

        assert order.run(wait_s=0) == "asking"
        with pytest.raises(TransitionError, match=r"asking \+ new_task"):
            order.transition("new_task")
        order.provide("yes")
        assert order.run() == "sent"
        assert order.data == {"price": 12, "feedback": "yes"}
        assert "    open --> asking: price_known" in order.diagram().splitlines()


def test_work_that_would_have_to_be_awaited_is_refused_when_it_is_given() -> None:
    class Waiting(sync.AgentStateMachine):
        async def plan(self) -> None: ...

    with pytest.raises(InvalidError, match="coroutine function"):
        Waiting("1", persistence="memory://")


def test_a_machine_of_a_derived_class_is_sent_with_what_it_has_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/machine.db"
    with Booking("1", url, prices=[5]) as machine:
        machine.transition("new_task")
        with pickle.loads(pickle.dumps(machine)) as again:
            assert again.run(wait_s=0) == "waiting_feedback"
            again.provide("yes")
            assert again.run() == "done"

        machine.refresh()
        assert machine.data["found"] == [5]


def test_a_machine_without_work_of_its_own_is_gone_when_it_is_dropped() -> None:
    gc.disable()
    try:
        with sync.open("memory://") as ks:
            machine = sync.AgentStateMachine("1", persistence=ks)
            machine.refresh()
            dropped = weakref.ref(machine)
            del machine

            assert dropped() is None
    finally:
        gc.enable()
