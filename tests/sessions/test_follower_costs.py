"""Reads of a follower: few for each change that it tells, and none for changes of other parts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from keepstate import ChatChange, Session
from keepstate._runner import TaskRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Reading
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate, TurnedSource


class Reads(MemoryStore):
    """A store that counts the reads of a conversation's head, which begin each look of a follower."""

    looks = 0

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.looks += any(key.endswith(b"/reply") for key in keys)  # the lease of a reply
        return await super().read(space, keys, at_ms=at_ms)


async def test_a_follower_looks_once_for_each_change_and_not_for_those_of_other_parts() -> None:
    clock, told = ManualClock(), list[ChatChange]()  # a follower looks again each second
    store = Reads(runner=TaskRunner(), clock=clock)
    ks = TurnedKeepstate(TurnedSource(store))
    ks.turned = clock
    async with ks:
        talk = Session("s", persistence=ks).conversation
        await talk.append({"role": "user", "content": "0"})

        async def follow() -> None:
            async for change in talk.follow():
                told.append(change)

        following = asyncio.create_task(follow())
        await _until(lambda: len(told) == 1)
        before = store.looks
        for number in range(20):
            await ks.space("session/s").queue.put(number)
            await asyncio.sleep(0.01)
        assert store.looks == before

        for number in range(1, 11):
            await talk.append({"role": "user", "content": str(number)})
            await _until(lambda: len(told) == number + 1)  # noqa: B023 - awaited in this round
        assert store.looks - before <= 11
        following.cancel()
    assert [change.text for change in told] == [str(number) for number in range(11)]


async def _until(is_done: object) -> None:
    assert callable(is_done)
    async with asyncio.timeout(60):
        while not is_done():
            await asyncio.sleep(0.001)
