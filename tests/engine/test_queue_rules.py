"""Rules of a queue: pauses, limits, aging and retries hold in every process, whatever it knew before."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate import Limit, Retry
from keepstate.engine.kernel import layout
from keepstate.engine.queue.queue import Task
from keepstate.engine.queue.rules import KINDS_MOST
from keepstate.engine.space.space import Space
from keepstate.errors import CorruptError, InvalidError
from keepstate.stores.protocol import Batch, Put


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


# ---- retries

RefusedError = type("RefusedError", (ConnectionError,), {"__module__": "app.errors"})
"""A class that this process cannot import by its name."""
STORED = Retry(
    first_s=600,
    factor=3,
    jitter=0,
    longest_s=900,
    never=(ValueError, "app.errors.RefusedError"),
    rules={TimeoutError: Retry(first_s=7, jitter=0)},
)


async def failed(space: Space, error: object, **options: Any) -> Task:
    """Claim a task, and let it fail."""
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.fail(error, **options)
    return task


async def paused_s(space: Space, id: str = "t") -> float:
    """Return the seconds between the end of the last attempt at a task and the next one."""
    info = await space.queue.get(id)
    ended_at = (await space.queue.attempts(id))[-1].ended_at
    assert info is not None and info.due_at is not None and ended_at is not None
    return (info.due_at - ended_at).total_seconds()


async def test_the_stored_retry_decides_when_a_failed_task_comes_back(space: Space) -> None:
    await space.queue.configure(retry=STORED)
    for error, pause_s in ((KeyError("no"), 600), ("a text", 600), (TimeoutError("late"), 7)):
        await space.queue.put(1, id="t", if_present="replace")
        task = await failed(space, error)

        assert (await paused_s(space), task.is_dead) == (pause_s, False)
    await space.queue.take("t", "w", lease_s=60)
    (info,) = await space.queue.list("claimed")
    await space.queue.fail(keepstate.Claim(info.id, info.token), KeyError("no"))
    assert await paused_s(space) == 900  # three times as long, and at most `longest_s`


@pytest.mark.parametrize("error", [UnicodeError("no"), RefusedError("no")], ids=["class", "name"])
async def test_a_task_is_dead_after_an_error_that_the_stored_retry_gives_up(
    space: Space, error: Exception
) -> None:
    await space.queue.configure(retry=STORED)
    await space.queue.put(1, id="t")

    assert (await failed(space, error)).is_dead
    assert [dead.id for dead in await space.queue.dead()] == ["t"]


async def test_what_a_call_says_comes_before_the_stored_retry(space: Space) -> None:
    await space.queue.configure(retry=STORED)
    await space.queue.put(1, id="t")

    await failed(space, ValueError("no"), retry_in_s=0)
    assert await paused_s(space) == 0
    await failed(space, KeyError("no"), is_final=True)
    assert len(await space.queue.dead()) == 1


async def test_without_a_stored_retry_a_failed_task_waits_about_a_second(space: Space) -> None:
    await space.queue.configure(retry=STORED)
    await space.queue.configure(limits=[Limit(running=9)])
    await space.queue.put(1, id="t")

    await failed(space, ValueError("no"))

    assert 0.9 <= await paused_s(space) <= 1.1


async def test_a_worker_of_another_process_keeps_the_stored_retry_unless_it_has_its_own(
    shared_url: str,
) -> None:
    async def handle(task: Task) -> None:
        raise {"gives up": ValueError, "waits": KeyError}[task.kind](task.id)

    async with keepstate.open(shared_url) as one, keepstate.open(shared_url) as other:
        for kind in ("gives up", "waits"):
            await one.space("run/1").queue.put(1, id=kind, kind=kind, max_attempts=2)
        await one.space("run/1").queue.configure(retry=STORED)

        report = await other.space("run/1").queue.run(handle, idle_s=0.05)
        assert report.failed == 2
        assert [dead.id for dead in await one.space("run/1").queue.dead()] == ["gives up"]
        assert await paused_s(one.space("run/1"), "waits") == 600

        await one.space("run/1").queue.requeue("gives up")
        report = await other.space("run/1").queue.run(handle, idle_s=0.05, retry=Retry(first_s=0, jitter=0))
        assert report.failed == 2  # both attempts at one task


async def test_a_transaction_fails_a_task_by_the_retry_that_it_sets(space: Space) -> None:
    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    async with space.transaction() as tx:
        await tx.queue.configure(retry=STORED)
        await tx.queue.fail(task, KeyError("no"))

    assert await paused_s(space) == 600


async def test_the_rules_are_told_with_the_names_of_classes(space: Space) -> None:
    await space.queue.configure(retry=STORED, aging_s=3)
    await space.queue.pause("mail")

    rules = await space.queue.rules()

    assert rules.retry == Retry(
        first_s=600,
        factor=3,
        jitter=0,
        longest_s=900,
        never=("ValueError", "app.errors.RefusedError"),
        rules={"TimeoutError": Retry(first_s=7, jitter=0)},
    )
    assert (rules.paused_kinds, rules.aging_s) == (("mail",), 3)
    await space.queue.configure()
    assert (await space.queue.rules()).retry is None


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (3, "retry"),
        (Retry(never=tuple(f"app.errors.E{number:03}{'x' * 400}" for number in range(50))), "16384"),
        (Retry(rules={ValueError: STORED}), "one deep"),
    ],
    ids=["type", "size", "depth"],
)
async def test_a_retry_that_cannot_be_stored_is_refused(space: Space, wrong: Any, word: str) -> None:
    with pytest.raises(InvalidError, match=word):
        await space.queue.configure(retry=wrong)

    assert (await space.queue.rules()).retry is None


async def stored_rules(space: Space) -> list[Any]:
    reading = await (await space.queue.executor.home.opened()).read("run/1", [layout.QUEUE_RULES])
    assert reading.entries[0] is not None
    fields: list[Any] = msgspec.msgpack.decode(reading.entries[0].value)
    return fields


async def store_rules(space: Space, fields: list[Any]) -> None:
    store = await space.queue.executor.home.opened()
    await store.apply([Batch("run/1", [Put(layout.QUEUE_RULES, msgspec.msgpack.encode(fields))])])


async def test_fields_of_a_later_version_stay_in_the_rules_and_in_their_retry(space: Space) -> None:
    await space.queue.configure(retry=STORED)
    fields = await stored_rules(space)
    await store_rules(space, [*fields[:-1], [*fields[-1], "new in retry"], "new in rules"])

    await space.queue.pause("mail")

    *_, retry, later = await stored_rules(space)
    assert (retry[-1], later) == ("new in retry", "new in rules")
    await space.queue.put(1, id="t")
    await failed(space, KeyError("no"))
    assert await paused_s(space) == 600


@pytest.mark.parametrize("damage", [[], [1, 0.5, 1, 0.1], [1, 2.0, 1, 0.1, [7]]], ids=str)
async def test_a_damaged_retry_is_told(space: Space, damage: list[Any]) -> None:
    await space.queue.configure(retry=STORED)
    await store_rules(space, [*(await stored_rules(space))[:-1], damage])

    with pytest.raises(CorruptError, match="queue_rules"):
        await space.queue.rules()
