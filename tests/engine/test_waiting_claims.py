"""Claims that wait: each change that makes a task claimable wakes them, and no other change does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import keepstate
from keepstate import Limit
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.log_cursor import LogCursor
from keepstate.engine.queue import claims
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Page
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import Turned, TurnedKeepstate, TurnedSource

HOUR_S = 3_600
SCANS_OF_A_LOOK = 7

Cause = Callable[[Space], Awaitable[Callable[[], Awaitable[Any]]]]


async def put(space: Space) -> Callable[[], Awaitable[Any]]:
    return lambda: space.queue.put("t", id="t")


async def put_with_a_key(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.put("other", id="other", key="ann")
    await space.queue.claim("w", lease_s=HOUR_S)
    return lambda: space.queue.put("t", id="t", key="bob")


async def resume(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.put("t", id="t")
    await space.queue.pause()
    return space.queue.resume


async def a_higher_limit(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.configure(limits=[Limit(running=1)])
    for id in ("other", "t"):
        await space.queue.put(id, id=id)
    await space.queue.claim("w", lease_s=HOUR_S)
    return lambda: space.queue.configure(limits=[Limit(running=2)])


async def a_free_slot(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.configure(limits=[Limit(running=1, each_key=True)])
    for id in ("other", "t"):
        await space.queue.put(id, id=id, key="ann")
    (held,) = await space.queue.claim("w", lease_s=HOUR_S)
    return held.complete


async def a_released_task(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.put("t", id="t")
    (held,) = await space.queue.claim("w", lease_s=HOUR_S)
    return held.release


async def a_leader_that_is_done(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.put("leader", id="leader")
    await space.queue.put("t", id="t", after=["leader"])
    (held,) = await space.queue.claim("w", lease_s=HOUR_S)
    return held.complete


async def a_dead_task_that_is_requeued(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.queue.put("t", id="t", max_attempts=1)
    (held,) = await space.queue.claim("w", lease_s=HOUR_S)
    await held.fail("no")
    return lambda: space.queue.requeue("t")


async def a_schedule(space: Space) -> Callable[[], Awaitable[Any]]:
    await space.schedules.put("t", every_s=HOUR_S)
    return lambda: space.schedules.run_now("t")


CAUSES = [
    put,
    put_with_a_key,
    resume,
    a_higher_limit,
    a_free_slot,
    a_released_task,
    a_leader_that_is_done,
    a_dead_task_that_is_requeued,
    a_schedule,
]


async def _is_woken_by(cause: Cause, space: Space, within_s: float = 60) -> None:
    happen = await cause(space)
    waiting = asyncio.create_task(space.queue.claim("waiting", lease_s=HOUR_S, wait_s=HOUR_S))
    await asyncio.sleep(0.05)
    assert not waiting.done()

    await happen()

    async with asyncio.timeout(within_s):
        (task,) = await waiting
    assert task.id.partition("/")[0] in ("t", "schedule")


@pytest.mark.parametrize("cause", CAUSES)
async def test_what_makes_a_task_claimable_wakes_a_claim(space: Space, cause: Cause) -> None:
    await _is_woken_by(cause, space)


class QueueScans(MemoryStore):
    """A store that counts the scans of queues."""

    count = 0

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.count += prefix.startswith(claims.CLAIMING)
        return await super().scan(space, prefix, **options)


def counted() -> tuple[QueueScans, Keepstate]:
    """Return a store and a handle on a clock that stands still, because a claim looks again each second."""
    clock = ManualClock()
    store = QueueScans(runner=TaskRunner(), clock=clock)
    ks = TurnedKeepstate(TurnedSource(store))
    ks.turned = clock
    return store, ks


async def _change_other_parts(space: Space) -> None:
    for number in range(20):
        await space.events.append({"n": number})
        await space.documents.put(f"document/{number}", number)
        await asyncio.sleep(0.01)


async def test_other_changes_wake_no_claim() -> None:
    store, handle = counted()
    async with handle as ks:
        space = ks.space("s")
        waiting = asyncio.create_task(space.queue.claim("w", lease_s=HOUR_S, wait_s=HOUR_S))
        for _ in range(1_000):  # turns of the loop, in which the claim looks before it waits
            await asyncio.sleep(0)
        before = store.count

        await _change_other_parts(space)

        assert store.count == before > 0
        await space.queue.put("t")
        assert len(await waiting) == 1


async def test_a_worker_of_many_spaces_looks_at_a_queue_only_if_it_has_changed() -> None:
    store, begun, may_end = QueueScans(), asyncio.Event(), asyncio.Event()
    await store.open()

    async def handler(_: object) -> None:
        begun.set()
        await may_end.wait()

    async with keepstate.open(store) as ks:
        space = ks.space("run/1")
        await space.queue.put("t", id="t")
        stop = asyncio.Event()
        running = asyncio.create_task(ks.queues("run").run(handler, stop=stop))
        await begun.wait()
        await asyncio.sleep(0.1)
        before = store.count

        await _change_other_parts(space)

        assert store.count - before <= SCANS_OF_A_LOOK
        may_end.set()
        assert await space.queue.result("t", wait_s=60) is None
        stop.set()
        await running
    await store.close()


async def test_changes_that_left_the_log_are_told_as_one(ks: Keepstate) -> None:
    space = ks.space("s")
    store = await space.executor.store()
    cursor = LogCursor(store, space.executor.stored_name, (layout.READY,))
    assert await cursor.has_changed()
    assert not await cursor.has_changed()

    for number in range(150):
        await space.events.append(number)
    assert not await cursor.has_changed()
    await space.queue.put("t")
    await space.events.append("after it")
    assert await cursor.has_changed()
    assert not await cursor.has_changed()


# ---- planted bugs


@pytest.mark.parametrize(
    ("prefixes", "cause"),
    [
        ((layout.READY, layout.TURNS), put),
        ((layout.QUEUE_RULES,), resume),
        ((layout.QUEUE_RULES,), a_higher_limit),
    ],
)
async def test_a_prefix_that_is_not_listened_to_is_noticed(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, prefixes: tuple[bytes, ...], cause: Cause
) -> None:
    left = tuple(each for each in claims.CLAIMING if each not in prefixes)
    monkeypatch.setattr(claims, "CLAIMING", left)

    with pytest.raises(TimeoutError):
        await _is_woken_by(cause, turned.space, within_s=0.5)


async def test_a_change_between_two_looks_that_is_taken_for_seen_is_noticed(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the cursor is moved after the look, over what came meanwhile."""

    async def skip(self: LogCursor) -> bool:
        self._revision = (await self._store.read(self._space, [])).revision
        return False

    monkeypatch.setattr(LogCursor, "has_changed", skip)

    with pytest.raises(TimeoutError):
        await _is_woken_by(put, turned.space, within_s=0.5)


@pytest.mark.parametrize(("delay_s", "lease_s"), [(5, 60), (60, 5)])
async def test_the_next_look_is_at_the_first_end_of_a_delay_or_a_lease(
    turned: Turned, delay_s: float, lease_s: float
) -> None:
    queue = turned.space.queue
    await queue.put(1)
    await queue.claim("w", lease_s=lease_s)
    await queue.put(1, delay_s=delay_s)

    assert await queue.claim("w", lease_s=lease_s) == []

    assert await queue.next_look_s() == pytest.approx(5)
