"""Eight processes share the tasks of a team and are killed at random: each task is completed exactly once."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import keepstate
from keepstate import AgentCoordinationState, OrchestrationStateManager, TaskQueueState, TeamState
from tests.processes import Program

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 8
DEEP = [pytest.mark.deep, pytest.mark.timeout(600)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tasks", "kills"),
    [
        ("sqlite", 150, 8),
        pytest.param("sqlite", 1_000, 60, marks=DEEP),
        pytest.param("redis", 1_000, 60, marks=DEEP),
        pytest.param("postgres", 1_000, 60, marks=DEEP),
    ],
)
def test_killed_workers_complete_each_task_exactly_once(
    kind: str, tasks: int, kills: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/team.db?durability=normal"
    if kind != "sqlite":
        url = request.getfixturevalue(f"{kind}_url")
    asyncio.run(form(url, tasks))

    killed = let_work(url, tasks, kills)

    counts, ended = asyncio.run(seen(url))
    assert counts == {f"count/task {number}": 1 for number in range(tasks)}
    assert ended == (0, 0, tasks, 0)
    assert killed >= kills // 2  # else it proved nothing


async def form(url: str, tasks: int) -> None:
    agents = {f"worker {number}": AgentCoordinationState(f"worker {number}") for number in range(WORKERS)}
    pending = [{"id": f"task {number}"} for number in range(tasks)]
    async with keepstate.open(url) as ks:
        teams = OrchestrationStateManager(space=ks.space("run/1"))
        await teams.create_team(TeamState("t", agents, TaskQueueState(pending=pending)))


def let_work(url: str, tasks: int, kills: int) -> int:
    """Let the workers work until all is done, and return how many were killed on the way."""
    dice, killed = random.Random(7), 0
    deadline_s = time.monotonic() + 300
    with workers(url, tasks) as running:
        while any(worker.poll() is None for worker in running.values()):
            assert time.monotonic() < deadline_s, "the workers do not come to an end"
            time.sleep(dice.uniform(0.05, 0.25))
            number = dice.randrange(WORKERS)
            if killed < kills and running[number].poll() is None:
                running[number].kill()
                running[number].wait()
                killed += 1
                running[number] = begin(url, number, tasks)
        assert [worker.returncode for worker in running.values()] == [0] * WORKERS
    return killed


@contextmanager
def workers(url: str, tasks: int) -> Iterator[dict[int, Program]]:
    running = {number: begin(url, number, tasks) for number in range(WORKERS)}
    try:
        yield running
    finally:
        for worker in running.values():
            worker.kill()
            worker.wait()


def begin(url: str, number: int, tasks: int) -> Program:
    return Program("-m", "tests.processes.work_in_team", url, f"worker {number}", tasks)


async def seen(url: str) -> tuple[dict[str, int], tuple[int, int, int, int]]:
    """Return how often each task was completed, and how many stand where."""
    async with keepstate.open(url) as ks:
        run = ks.space("run/1")
        queue = await OrchestrationStateManager(space=run).get_queue_status("t")
        counts = {name: count async for name, count in run.documents.items("count/*")}
        lengths = (len(queue.pending), len(queue.in_progress), len(queue.completed), len(queue.dead))
        return counts, lengths
