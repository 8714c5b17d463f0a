"""A queue whose index names tasks that are gone: they are passed over, and no call hangs on them."""

from __future__ import annotations

import asyncio

import pytest

from keepstate.engine.kernel import stored
from keepstate.engine.queue import tasks
from keepstate.engine.space.space import Space
from keepstate.stores.protocol import Applied, Batch, Delete
from tests.engine.conftest import Turned

MORE_THAN_A_PAGE = 40


async def lose(space: Space, names: list[str]) -> None:
    """Delete the records of tasks, and leave all else of them."""
    store = await space.executor.home.opened()
    outcome = (await store.apply([Batch(space.name, [Delete(tasks.task_key(name)) for name in names])]))[0]
    assert isinstance(outcome, Applied)


async def test_a_ready_task_without_its_record_is_passed_over(space: Space) -> None:
    for name in ("gone", "a", "b"):
        await space.queue.put(name, id=name)
    await lose(space, ["gone"])

    async with asyncio.timeout(60):
        found = await space.queue.claim("w", lease_s=60, count=5)
    assert sorted(task.id for task in found) == ["a", "b"]


async def test_a_page_of_tasks_without_their_records_hides_no_task_behind_it(space: Space) -> None:
    names = [f"gone{number}" for number in range(MORE_THAN_A_PAGE)]
    async with space.transaction() as tx:
        for name in names:
            await tx.queue.put(name, id=name, priority=1)
        await tx.queue.put("kept", id="kept")
    await lose(space, names)

    async with asyncio.timeout(60):
        found = await space.queue.claim("w", lease_s=60)
    assert [task.id for task in found] == ["kept"]


async def test_a_claim_among_nothing_but_lost_tasks_ends(space: Space) -> None:
    for name in ("gone", "waiting"):
        await space.queue.put(name, id=name, delay_s=0.001 if name == "waiting" else 0)
    await lose(space, ["gone", "waiting"])

    async with asyncio.timeout(60):
        assert await space.queue.claim("w", lease_s=60, count=2, wait_s=0.05) == []


async def test_a_claimed_task_that_lost_its_record_is_not_handed_out_again(turned: Turned) -> None:
    await turned.space.queue.put("gone", id="gone")
    await turned.space.queue.claim("w", lease_s=10)
    await lose(turned.space, ["gone"])
    turned.clock.advance(20_000)

    assert await turned.space.queue.claim("w", lease_s=10) == []


async def test_no_key_is_described_while_nothing_is_damaged(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(key: bytes) -> str:
        raise AssertionError(key)

    monkeypatch.setattr(stored, "describe", describe)
    queue = turned.space.queue
    await queue.put(1, id="t")

    [task] = await queue.claim("w", lease_s=60)
    await task.complete(2)

    assert await queue.result("t") == 2
