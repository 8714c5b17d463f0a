"""What processes on one store do to one another: nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

import keepstate
from keepstate.engine.documents.watch import DocumentChange
from tests.processes import PROCESSES, Program, run

COUNTING = PROCESSES / "count_document.py"


def count_up(url: str, times: int) -> float:
    """Let 4 processes count one document up so often each, and return how long the longest update took."""
    workers = [Program(COUNTING, url, times, stdout=subprocess.PIPE) for _ in range(4)]
    return max(float(worker.communicate(timeout=100)[0]) for worker in workers)


@pytest.mark.parametrize(
    "times", [pytest.param(150, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.deep)]
)
async def test_four_processes_lose_no_increment(shared_url: str, times: int) -> None:
    count_up(shared_url, times)

    async with keepstate.open(shared_url) as ks:
        assert await ks.space("shared").documents.get("n") == 4 * times


@pytest.mark.timed
def test_no_update_of_four_processes_on_sqlite_waits_over_half_a_second(tmp_path: Path) -> None:
    # The best of three, as a machine that does something else now and then makes everybody wait.
    longest_s = [count_up(f"sqlite:///{tmp_path}/{number}.db", 500) for number in range(3)]

    assert min(longest_s) < 0.5, longest_s


@pytest.mark.slow
async def test_eight_processes_complete_each_of_a_hundred_tasks_once(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        queue = ks.space("shared").queue
        for number in range(100):
            await queue.put(number, id=f"t{number}")
        command = (PROCESSES / "complete_tasks.py", shared_url)
        workers = [Program(*command, f"w{n}", stdout=subprocess.PIPE) for n in range(8)]
        done = [name for worker in workers for name in worker.communicate(timeout=100)[0].split()]

        assert sorted(done) == sorted(f"t{number}" for number in range(100))
        assert (await queue.counts())["done"] == 100


@pytest.mark.slow
async def test_killed_workers_complete_each_task_once(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        space = ks.space("shared")
        for number in range(60):
            await space.queue.put(number, id=f"t{number}", max_attempts=100)
        workers = [Program(PROCESSES / "run_worker.py", shared_url, 60) for _ in range(2)]
        for _ in range(6):
            await asyncio.sleep(0.3)
            workers[0].kill()
            workers[0].wait()
            workers = [*workers[1:], Program(PROCESSES / "run_worker.py", shared_url, 60)]
        await space.queue.wait_empty(90)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait() == 0

        events = [event.data for event in await space.events.read(limit=1000)]
        assert sorted(events) == sorted(f"t{number}" for number in range(60))
        assert (await space.queue.counts())["done"] == 60


@pytest.mark.slow
async def test_a_kill_between_parts_and_their_entry_leaves_nothing_visible(shared_url: str) -> None:
    killed = run(PROCESSES / "die_between_parts.py", shared_url, check=False)

    async with keepstate.open(shared_url) as ks:
        assert killed.returncode == -signal.SIGKILL
        assert await ks.space("run/1").documents.get("large") is None
        assert [key async for key in ks.space("run/1").documents.keys("*")] == []
        assert await ks.sweep() == 20


@pytest.mark.slow
async def test_a_watch_misses_nothing_of_what_another_process_changes_in_three_seconds(
    shared_url: str,
) -> None:
    found: list[DocumentChange] = []
    async with keepstate.open(shared_url) as ks, ks.space("shared").documents.watch() as changes:
        command = (PROCESSES / "change_documents.py", shared_url, 3)
        writer = Program(*command, stdout=subprocess.PIPE)
        async with asyncio.timeout(60):
            async for change in changes:
                found.append(change)
                if change.key == "end":
                    break
        steps = int(writer.communicate(timeout=60)[0])
        reached = changes.revision

    expected = [change for step in range(steps) for change in changes_of(step)]
    end = DocumentChange("end", "created", None, steps, steps + 1)
    assert sorted(found[:-1], key=lambda change: (change.revision, change.key)) == expected
    assert [change.revision for change in found] == [change.revision for change in [*expected, end]]
    assert (found[-1], reached) == (end, steps + 1)


def changes_of(step: int) -> list[DocumentChange]:
    """Return what a watch must say of a step of the writing process."""
    revision, before = step + 1, step - 2 if step % 3 == 0 else step - 1
    if step % 3 == 2:
        return [DocumentChange("b", "deleted", step - 2, None, revision)]
    a = (
        DocumentChange("a", "updated", before, step, revision)
        if step
        else DocumentChange("a", "created", None, 0, 1)
    )
    return [a] if step % 3 else [a, DocumentChange("b", "created", None, step, revision)]
