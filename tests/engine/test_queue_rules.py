"""Rules of a queue: pauses, limits, turns and aging hold in every process, whatever it knew before."""

from __future__ import annotations

import asyncio

import pytest

import keepstate
from keepstate.engine.queue.rules import KINDS_MOST
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError


async def claimed(space: Space, count: int = 10, **options: object) -> list[object]:
    """Claim tasks, and return their payloads."""
    return [task.payload for task in await space.queue.claim("w", lease_s=600, count=count, **options)]  # type: ignore[arg-type]


async def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(space: Space) -> None:
    await space.queue.put("first")
    held = await space.queue.claim("w", lease_s=60)
    await space.queue.put("second")
    await space.queue.pause()
    await space.queue.put("third")

    assert await claimed(space) == []
    await held[0].complete()
    await space.queue.resume()
    assert await claimed(space) == ["second", "third"]


async def test_a_paused_kind_is_stepped_over(space: Space) -> None:
    for number in range(40):
        await space.queue.put(number, kind="a")
    await space.queue.put("other", kind="b")
    await space.queue.put("plain")
    await space.queue.pause("a")

    assert await claimed(space) == ["other", "plain"]
    assert await claimed(space, kinds=["a"]) == []
    await space.queue.resume("a")
    assert await claimed(space, 2) == [0, 1]


async def test_a_match_takes_nothing_that_is_paused(space: Space) -> None:
    await space.queue.put("a", kind="a")
    await space.queue.put("b", kind="b")
    await space.queue.pause("a")

    assert await claimed(space, match=lambda _, __: True) == ["b"]
    await space.queue.resume()
    assert await claimed(space, match=lambda _, __: True) == []
    await space.queue.resume("a")
    assert await claimed(space, match=lambda _, __: True) == ["a"]


async def test_a_pause_is_part_of_its_transaction(space: Space) -> None:
    await space.queue.put("task")
    with pytest.raises(ZeroDivisionError):
        async with space.transaction() as tx:
            await tx.queue.pause()
            raise ZeroDivisionError

    assert await claimed(space) == ["task"]


async def test_a_waiting_claim_wakes_when_its_kind_is_resumed(space: Space) -> None:
    await space.queue.put("task", kind="a")
    await space.queue.pause("a")
    waiting = asyncio.create_task(claimed(space, wait_s=30))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    await space.queue.resume("a")

    async with asyncio.timeout(60):
        assert await waiting == ["task"]


@pytest.mark.parametrize("match", [None, lambda _, __: True], ids=["plain", "match"])
async def test_a_pause_by_another_process_holds_for_a_claimer_that_knows_nothing_of_it(
    shared_url: str, match: object
) -> None:
    async with keepstate.open(shared_url) as one, keepstate.open(shared_url) as other:
        mine, theirs = one.space("run/1"), other.space("run/1")
        await mine.queue.put("first")
        assert await claimed(mine, 1, match=match) == ["first"]
        await mine.queue.put("second")  # `mine` may claim it from what it knows
        await theirs.queue.pause()

        assert await claimed(mine, match=match) == []
        await theirs.queue.resume()
        assert await claimed(mine, match=match) == ["second"]


async def test_a_task_of_a_paused_queue_can_be_taken_by_its_id(space: Space) -> None:
    await space.queue.put("task", id="t")
    await space.queue.pause()

    assert (await space.queue.take("t", "w", lease_s=60)).payload == "task"


async def test_pausing_again_writes_nothing_and_too_many_kinds_are_refused(space: Space) -> None:
    for number in range(KINDS_MOST):
        await space.queue.pause(f"kind {number}")
    before = (await space.size()).entries
    await space.queue.pause("kind 0")

    with pytest.raises(InvalidError, match="100 kinds"):
        await space.queue.pause("one more")
    with pytest.raises(InvalidError, match="200 bytes"):
        await space.queue.pause("k" * 201)
    with pytest.raises(InvalidError, match="kind"):
        await space.queue.resume(7)  # type: ignore[arg-type]
    assert (await space.size()).entries == before == 1
