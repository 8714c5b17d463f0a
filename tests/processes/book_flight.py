"""An agent that books a flight in steps, and a process that runs it: `python book_flight.py URL`."""

import sys
from typing import Any

from keepstate import StepResult, sync

STEPS = 12


def plan(data: dict[str, Any]) -> None:
    """Say how many steps there are."""
    data["steps"] = STEPS


def execute_step(data: dict[str, Any]) -> StepResult:
    """Do one step; halfway it needs the user."""
    if data.get("done", 0) == STEPS // 2 and "feedback" not in data:
        return StepResult(needs_input=True)
    data["done"] = data.get("done", 0) + 1
    return StepResult(complete=data["done"] == data["steps"])


WORK = {"planning": plan, "executing": execute_step}


if __name__ == "__main__":
    with sync.open(sys.argv[1]) as ks:
        machine = sync.AgentStateMachine("booking", persistence=ks, work=WORK)
        machine.refresh()
        print("ready", flush=True)
        while machine.current_state != "done":
            machine.run(wait_s=0, lease_s=0.3, turn_s=20)
            if machine.refresh() == "waiting_feedback":
                machine.provide("yes")
