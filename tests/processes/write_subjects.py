"""Changes random subjects, lists and drops them, until it is killed; prints a line for each step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from keepstate import sync
from keepstate.errors import KeepstateError
from keepstate.managers import AgentCheckpoint, TeamState, WorkflowState, WorkflowStatus
from keepstate.stores.wrappers.sealing import KeyRing
from keepstate.sync.managers.agents import AgentStateStore
from keepstate.sync.managers.teams import OrchestrationStateManager
from keepstate.sync.managers.workflows import WorkflowStateManager
from keepstate.sync.sessions.machine import AgentStateMachine
from keepstate.sync.sessions.session import Session
from keepstate.sync.sessions.threads import Threads

KEY = bytes(range(32))
SHARED = "shared"


def main(url: str, seed: str, is_encrypted: str) -> None:
    """Run until killed."""
    random = Random(seed)
    options: dict[str, Any] = {"encryption": KeyRing(KEY)} if is_encrypted == "yes" else {}
    with sync.open(url, **options) as ks:
        while True:
            step = random.choice(STEPS)
            with suppress(KeepstateError):  # such as a transition that a machine does not have
                step(ks, random)
            print(step.__name__, flush=True)


def _storage(ks: Any, random: Random) -> dict[str, Any]:
    return {"space": ks.space(SHARED)} if random.random() < 0.3 else {"persistence": ks}


def _id(random: Random) -> str:
    return f"n{random.randrange(4)}"


def append(ks: Any, random: Random) -> None:
    session = Session(_id(random), user_id="ann", **_storage(ks, random))
    session.conversation.append({"role": "user", "content": "Hello"})


def end(ks: Any, random: Random) -> None:
    Session(_id(random), user_id="ann", **_storage(ks, random)).end()


def title(ks: Any, random: Random) -> None:
    threads = Threads(**_storage(ks, random))
    threads.create(_id(random), metadata={"title": f"Trip {random.randrange(9)}"})


def delete_thread(ks: Any, random: Random) -> None:
    Threads(**_storage(ks, random)).delete(_id(random))


def checkpoint(ks: Any, random: Random) -> None:
    AgentStateStore(**_storage(ks, random)).save_checkpoint(AgentCheckpoint(_id(random), "c", 1))


def delete_agent(ks: Any, random: Random) -> None:
    AgentStateStore(**_storage(ks, random)).delete(_id(random))


def workflow(ks: Any, random: Random) -> None:
    workflows, id = WorkflowStateManager(**_storage(ks, random)), _id(random)
    workflows.create(WorkflowState(id, status=random.choice([*WorkflowStatus])))


def delete_workflow(ks: Any, random: Random) -> None:
    WorkflowStateManager(**_storage(ks, random)).delete(_id(random))


def team(ks: Any, random: Random) -> None:
    OrchestrationStateManager(**_storage(ks, random)).create_team(TeamState(_id(random)))


def transition(ks: Any, random: Random) -> None:
    machine = AgentStateMachine(_id(random), **_storage(ks, random))
    machine.transition(random.choice(["new_task", "plan_ready", "complete", "error"]))


def put_task(ks: Any, random: Random) -> None:
    queue = ks.space(random.choice([SHARED, "pool"])).queue
    delay_s = random.choice([0, 0, 5, 3_600])
    queue.put("x", kind=random.choice(["mail", "report"]), delay_s=delay_s, max_attempts=1)


def work(ks: Any, random: Random) -> None:
    for task in ks.space(random.choice([SHARED, "pool"])).queue.claim("worker", lease_s=60, count=2):
        random.choice([task.complete, task.release, lambda t=task: t.fail("no"), lambda: None])()


def schedule(ks: Any, random: Random) -> None:
    schedules = ks.space("pool").schedules
    schedules.put("often", every_s=60, kind="tick")
    schedules.run_now("often")


def drop(ks: Any, random: Random) -> None:
    kind = random.choice(["session", "thread", "agent", "workflow", "team", "machine"])
    ks.drop(random.choice([f"{kind}/{_id(random)}", SHARED, "pool"]))


def find(ks: Any, random: Random) -> None:
    ks.find()


def deliver(ks: Any, random: Random) -> None:
    ks.deliver()


STEPS: list[Callable[[Any, Random], None]] = [
    *(
        append,
        end,
        title,
        delete_thread,
        checkpoint,
        delete_agent,
        workflow,
        delete_workflow,
        team,
        transition,
    ),
    *(put_task, put_task, work, work, schedule, drop, find, deliver),
]


if __name__ == "__main__":
    main(*sys.argv[1:])
