"""Two hundred tasks of five steps, and a kill every 200 ms: each ends once, and no step repeats."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from pathlib import Path

import pytest

import keepstate
from keepstate._clock import SYSTEM_CLOCK
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program

WORKERS = 4
KILL_EVERY_S = 0.2
KILLS_S = 15.0
LONGEST_S = 300.0


def work_under_kills(url: str, folder: Path, tasks: int) -> int:
    """Run workers until no task is left, kill one every 200 ms at first, and return the kills."""

    async def put() -> None:
        async with keepstate.open(url) as ks:
            queue = ks.space("pool").queue
            for number in range(tasks):
                await queue.put(number, id=f"t{number}", max_attempts=10_000)

    asyncio.run(put())
    names = iter(range(1_000_000))

    def start() -> Program:
        return Program(
            PROCESSES / "work_on_steps.py", url, f"w{next(names)}", folder, stderr=subprocess.DEVNULL
        )

    choice, kills, begun_s = random.Random(7), 0, SYSTEM_CLOCK.monotonic_s()
    workers = [start() for _ in range(WORKERS)]
    try:
        while (spent_s := SYSTEM_CLOCK.monotonic_s() - begun_s) < LONGEST_S:
            time.sleep(KILL_EVERY_S)
            if any(worker.poll() == 0 for worker in workers):
                return kills
            if spent_s > KILLS_S:
                continue
            chosen = choice.randrange(WORKERS)
            if workers[chosen].poll() is None:
                workers[chosen].kill()
                kills += 1
            workers[chosen].wait()
            workers[chosen] = start()
        pytest.fail(f"tasks were left after {LONGEST_S:g} s and {kills} kills")
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()


@pytest.mark.deep
@pytest.mark.timeout(420)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_each_task_ends_once_and_no_step_repeats(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, tasks = url_of(kind, request, tmp_path), 200
    folder = tmp_path / "paid"
    folder.mkdir()

    kills = work_under_kills(url, folder, tasks)

    async def check() -> None:
        async with keepstate.open(url) as ks:
            space = ks.space("pool")
            assert (await space.queue.counts())["done"] == tasks
            for number in range(tasks):
                id = f"t{number}"
                result = await space.queue.result(id)
                assert result == [f"{id} first", 1, "paid", "now", f"{id} last"]
                assert await space.documents.get(f"count/{id}") == 1
                assert len((folder / id).read_bytes()) == 1

    asyncio.run(check())
    assert kills > 0
    print(f"{tasks} tasks on {kind}: {kills} kills")
