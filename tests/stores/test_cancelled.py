"""Tasks cancelled hundreds of times: the store stays usable, and each reply reaches who asked for it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import keepstate
from keepstate.engine.space.keepstate import Keepstate

TASKS = 12
ROUNDS = 60


class Caller:
    """A task with a document of its own, whose calls are given up after a random time."""

    def __init__(self, ks: Keepstate, number: int, dice: random.Random) -> None:
        self._documents = ks.space(f"cancelled/{number % 3}").documents
        self._documents_are_here = not ks.url.startswith(("redis", "postgresql"))
        self._name, self._dice = f"caller-{number}", dice
        self.applied = self.tried = self.cancelled = 0
        self.may_come_late: set[int] = set()

    async def run(self) -> None:
        usual_s = 0.002
        for number in range(1, ROUNDS + 1):
            self.tried = number
            try:
                async with asyncio.timeout(self._dice.random() * usual_s):
                    await self._documents.put(self._name, {"by": self._name, "number": number})
                self.applied = number
                usual_s *= 0.8
            except TimeoutError:
                self.cancelled += 1
                if not self._documents_are_here:
                    self.may_come_late.add(number)
                usual_s *= 1.2
            try:
                async with asyncio.timeout(self._dice.random() * usual_s):
                    self.check(await self._documents.get(self._name))
            except TimeoutError:
                self.cancelled += 1

    def check(self, found: dict[str, object] | None) -> None:
        if found is None:
            assert self.applied == 0
            return
        assert found["by"] == self._name
        assert isinstance(found["number"], int)
        # What was given up while a server worked on it may come late, after what was written since.
        assert self.applied <= found["number"] <= self.tried or found["number"] in self.may_come_late

    async def check_at_last(self) -> None:
        self.check(await self._documents.get(self._name))


async def storm(url: str) -> int:
    """Return how many calls were given up."""
    dice = random.Random(7)
    async with keepstate.open(url) as ks:
        callers = [Caller(ks, number, dice) for number in range(TASKS)]
        async with asyncio.TaskGroup() as tasks:
            for caller in callers:
                tasks.create_task(caller.run())
        async with asyncio.timeout(60):
            await ks.space("cancelled/0").documents.put("after", 1)
            for caller in callers:
                await caller.check_at_last()
    return sum(caller.cancelled for caller in callers)


@pytest.mark.parametrize("name", ["memory", "file", "normal", "full"])
def test_cancelled_calls_leave_an_embedded_store_whole(tmp_path: Path, name: str) -> None:
    url = {
        "memory": "memory://",
        "file": f"file:///{tmp_path}/state.journal",
        "normal": f"sqlite:///{tmp_path}/state.db?durability=normal",
        "full": f"sqlite:///{tmp_path}/state.db",
    }[name]

    cancelled = asyncio.run(storm(url))

    assert cancelled > 100 or name == "memory"  # whose calls never wait


def test_cancelled_calls_leave_a_redis_store_whole(redis_url: str) -> None:
    assert asyncio.run(storm(f"{redis_url}?max_connections=3")) > 100


def test_cancelled_calls_leave_a_redis_cluster_whole(redis_cluster_url: str) -> None:
    assert asyncio.run(storm(f"{redis_cluster_url}?max_connections=3")) > 100


def test_cancelled_calls_leave_a_postgresql_store_whole(postgres_url: str) -> None:
    assert asyncio.run(storm(f"{postgres_url}?max_connections=3")) > 100
