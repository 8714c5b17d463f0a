"""Tasks of five steps, and a kill of a worker every 200 ms: each task ends once, and no step repeats.

A worker is killed only after it has recorded some steps. So the run makes progress with every kill, also on
a machine that takes longer than 200 ms to start a worker; there, some of the kills are left out.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

import keepstate
from keepstate import NOT_DONE, StepUnknownError
from keepstate._clock import SYSTEM_CLOCK
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program
from tests.processes.work_on_steps import LIMITS, SPACE
from tests.tally import Tally, first_seed

WORKERS = 4
KILL_EVERY_S = 0.2
KEYS = 20
STEPS = 5
SHARE_LIMITED = 8
"""One of so many tasks is of the kind with limits."""
LEAST_DONE = 6
"""Steps that a worker has recorded before it may be killed, so that the number of kills has a bound."""
MOST_WAITED = 8
"""The bound of waiting: so many begun tasks of each key, on average, between two of a key that has more."""


@dataclass
class Workers:
    """Some workers on one store, each in a process of its own.

    Attributes:
        kills: The number of those that were killed.
        beats: The number of times at which one was to be killed.
    """

    url: str
    folder: Path
    random: Random
    running: dict[str, Program] = field(default_factory=dict[str, Program])
    kills: int = 0
    beats: int = 0

    def keep_running(self) -> None:
        """Start workers until there are enough."""
        ended = {name: worker.poll() for name, worker in self.running.items() if worker.poll() is not None}
        assert not ended, f"a worker ended by itself: {ended}"
        while len(self.running) < WORKERS:
            name = f"worker-{self.kills + len(self.running)}"
            self.running[name] = Program(PROCESSES / "work_on_steps.py", self.url, name, self.folder)

    def kill_one(self) -> None:
        """Kill a worker that has done some steps, and start another one."""
        self.beats += 1
        able = [name for name in self.running if len(self.notes(name, "done")) >= LEAST_DONE]
        if able:
            self.kill(self.random.choice(able))

    def kill(self, name: str) -> None:
        """Kill a worker, and start another one."""
        worker = self.running.pop(name)
        worker.kill()
        worker.wait()
        self.kills += 1
        self.keep_running()

    def stop(self) -> None:
        """Let the workers end by themselves; one that has just been started ends at once."""
        for worker in self.running.values():
            worker.send_signal(signal.SIGTERM)
        assert {worker.wait(60) for worker in self.running.values()} <= {0, -signal.SIGTERM}

    def end(self) -> None:
        """Kill those that still run."""
        for worker in self.running.values():
            worker.kill()
            worker.wait()

    def notes(self, name: str, what: str) -> list[list[object]]:
        """Return the notes of one kind of a worker; a kill may have cut off the last line."""
        path = self.folder / f"notes-{name}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [rest for kind, *rest in map(json.loads, lines) if kind == what]

    def all_notes(self, what: str) -> list[list[object]]:
        """Return the notes of one kind of all workers."""
        names = sorted(path.name.removeprefix("notes-") for path in self.folder.glob("notes-*"))
        return [note for name in names for note in self.notes(name, what)]


async def put_tasks(space: keepstate.Space, number: int) -> None:
    """Put tasks: one of eight is limited, and the others have keys that take turns."""
    await space.queue.configure(limits=LIMITS)
    limited = number // SHARE_LIMITED
    for begin in range(0, number, 50):
        ids = range(begin, min(begin + 50, number))
        await asyncio.gather(
            *(
                space.queue.put(
                    id,
                    id=f"t{id}",
                    kind="limited" if id < limited else "in turn",
                    key=f"k{id % 7}" if id < limited else f"k{(id - limited) * KEYS // (number - limited)}",
                    max_attempts=10_000,
                )
                for id in ids
            )
        )


def was_paid(workers: Workers, id: str) -> bool:
    """Return whether a task's payment was made; a kill may come between the file and its content."""
    path = workers.folder / f"paid-{id}"
    return path.exists() and path.stat().st_size > 0


async def settle(queue: keepstate.Queue, workers: Workers) -> None:
    """Look after the dead tasks, as a person does: only a worker that is gone pays no more."""
    for info in await queue.dead(limit=100):
        assert info.error is not None and info.error.startswith(StepUnknownError.__name__), info
        for name in {str(attempt.worker) for attempt in await queue.attempts(info.id)} & {*workers.running}:
            if not was_paid(workers, info.id) and name != info.worker:
                workers.kill(name)
        await queue.settle(info.id, "pay", "paid" if was_paid(workers, info.id) else NOT_DONE)
        await queue.requeue(info.id)


async def look_after(queue: keepstate.Queue, workers: Workers, number: int) -> None:
    """Send each waiting task its message, and settle the dead ones, until all tasks are done."""
    while (await queue.counts())["done"] < number:
        waiting = await queue.list("waiting", limit=200)
        await asyncio.gather(*(queue.send(info.id, "go", "now", send_id="once") for info in waiting))
        await settle(queue, workers)
        await asyncio.sleep(KILL_EVERY_S)


async def work_under_kills(space: keepstate.Space, workers: Workers, number: int) -> None:
    """Kill workers until all tasks are done."""
    workers.keep_running()
    looking = asyncio.create_task(look_after(space.queue, workers, number))
    next_s = SYSTEM_CLOCK.monotonic_s()
    while not looking.done():
        next_s = max(next_s + KILL_EVERY_S, SYSTEM_CLOCK.monotonic_s())
        await asyncio.wait([looking], timeout=next_s - SYSTEM_CLOCK.monotonic_s())
        workers.kill_one()
    await looking
    workers.stop()


def longest_wait(begins: list[list[object]]) -> int:
    """Return the most tasks that began between two of a key that had more tasks ready."""
    order = sorted((int(str(token)), str(key), str(id)) for id, key, token in begins)
    firsts: dict[str, dict[str, int]] = defaultdict(dict)
    for place, (_, key, id) in enumerate(order):
        firsts[key].setdefault(id, place)
    last = {key: max(places.values()) for key, places in firsts.items()}
    longest, before = 0, dict.fromkeys(last, -1)
    for place, (_, key, _) in enumerate(order):
        if place <= last[key]:
            longest = max(longest, place - before[key])
            before[key] = place
    return longest


async def count_faults(space: keepstate.Space, folder: Path, number: int) -> Counter[str]:
    """Return how many tasks were lost, and how many steps or ends were applied twice."""
    found = Counter[str](lost=0, applied_twice=0)
    ended = [event.data for event in await space.events.read(limit=2 * number)]
    found["lost"] += sum(f"t{id}" not in ended for id in range(number // SHARE_LIMITED))
    found["applied_twice"] += len(ended) - len({*ended})
    for id in map("t{}".format, range(number)):
        result = await space.queue.result(id)
        found["lost"] += result != [f"{id} first", 1, "paid", "now", f"{id} last"]
        found["applied_twice"] += await space.documents.get(f"count/{id}") != 1
        found["applied_twice"] += len((folder / f"paid-{id}").read_bytes()) != 1
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
@pytest.mark.parametrize(
    ("number", "least_kills"),
    [
        pytest.param(32, 1, id="short", marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
        pytest.param(1_000, 50, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(1500)]),
    ],
)
def test_each_task_ends_once_and_no_step_repeats(
    kind: str, number: int, least_kills: int, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url, folder = url_of(kind, request, tmp_path), tmp_path / "notes"
    folder.mkdir()
    workers = Workers(url, folder, Random(first_seed()))

    async def run() -> tuple[Counter[str], float]:
        async with keepstate.open(url) as ks:
            space = ks.space(SPACE)
            await put_tasks(space, number)
            begun_s = SYSTEM_CLOCK.monotonic_s()
            await work_under_kills(space, workers, number)
            spent_s = SYSTEM_CLOCK.monotonic_s() - begun_s
            return await count_faults(space, folder, number), spent_s

    try:
        found, spent_s = asyncio.run(run())
    finally:
        workers.end()

    waited = longest_wait(workers.all_notes("began"))
    print(
        f"{number} tasks on {kind}: {workers.kills} kills at {workers.beats} beats of {KILL_EVERY_S} s, "
        f"{spent_s:.1f} s; a key waited for {waited} tasks, of {KEYS} keys"
    )
    assert found == {"lost": 0, "applied_twice": 0}
    assert workers.all_notes("exceeded") == []
    assert waited <= MOST_WAITED * KEYS
    assert workers.kills >= least_kills
    done = {"tasks": number, "task_steps": number * STEPS, "worker_kills": workers.kills}
    tally(f"{NAMES[kind]}: steps under kills", **done, exceeded=0, disordered=0, **found)


NAMES = {"sqlite": "SQLite, full", "postgres": "PostgreSQL", "redis": "Redis"}


def test_a_line_that_starves_is_found() -> None:
    """Without turns, the last key would wait for all tasks of the others."""
    tasks = [[f"{key}/{number}", f"k{key}", key * 38 + number] for key in range(KEYS) for number in range(38)]

    assert longest_wait([*tasks]) > MOST_WAITED * KEYS
    assert longest_wait([[id, key, int(str(id).partition("/")[2])] for id, key, _ in tasks]) <= 2 * KEYS
