"""Claims that meet what they cannot read, that fail midway, and whose callers do not wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate.engine.queue import tasks
from keepstate.engine.queue.queue import Task
from keepstate.engine.space.space import Space
from keepstate.errors import CorruptError, InvalidError, StoreUnavailableError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Outcome, Put
from keepstate.values.codec import Codec
from keepstate.values.schema import Registry

MORE_THAN_A_PAGE = 40
MORE_THAN_A_BATCH = 70
UNREADABLE = ("newer", "damaged")
NEWER = Registry()


class Job(msgspec.Struct):
    secret: str


NEWER.register(Job, "job-of-a-newer-release")


async def put_newer(space: Space, *names: str, stored: bytes | None = None) -> None:
    """Put tasks whose payloads this process cannot read."""
    store = await space.executor.home.opened()
    for name in names:
        await space.queue.put(None, id=name)
        payload = Codec(NEWER).encode(Job("hush")) if stored is None else stored
        outcome = (await store.apply([Batch(space.name, [Put(tasks.payload_key(name), payload)])]))[0]
        assert isinstance(outcome, Applied)


def anything(_: str, __: object) -> bool:
    return True


class Steered(MemoryStore):
    """Does something of the test's before some batch, counted from when that is set."""

    before: Callable[[int], Awaitable[None]] | None = None
    batches = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        if self.before is not None:
            self.batches += 1
            await self.before(self.batches)
        return await super().apply(batches)


# ---- what cannot be read


@pytest.mark.parametrize("match", [None, anything], ids=["any", "choosy"])
async def test_a_task_that_cannot_be_read_is_left_to_others(
    space: Space, match: Callable[[str, Any], bool] | None, caplog: pytest.LogCaptureFixture
) -> None:
    await space.queue.put("a", id="a", max_attempts=1)
    await put_newer(space, UNREADABLE[0])
    await put_newer(space, UNREADABLE[1], stored=b"\x7f")
    await space.queue.put("b", id="b", max_attempts=1)

    with caplog.at_level(logging.WARNING, "keepstate.engine"):
        found = await space.queue.claim("w", lease_s=60, count=4, match=match)
        with suppress(InvalidError):
            await space.queue.claim("w", lease_s=60, match=match)

    assert [task.payload for task in found] == ["a", "b"]
    assert (await space.queue.counts())["ready"] == 2
    told = [record.getMessage() for record in caplog.records if record.name == "keepstate.engine"]
    assert [text.split(":")[0] for text in told] == [
        f"skipping task {name!r} of 'run/1'" for name in UNREADABLE
    ]
    assert "hush" not in caplog.text


async def test_a_worker_that_can_read_nothing_of_what_there_is_is_told_why(space: Space) -> None:
    await put_newer(space, "newer")

    for wait_s in (0, 0.02):
        with pytest.raises(InvalidError, match=r"newer of 'run/1'.*job-of-a-newer-release@1 is stored here"):
            await space.queue.claim("w", lease_s=60, wait_s=wait_s)
    with pytest.raises(InvalidError, match="job-of-a-newer-release"):
        _ = [task async for task in space.queue.work("w", wait_s=0)]
    assert (await space.queue.counts())["ready"] == 1


async def test_a_worker_that_can_read_nothing_for_it_is_damaged_is_told_so(space: Space) -> None:
    await put_newer(space, "damaged", stored=b"\x7f")

    with pytest.raises(CorruptError, match="damaged of 'run/1'"):
        await space.queue.claim("w", lease_s=60)


async def test_a_choosy_worker_finds_none_where_it_can_read_none(space: Space) -> None:
    await put_newer(space, "newer")

    assert await space.queue.claim("w", lease_s=60, match=anything) == []


async def test_who_waits_behind_what_it_cannot_read_gets_the_next_task(space: Space) -> None:
    await put_newer(space, "newer")
    waiting = asyncio.create_task(space.queue.claim("w", lease_s=60, wait_s=30))
    await asyncio.sleep(0.02)
    await space.queue.put("a", id="a")

    async with asyncio.timeout(60):
        assert [task.id for task in await waiting] == ["a"]


async def test_what_cannot_be_read_any_more_once_another_has_it_is_no_error(space: Space) -> None:
    await put_newer(space, "newer")
    with pytest.raises(InvalidError):
        await space.queue.claim("w", lease_s=60)
    await space.queue.discard("newer")

    assert await space.queue.claim("w", lease_s=60) == []


async def test_a_page_of_tasks_that_cannot_be_read_hides_no_task_behind_it(space: Space) -> None:
    await put_newer(space, *(f"newer{number}" for number in range(MORE_THAN_A_PAGE)))
    await space.queue.put("a", id="a")

    found = await space.queue.claim("w", lease_s=60, count=2)

    assert [task.id for task in found] == ["a"]


# ---- what fails midway


async def test_what_was_taken_before_a_match_raises_is_given_back(space: Space) -> None:
    for number in range(20):
        await space.queue.put(number, id=f"t{number:02}", max_attempts=1)

    def match(_: str, payload: int) -> bool:
        if payload == 12:
            raise LookupError("no 12")
        return True

    with pytest.raises(LookupError):
        await space.queue.claim("w", lease_s=60, count=20, match=match)

    ready = await space.queue.list("ready")
    assert (len(ready), {info.attempt for info in ready}) == (20, {0})
    assert {bool(info.token) for info in ready} == {False, True}  # some had been taken


async def test_what_another_worker_holds_by_then_is_not_given_back(space: Space) -> None:
    for number in range(20):
        await space.queue.put(number, id=f"t{number:02}")

    async def match(_: str, payload: int) -> Any:
        if payload == 12:
            await space.queue.discard("t00")
            await space.queue.put("another task of that id", id="t00")
            held.append(await space.queue.take("t00", "other", lease_s=60))
            raise LookupError("no 12")
        return True

    held: list[Task] = []
    with pytest.raises(LookupError):
        await space.queue.claim("w", lease_s=60, count=20, match=match)

    assert [info.id for info in await space.queue.list("claimed")] == ["t00"]
    await held[0].complete()


def test_an_interrupted_claim_of_blocking_use_gives_back_what_it_had() -> None:
    def match(_: str, payload: int) -> bool:
        if payload == 12:
            raise KeyboardInterrupt
        return True

    with keepstate.sync.open("memory://") as ks:
        queue = ks.space("run").queue
        for number in range(20):
            queue.put(number)
        with pytest.raises(KeyboardInterrupt):
            queue.claim("w", lease_s=60, count=20, match=match)

        assert queue.counts()["ready"] == 20


async def test_what_was_taken_before_the_store_is_away_can_be_worked_on() -> None:
    async def fail(batch: int) -> None:
        if batch == 2:
            raise StoreUnavailableError("away")

    store = Steered()
    await store.open()
    async with keepstate.open(store) as ks:
        queue = ks.space("run").queue
        for number in range(MORE_THAN_A_BATCH):
            await queue.put(number)
        store.before = fail
        found = await queue.claim("w", lease_s=60, count=MORE_THAN_A_BATCH)
        rest = await queue.claim("w", lease_s=60, count=MORE_THAN_A_BATCH)
        for task in (*found, *rest):
            await task.complete()

        assert [task.payload for task in (*found, *rest)] == list(range(MORE_THAN_A_BATCH))
        assert rest
    await store.close()


# ---- who does not wait for it


async def claimed(space: Space, name: str) -> Task:
    return (await space.queue.claim("w", lease_s=60))[0]


async def taken(space: Space, name: str) -> Task:
    return await space.queue.take(name, "w", lease_s=60)


@pytest.mark.parametrize("call", [claimed, taken], ids=["claim", "take"])
async def test_who_is_cancelled_while_claiming_leaves_no_task_held(
    space: Space, call: Callable[[Space, str], Awaitable[Task]]
) -> None:
    for turn in range(60):
        name = f"t{turn}"
        await space.queue.put(turn, id=name, max_attempts=1)
        claiming = asyncio.ensure_future(call(space, name))
        for _ in range(turn % 20):
            await asyncio.sleep(0)
        claiming.cancel()
        with suppress(asyncio.CancelledError):
            await (await claiming).release()

        info = await space.queue.get(name)
        assert info is not None and (info.state, info.attempt) == ("ready", 0)
        await space.queue.discard(name)


async def test_who_is_cancelled_in_the_middle_of_a_claim_holds_none_of_its_tasks() -> None:
    midway, go_on = asyncio.Event(), asyncio.Event()

    async def hold_up(batch: int) -> None:
        if batch == 2:
            midway.set()
            await go_on.wait()

    store = Steered()
    await store.open()
    async with keepstate.open(store) as ks:
        queue = ks.space("run").queue
        for number in range(MORE_THAN_A_BATCH):
            await queue.put(number, max_attempts=1)
        store.before = hold_up
        claiming = asyncio.create_task(queue.claim("w", lease_s=60, count=MORE_THAN_A_BATCH))
        await midway.wait()
        claiming.cancel()
        asyncio.get_running_loop().call_later(0.01, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await claiming

        ready = await queue.list("ready")
        assert [info.attempt for info in ready] == [0] * MORE_THAN_A_BATCH
        assert any(info.token for info in ready)  # some had been claimed
    await store.close()


@pytest.mark.parametrize("end", ["complete", "fail", "release"])
async def test_a_call_that_ends_a_claim_leaves_none_where_it_is_cancelled(space: Space, end: str) -> None:
    for turns in range(1, 12):
        await space.queue.put(turns, id=f"t{turns}")
        (task,) = await space.queue.claim("w", lease_s=600)
        call = {
            "complete": lambda task=task: task.complete("result"),
            "fail": lambda task=task: task.fail("no", retry_in_s=600),
            "release": lambda task=task: task.release(),
        }[end]
        calling = asyncio.create_task(call())
        for _ in range(turns):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait([calling])

        info = await space.queue.get(task.id)
        assert info is not None
        assert info.state == {"complete": "done", "fail": "waiting", "release": "ready"}[end], turns
        assert info.attempt == (0 if end == "release" else 1)
        await space.queue.discard(task.id)


async def test_a_release_that_is_cancelled_leaves_no_lease(space: Space) -> None:
    for turns in range(1, 12):
        lease = await space.leases.acquire("driver", 600)
        releasing = asyncio.create_task(lease.release())
        for _ in range(turns):
            await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.wait([releasing])

        assert await space.leases.holder("driver") is None
