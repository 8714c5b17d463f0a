"""Runs of state machines: one at a time, through heartbeats that are lost, and killed at any moment."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keepstate import AgentStateMachine, sync
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ConflictError, StoreUnavailableError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome
from keepstate.stores.wrappers.wrapper import StoreWrapper
from tests.processes import Program, book_flight, run
from tests.sessions.test_machine import Booking


async def test_only_one_runs_a_machine_at_a_time(ks: Keepstate) -> None:
    held, may_end = asyncio.Event(), asyncio.Event()

    async def slow(data: dict[str, Any]) -> str:
        held.set()
        await may_end.wait()
        return "plan_ready"

    machine = AgentStateMachine("1", persistence=ks, work={"planning": slow})
    await machine.transition("new_task")
    running = asyncio.create_task(machine.run())
    await held.wait()

    with pytest.raises(ConflictError, match=f"is held by process {os.getpid()} on "):
        await Booking("1", persistence=ks).run()
    may_end.set()
    assert await running == "executing"


async def test_who_waits_for_his_turn_has_it_when_the_one_that_was_killed_is_over(ks: Keepstate) -> None:
    machine = Booking("1", persistence=ks)
    await machine.transition("new_task")
    leases = ks.space("machine/1").by("killed").leases
    held = await leases.acquire("machine", 600)

    with pytest.raises(ConflictError, match="is held by killed"):
        await machine.run(wait_s=0)
    await held.release()
    await leases.acquire("machine", 0.4)
    assert await machine.run(wait_s=0, turn_s=20) == "waiting_feedback"


async def test_a_machine_that_is_done_asks_for_no_turn(ks: Keepstate) -> None:
    machine = AgentStateMachine(
        "1", persistence=ks, states=["open", "shut"], transitions={("open", "x"): "shut"}
    )
    await machine.transition("x")
    await ks.space("machine/1").leases.acquire("machine", 60)

    assert await machine.run() == "shut"


class LeasesAway(StoreWrapper):
    """A store that cannot be reached for writes of leases, once it was told so, for some times."""

    away = 0
    refused = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        is_lease = any(write.key.startswith(layout.LEASES) for batch in batches for write in batch.writes)
        if is_lease and self.away > 0:
            self.away, self.refused = self.away - 1, self.refused + 1
            raise StoreUnavailableError("the server restarts; try later")
        return await super().apply(batches)


@pytest.mark.parametrize("away", [1, 1_000])
async def test_a_run_outlasts_heartbeats_that_could_not_be_sent(
    away: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = LeasesAway(await MemoryStore().open())

    async def plan(data: dict[str, Any]) -> None:
        store.away = away
        while store.refused == 0:
            await asyncio.sleep(0.01)

    machine = AgentStateMachine("1", persistence=store, work={"planning": plan})
    await machine.transition("new_task")

    assert await machine.run(lease_s=1.5) == "executing"
    assert "and will be retried" in caplog.text
    assert ("Releasing" in caplog.text) == (away > 1)
    await store.close()


@pytest.mark.parametrize(
    "kills", [pytest.param(8, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.deep)]
)
def test_a_run_that_is_killed_at_random_makes_each_transition_once(tmp_path: Path, kills: int) -> None:
    url = f"sqlite:///{tmp_path}/machine.db"
    chance = random.Random(3)
    with sync.open(url) as ks:
        machine = sync.AgentStateMachine("booking", persistence=ks, work=book_flight.WORK)
        machine.transition("new_task")
        for _ in range(kills):
            with Program(book_flight.__file__, url, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                time.sleep(chance.uniform(0, 0.05))
                process.kill()
        run(book_flight.__file__, url)

        assert machine.refresh() == "done"
        assert machine.data == {"steps": book_flight.STEPS, "done": book_flight.STEPS, "feedback": "yes"}
        made = machine.history()
        assert [one.number for one in made] == list(range(1, len(made) + 1))
        assert [one.event for one in made] == [
            "new_task",
            "plan_ready",
            *["step_complete"] * 6,
            "needs_input",
            "input_received",
            *["step_complete"] * 5,
            "task_complete",
        ]
