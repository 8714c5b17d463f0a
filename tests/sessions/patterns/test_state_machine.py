"""A state machine: the lifecycle of a task as it was published. More: test_machine.py."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate import AgentStateMachine, StepResult
from keepstate.engine.space.keepstate import Keepstate


class TaskMachine(AgentStateMachine):
    """Needs the user once, then goes through its steps."""

    async def plan(self) -> None:
        self.data["steps"] = ["search", "compare", "book"]

    async def execute_step(self) -> StepResult:
        if "feedback" not in self.data:
            return StepResult(needs_input=True)
        self.data["steps"].pop(0)
        return StepResult(complete=not self.data["steps"])


async def test_a_task_goes_its_way_through_any_number_of_processes(ks: Keepstate) -> None:
    def machine(**options: Any) -> TaskMachine:
        return TaskMachine("task", persistence=ks, **options)

    assert await machine().transition("new_task", goal="Book flight to NYC") == "planning"
    assert await machine().run(wait_s=0) == "waiting_feedback"
    await machine().provide("aisle")
    assert await machine().run() == "done"

    done = machine()
    await done.refresh()
    assert done.data == {"goal": "Book flight to NYC", "steps": [], "feedback": "aisle"}
    assert [(each.event, each.target) for each in await done.history()] == [
        ("new_task", "planning"),
        ("plan_ready", "executing"),
        ("needs_input", "waiting_feedback"),
        ("input_received", "executing"),
        ("step_complete", "executing"),
        ("step_complete", "executing"),
        ("task_complete", "done"),
    ]


async def test_an_event_that_does_not_fit_is_a_value_error_that_names_both(ks: Keepstate) -> None:
    machine = TaskMachine("task", persistence=ks)

    with pytest.raises(ValueError, match=r"Invalid transition: idle \+ task_complete"):
        await machine.transition("task_complete")
    assert machine.current_state == "idle" and await machine.history() == []
