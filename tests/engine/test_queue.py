"""A queue: at least once to run, exactly once to complete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from keepstate.engine.kernel import layout
from keepstate.engine.queue import tasks
from keepstate.engine.queue.due_tasks import DueTasks
from keepstate.engine.queue.queue import Claim, Task
from keepstate.engine.queue.tasks import Put, TaskState
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    AlreadyExistsError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    TransitionError,
)
from keepstate.stores.protocol import Batch
from keepstate.stores.protocol import Put as StorePut
from tests.engine.conftest import Turned


async def take(space: Space, worker: str = "w", **options: object) -> Task:
    (task,) = await space.queue.claim(worker, lease_s=10, **options)  # type: ignore[arg-type]
    return task


async def test_tasks_are_claimed_by_priority_and_then_in_order_of_coming(space: Space) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -1), ("e", 5)):
        await space.queue.put(name, id=name, priority=priority)

    found = await space.queue.claim("w", lease_s=10, count=9)

    assert [task.id for task in found] == ["b", "e", "a", "c", "d"]


async def test_an_id_put_twice_is_one_task(space: Space) -> None:
    await space.queue.put(1, id="t")
    await space.queue.put(2, id="t")

    assert (await space.queue.counts())["ready"] == 1
    assert (await take(space)).payload == 1


async def test_a_completed_task_keeps_its_result_and_takes_no_second_one(space: Space) -> None:
    await space.queue.put(1, id="t")
    task = await take(space)
    await task.complete({"n": 1})
    await task.complete({"n": 2})

    info = await space.queue.get("t")
    assert info is not None and (info.state, info.result) == ("done", {"n": 1})
    assert await space.queue.claim("w", lease_s=10) == []


async def test_a_transaction_that_completes_a_task_again_does_nothing_else_either(space: Space) -> None:
    await space.queue.put(1, id="t")
    task = await take(space)

    async def complete_and_tell(tx: Transaction) -> None:
        await tx.queue.complete(task)
        await tx.queue.complete(task)
        await tx.events.append("completed")

    await space.transact(complete_and_tell)
    with pytest.raises(LeaseLostError, match="done"):
        await space.transact(complete_and_tell)

    assert [event.data for event in await space.events.read()] == ["completed"]


async def test_a_match_takes_only_what_it_accepts(space: Space) -> None:
    for number in range(40):
        await space.queue.put(number, id=f"t{number}")

    task = await take(space, match=lambda _, payload: payload == 37)

    assert task.id == "t37"
    assert (await space.queue.counts())["ready"] == 39


async def test_a_released_task_is_as_if_it_had_not_been_claimed(space: Space) -> None:
    await space.queue.put(1, id="t")
    first = await take(space)
    await first.release()
    second = await take(space, "v")

    assert (second.attempt, second.token > first.token) == (1, True)
    with pytest.raises(LeaseLostError):
        await first.complete()


async def test_a_task_that_has_had_its_attempts_is_dead_until_it_is_requeued(space: Space) -> None:
    await space.queue.put(1, id="t", max_attempts=2)
    await (await take(space)).fail("first", retry_in_s=0)
    await (await take(space)).fail(ValueError("second"), retry_in_s=0)

    (dead,) = await space.queue.dead()
    assert (dead.id, dead.error) == ("t", "ValueError: second")
    await space.queue.requeue("t")
    assert (await take(space)).attempt == 1
    with pytest.raises(NotFoundError):
        await space.queue.requeue("t")


async def test_a_failed_task_waits_longer_each_time(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="t")
    for wait_ms in (1000, 2000):
        await (await take(turned.space)).fail("no")
        turned.clock.advance(wait_ms * 9 // 10 - 1)
        assert await queue.claim("w", lease_s=10) == []
        turned.clock.advance(wait_ms // 5 + 1)


async def test_a_delayed_task_comes_when_it_is_due(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", delay_s=3)
    assert await turned.space.queue.claim("w", lease_s=10) == []
    turned.clock.advance(3000)

    assert (await take(turned.space)).id == "t"


async def test_a_lease_that_ran_out_lets_another_take_over(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    former = await take(turned.space, "a")
    turned.clock.advance(10_000)
    later = await take(turned.space, "b")

    assert (later.attempt, later.token > former.token) == (2, True)
    for call in (former.complete, former.heartbeat, former.release):
        with pytest.raises(LeaseLostError):
            await call()
    await later.complete()


async def test_a_heartbeat_holds_a_task(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    task = await take(turned.space)
    for _ in range(3):
        turned.clock.advance(9_000)
        await task.heartbeat()

    assert await turned.space.queue.claim("v", lease_s=1) == []
    await task.complete()


async def test_a_lease_that_ran_out_at_the_last_attempt_leaves_the_task_dead(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", max_attempts=1)
    await take(turned.space)
    turned.clock.advance(10_000)

    assert await turned.space.queue.claim("v", lease_s=1) == []
    assert [task.id for task in await turned.space.queue.dead()] == ["t"]


async def test_who_takes_a_task_by_its_id_cannot_go_past_its_last_attempt(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="t", max_attempts=2)
    for _ in range(2):
        await queue.take("t", "w", lease_s=10)
        turned.clock.advance(10_000)

    with pytest.raises(TransitionError, match="'t' of 'run/1' is dead and cannot be claimed"):
        await queue.take("t", "v", lease_s=10)
    dead = (await queue.dead())[0]
    assert (dead.id, dead.attempt, dead.worker) == ("t", 2, "w")
    assert await queue.counts() == {
        "ready": 0,
        "waiting": 0,
        "claimed": 0,
        "done": 0,
        "dead": 1,
        "cancelled": 0,
    }
    await queue.requeue("t")
    assert (await queue.take("t", "v", lease_s=10)).attempt == 1


async def test_a_listing_goes_on_behind_a_cursor(space: Space) -> None:
    for number in range(5):
        await space.queue.put(number, id=f"t{number}")

    first = await space.queue.list("ready", limit=2)
    rest = await space.queue.list("ready", after=first[-1].cursor)

    assert [task.id for task in (*first, *rest)] == [f"t{number}" for number in range(5)]


async def test_a_hundred_tasks_to_eight_workers_are_each_completed_once(space: Space) -> None:
    for number in range(100):
        await space.queue.put(number, id=f"t{number}")
    done: list[int] = []

    async def work(name: str) -> None:
        async for task in space.queue.work(name, wait_s=0):
            await task.complete()
            done.append(task.payload)

    await asyncio.gather(*(work(f"w{number}") for number in range(8)))

    assert sorted(done) == list(range(100))
    assert (await space.queue.counts())["done"] == 100


async def test_a_claim_that_matches_finds_what_has_just_become_due_behind_many_others(turned: Turned) -> None:
    queue = turned.space.queue
    for number in range(40):
        await queue.put("other", id=f"t{number}")
    await queue.put("mine", id="due", delay_s=0.1)
    assert await queue.claim("w", lease_s=10, match=lambda _, payload: payload == "mine") == []

    turned.clock.advance(100)
    found = await queue.claim("w", lease_s=10, match=lambda _, payload: payload == "mine")

    assert [task.id for task in found] == ["due"]


async def test_who_waits_for_a_task_looks_again_when_what_it_goes_by_has_changed(space: Space) -> None:
    await space.documents.put("skills", ["cook"])
    await space.queue.put("sing", id="t")

    def can(_: str, payload: object, documents: Mapping[str, Any]) -> bool:
        looked.set()
        return payload in documents["skills"]

    looked = asyncio.Event()
    options: dict[str, Any] = {"match": can, "documents": ["skills"], "on_claim": None}
    waiting = asyncio.create_task(space.queue.claim_with("w", lease_s=10, wait_s=30, **options))
    await looked.wait()
    await space.documents.put("skills", ["cook", "sing"])

    async with asyncio.timeout(60):
        assert [task.id for task in await waiting] == ["t"]


async def test_tasks_that_move_are_counted_once(space: Space) -> None:
    for number in range(20):
        await space.queue.put(number)

    async def move() -> None:
        while True:
            task = await take(space)
            await asyncio.sleep(0)
            await task.release()

    movers = [asyncio.create_task(move()) for _ in range(2)]
    counted: list[Mapping[TaskState, int]] = []
    before = await space.revision()
    while len(counted) < 20 or await space.revision() < before + 20:
        counted.append(await space.queue.counts())
        await asyncio.sleep(0)
    for mover in movers:
        mover.cancel()
    await asyncio.gather(*movers, return_exceptions=True)

    assert {sum(counts.values()) for counts in counted} == {20}


async def test_a_transaction_counts_its_own_tasks_too(space: Space) -> None:
    await space.queue.put(1)

    async with space.transaction() as tx:
        await tx.queue.put(2, delay_s=60)

        assert await tx.queue.counts() == {
            "ready": 1,
            "waiting": 1,
            "claimed": 0,
            "done": 0,
            "dead": 0,
            "cancelled": 0,
        }


async def test_the_claim_of_a_task_that_was_removed_is_not_that_of_the_next_one_of_its_id(
    space: Space,
) -> None:
    await space.queue.put("first", id="t")
    former = await take(space)
    await space.queue.discard("t")
    await space.queue.put("second", id="t")
    holder = await take(space)

    for claim in (former, Claim(former.id, former.token)):
        with pytest.raises(LeaseLostError, match="claimed by another"):
            await space.queue.complete(claim, "of the first")
    await holder.complete("of the second")

    assert holder.token > former.token
    info = await space.queue.get("t")
    assert info is not None and info.result == "of the second"


async def test_put_says_whether_it_added_the_task_and_how_the_one_of_this_id_stands(space: Space) -> None:
    added = await space.queue.put(1, id="t", max_attempts=1)
    later = await space.queue.put(1, delay_s=5)
    kept = await space.queue.put(2, id="t")
    await (await take(space)).fail("no")
    dead = await space.queue.put(3, id="t")

    assert (added, later) == (Put("t", True, "ready"), Put(later.id, True, "waiting"))
    assert (kept, dead) == (Put("t", False, "ready"), Put("t", False, "dead"))
    with pytest.raises(AlreadyExistsError, match="'t', which is dead; pass another id"):
        await space.queue.put(4, id="t", if_present="raise")
    with pytest.raises(InvalidError, match="`if_present` is 'skip'; it is one of keep, replace, raise"):
        await space.queue.put(4, id="t", if_present="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["ready", "waiting", "done", "dead"])
async def test_put_replaces_a_task_that_no_worker_holds(space: Space, state: TaskState) -> None:
    await space.queue.put("old", id="t", max_attempts=1, delay_s=60 if state == "waiting" else 0)
    if state in ("done", "dead"):
        held = await take(space)
        await (held.complete("old result") if state == "done" else held.fail("no"))

    put = await space.queue.put("new", id="t", if_present="replace")

    assert put == Put("t", True, "ready")
    counts = await space.queue.counts()
    assert (counts["ready"], sum(counts.values())) == (1, 1)
    task = await take(space)
    assert (task.payload, task.attempt) == ("new", 1)
    info = await space.queue.get("t")
    assert info is not None and (info.result, info.error) == (None, None)


async def test_put_does_not_replace_a_task_that_a_worker_holds(space: Space) -> None:
    await space.queue.put("old", id="t")
    held = await take(space)

    with pytest.raises(
        TransitionError, match=r"'t' of .* is held by worker .w.\. Wait until it is done, or call discard\(\)"
    ):
        await space.queue.put("new", id="t", if_present="replace")

    await held.complete("result")


async def test_fields_that_a_later_version_has_added_to_a_task_survive_its_steps(
    space: Space,
) -> None:
    later = [{"key": "user 1"}, b"\x00"]
    store = await space.executor.home.opened()

    async def fields() -> list[object]:
        (entry,) = (await store.read(space.name, [tasks.task_key("t")])).entries
        assert entry is not None
        found: list[object] = msgspec.msgpack.decode(entry.value)
        return found

    await space.queue.put(1, id="t", delay_s=0.001)
    waiting = [*(await fields()), "00-1-2-01", *later]
    key = tasks.task_key("t")
    await store.apply([Batch(space.name, [StorePut(key, msgspec.msgpack.encode(waiting))])])
    task = (await space.queue.claim("w", lease_s=60, wait_s=60))[0]
    await task.heartbeat()
    await task.fail("no", retry_in_s=0)
    await (await take(space)).complete("result")

    assert ((await fields())[-3:], len(await fields())) == (["00-1-2-01", *later], len(waiting))
    info = await space.queue.get("t")
    assert info is not None and info.result == "result"


async def test_waking_ignores_an_index_entry_that_a_task_has_left(turned: Turned) -> None:
    """Between a worker's scan and its batch, another completes a task whose lease has run out."""
    space, clock = turned.space, turned.clock
    await space.queue.put(1, id="t")
    task = await take(space)
    store = await space.executor.home.opened()
    before = (await store.scan(space.name, layout.CLAIMED)).entries
    await task.complete("result")
    clock.advance(20_000)

    await DueTasks(space.executor)._promote_due(list(before))

    assert await space.queue.claim("w", lease_s=10) == []
    info = await space.queue.get("t")
    assert info is not None and (info.state, info.result) == ("done", "result")
