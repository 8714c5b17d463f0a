"""What hears of others' changes goes on, whatever goes wrong in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

import pytest

from keepstate.stores.memory import MemoryStore


class Watched(MemoryStore):
    """A backend whose first rounds of waiting fail in a way that nobody expects."""

    waits = True
    failing = 0
    rounds = 0

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        self.rounds += 1
        if self.rounds <= self.failing:
            raise KeyError("a fault")
        await asyncio.sleep(0.001)
        return spaces


async def rounds_after(store: Watched, rounds: int) -> None:
    async with asyncio.timeout(60):
        while store.rounds <= rounds:
            await asyncio.sleep(0.001)


def test_a_fault_of_a_backend_is_logged_once_and_others_are_heard_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def heard() -> None:
        store = await Watched(name="").open()
        store.failing = 2
        listener = store.listen(["s"])
        await rounds_after(store, 2)
        listener.close()
        await store.close()

    with caplog.at_level(logging.WARNING, "keepstate.stores"):
        asyncio.run(heard())

    (record,) = caplog.records
    assert record.getMessage() == "Changes of other processes are seen later: 'a fault'"
    assert record.exc_info is not None and record.exc_info[0] is KeyError


def test_who_listens_after_all_tasks_were_cancelled_hears_others() -> None:
    async def heard() -> None:
        store = await Watched(name="").open()
        first = store.listen(["s"])
        await rounds_after(store, 0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)
        seen = store.rounds
        second = store.listen(["s"])
        await rounds_after(store, seen)
        first.close()
        second.close()
        await store.close()

    asyncio.run(heard())
