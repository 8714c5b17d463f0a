"""A loop of virtual time: nothing waits, the order is the seed's, and to wait for ever is an error."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from keepstate_testing.simulation.loop import StuckError, VirtualLoop


def run(seed: int, work: Any) -> Any:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(Random(seed))) as runner:
        return runner.run(work)


def test_an_hour_passes_at_once_and_in_order() -> None:
    woken: list[float] = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(asyncio.get_running_loop().time())

    async def main() -> None:
        await asyncio.gather(*(sleep(seconds) for seconds in (3600, 1, 60)))

    run(0, main())  # in real time it would be timed out

    assert woken == [1, 60, 3600]


def test_who_waits_for_nobody_is_found_at_once() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StuckError):
        run(0, main())


def test_a_seed_decides_who_comes_first() -> None:
    def order(seed: int) -> list[int]:
        came: list[int] = []

        async def come(number: int) -> None:
            await asyncio.sleep(0)
            came.append(number)

        async def main() -> None:
            await asyncio.gather(*(come(number) for number in range(8)))

        run(seed, main())
        return came

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5
