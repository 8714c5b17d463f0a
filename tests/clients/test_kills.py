"""A worker in TypeScript completes each task once, and repeats no step, whatever processes are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

import keepstate
from keepstate.server.running import bind
from tests.clients.conftest import Backend, prepare, serving
from tests.tally import Tally, first_seed
from tools.client import CLIENT

SPACE = "work"
WORKERS = 2
STEPS = 4
NOTES_A_KILL = 12
"""Results of steps between two kills, so that the number of kills does not depend on the machine."""
KILLS_A_SERVER = 6
"""One of so many kills is one of the server."""
POLL_S = 0.1


@dataclass
class Company:
    """A server and its workers, in processes that are killed and started again.

    Attributes:
        store: The URL of the store.
        secret: The secret of the workers' key.
        folder: The folder of the workers' notes.
        kills: The number of killed processes of each kind.
    """

    store: str
    secret: str
    folder: Path
    random: Random
    kills: Counter[str] = field(default_factory=Counter[str])
    workers: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])
    _server: ExitStack = field(default_factory=ExitStack)
    backend: Backend | None = None

    def start(self) -> None:
        """Start what does not run."""
        if self.backend is None:
            self.backend = self._server.enter_context(serving(self.store, self.secret, port=self._port()))
        while len(self.workers) < WORKERS:
            name = f"notes-{self.kills['workers'] + len(self.workers)}"
            words = ["node", CLIENT / "build" / "work_on_steps.js", SPACE, self.folder / name]
            environment = {**os.environ, **self.backend.environment}
            self.workers.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))

    def kill_one(self) -> None:
        """Kill a worker, or the server, and start another one."""
        if self.kills.total() % KILLS_A_SERVER == 1:
            self._server.close()
            self.backend = None
            self.kills["servers"] += 1
        else:
            worker = self.workers.pop(self.random.randrange(len(self.workers)))
            worker.kill()
            worker.communicate()
            self.kills["workers"] += 1
        self.start()

    def stop(self) -> None:
        """Ask the workers to end; one that has just been started ends without a report."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            told, _ = worker.communicate(timeout=60)
            ended = (worker.returncode, json.loads(told)["ended"] if told else "")
            assert ended in {(0, "stopped"), (-signal.SIGTERM, "")}, ended

    def end(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            worker.kill()
            worker.communicate()
        self._server.close()

    def _port(self) -> int:
        if not hasattr(self, "_fixed_port"):
            with bind("127.0.0.1", 0) as listener:
                self._fixed_port = int(listener.getsockname()[1])
        return self._fixed_port

    def notes(self) -> Iterator[tuple[str, str, str]]:
        """Yield each result that a step has returned; a kill may have cut off the last line."""
        for path in self.folder.glob("notes-*"):
            for line in path.read_text().split("\n")[:-1]:
                task, step, result = json.loads(line)
                yield task, step, result


@contextmanager
def company(store: str, secret: str, folder: Path) -> Iterator[Company]:
    found = Company(store, secret, folder, Random(first_seed()))
    try:
        yield found
    finally:
        found.end()


async def faults(space: keepstate.Space, notes: Iterator[tuple[str, str, str]], number: int) -> Counter[str]:
    """Return how many tasks were lost, and how many steps or writes were done twice."""
    found = Counter[str](lost=0, repeated=0)
    returned: dict[tuple[str, str], set[str]] = defaultdict(set)
    for task, step, result in notes:
        returned[task, step].add(result)
    found["repeated"] += sum(len(results) > 1 for results in returned.values())
    counted = [event.data for event in await space.events.read(stream="counted", limit=2 * number)]
    found["repeated"] += len(counted) - len(set(counted))
    for id in map("t{}".format, range(number)):
        result = await space.queue.result(id)
        found["lost"] += len(result) != 3 or await space.documents.get(f"count/{id}") != result
        for step, value in zip(("first", "once", "last"), result, strict=True):
            found["lost"] += returned[id, step] - {value} != set()
    return found


@pytest.mark.parametrize(
    ("number", "least_kills"),
    [
        pytest.param(16, 3, id="short", marks=[pytest.mark.slow]),
        pytest.param(1_000, 30, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(1500)]),
    ],
)
def test_each_task_ends_once_and_no_step_repeats(
    number: int, least_kills: int, client: Path, tmp_path: Path, tally: Tally
) -> None:
    store, folder = f"sqlite:///{tmp_path}/keepstate.db", tmp_path / "notes"
    folder.mkdir()

    async def run(found: Company) -> Counter[str]:
        async with keepstate.open(store) as ks:
            space = ks.space(SPACE)
            for begin in range(0, number, 50):
                ids = [f"t{id}" for id in range(begin, min(begin + 50, number))]
                await asyncio.gather(*(space.queue.put(id, id=id, max_attempts=10_000) for id in ids))
            found.start()
            while (await space.queue.counts())["done"] < number:
                await asyncio.sleep(POLL_S)
                if sum(1 for _ in found.notes()) >= (found.kills.total() + 1) * NOTES_A_KILL:
                    await asyncio.to_thread(found.kill_one)
            await asyncio.to_thread(found.stop)
            return await faults(space, found.notes(), number)

    begun_s = time.monotonic()
    with company(store, asyncio.run(prepare(store)), folder) as found:
        faults_found = asyncio.run(run(found))

    print(f"{number} tasks in {time.monotonic() - begun_s:.1f} s, kills: {dict(found.kills)}")
    assert faults_found == {"lost": 0, "repeated": 0}
    assert found.kills.total() >= least_kills
    tally(
        "TypeScript: steps under kills", tasks=number, task_steps=number * STEPS,
        worker_kills=found.kills["workers"], server_crashes=found.kills["servers"],
        lost=faults_found["lost"], applied_twice=faults_found["repeated"],
    )  # fmt: skip
