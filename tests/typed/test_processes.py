"""Processes that do runs on one thread, with 16 parallel tools each: no update is lost, whoever is killed."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

import keepstate
from keepstate import AgentRun, KeyedState
from tests.processes import PROCESSES, Program
from tests.processes.step_through_run import KEYS, TOOLS, Calls, Last, Sum, main

SCRIPT = PROCESSES / "step_through_run.py"


def stepped(url: str, steps: int, *, timeout_s: float) -> None:
    """Let two processes take so many steps each on one thread, and asserts that all of it was kept."""
    workers = [Program(SCRIPT, url, run_id, steps) for run_id in ("r1", "r2")]
    assert [worker.wait(timeout=timeout_s) for worker in workers] == [0, 0]
    asyncio.run(kept(url, steps))


async def kept(url: str, steps: int) -> None:
    """Assert that all was kept of two runs of so many steps each."""
    async with KeyedState("t", persistence=url, keys=KEYS) as state:
        total = 2 * len(range(0, steps, 10))
        assert state.read(Calls) == 2 * TOOLS * steps
        assert state.read(Last) == {
            f"{run}/{number}": steps - 1 for run in ("r1", "r2") for number in range(TOOLS)
        }
        assert state.read(Sum) == total
        assert 2 * steps <= state.revision <= 2 * steps + total


@pytest.mark.slow
def test_two_processes_lose_no_update_of_their_tools(shared_url: str) -> None:
    stepped(shared_url, 20, timeout_s=100)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_two_processes_lose_no_update_of_their_tools_in_a_thousand_steps(shared_url: str) -> None:
    stepped(shared_url, 1000, timeout_s=850)


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_two_runs_of_one_process_lose_no_update_in_a_thousand_steps(scheme: str, tmp_path: Path) -> None:
    url = "memory://a thousand steps" if scheme == "memory" else f"file:///{tmp_path}/state"

    async def both() -> None:
        async with keepstate.open(url):  # stores that are opened twice are one
            await asyncio.gather(main(url, "r1", 1000), main(url, "r2", 1000))
            await kept(url, 1000)

    asyncio.run(both())


@pytest.mark.slow
def test_of_a_step_whose_process_is_killed_all_is_there_or_nothing(shared_url: str) -> None:
    async def check() -> int:
        async with AgentRun(persistence=shared_url, keys=KEYS) as run:
            steps = (await run.start_run("t", "r", resume=True, wait_s=30)).steps
            assert (run.read(Calls) or 0) == TOOLS * steps
            assert (run.read(Sum) or 0) == len(range(0, steps, 10))
            assert (run.read(Last) or {}) == {f"r/{number}": steps - 1 for number in range(TOOLS) if steps}
            assert [event.data for event in await run.messages(limit=10_000)] == list(range(steps))
            assert run.record.messages == steps
            return steps

    taken = [0]
    for after_s in (0.0, 0.04, 0.12):
        with Program(SCRIPT, shared_url, "r", "10000", "0.5", stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun\n"
            time.sleep(after_s)
            worker.kill()
        taken.append(asyncio.run(check()))

    assert taken == sorted(taken)
    assert taken[-1] > 0
