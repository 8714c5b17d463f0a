"""A failure of a world says which one it was and what happened last."""

from __future__ import annotations

import asyncio
from random import Random
from typing import ClassVar

import pytest
from keepstate_testing.simulation import BrokenPromiseError, Dials, simulate
from keepstate_testing.simulation.loop import VirtualLoop
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor, World

from keepstate.stores.protocol import Batch, Put


class Losing(Workload):
    """Takes what was refused for applied."""

    async def act(self, actor: Actor) -> None:
        name = self.world.name("n")

        async def put() -> int:
            return await actor.space.documents.put(name, name, expected_version=7)

        self.fates[name], _ = await self.world.fate(actor, put, f"puts {name}")

    async def verify(self) -> None:
        for name in self.fates:
            assert await self.judge.space.documents.get(name), f"{name} is lost"


class Waiting(Workload):
    """Waits for what never comes."""

    waited: ClassVar[int] = 0

    async def act(self, actor: Actor) -> None:
        await actor.space.queue.claim(actor.name, lease_s=1, wait_s=1e6)

    async def verify(self) -> None:
        assert self.waited, "never called"


def test_a_failure_names_its_seed_and_shows_what_happened_last() -> None:
    with pytest.raises(BrokenPromiseError, match=r"simulate\(5, steps=20\)[\s\S]*puts n") as caught:
        simulate(5, steps=20, workloads=[Losing])

    assert caught.value.seed == 5
    assert isinstance(caught.value.__cause__, AssertionError)


def test_an_operation_that_never_ends_is_a_failure_that_names_who_waits() -> None:
    with pytest.raises(BrokenPromiseError, match=r"still wait: \['p0a'"):
        simulate(1, steps=20, workloads=[Waiting])


def test_a_calm_world_has_no_faults() -> None:
    report = simulate(3, steps=100, dials=Dials())

    assert report.faults == 0
    assert report.steps == 100
    assert report.operations >= 100


def test_a_sweep_that_removes_nothing_still_advances_the_time_of_a_space() -> None:
    loop, key = VirtualLoop(Random(0)), b"\x01k"
    world = World(0, 1, Dials(), loop)

    async def sweep_and_turn_back() -> int:
        await world.server.open()
        for ttl_ms in (10, None):  # what the first one would have removed is written again
            world.server.deliver("p0", [Batch("s", [Put(key, b"", ttl_ms)])])
        world.wall.jump(50)
        removed = await world.server.sweep()
        world.wall.jump(-40)
        assert (await world.server.read("s", [key])).now_ms > world.wall.now_ms()
        await world.server.close()
        return removed

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(sweep_and_turn_back()) == 0
