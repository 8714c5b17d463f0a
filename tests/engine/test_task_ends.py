"""Ends of tasks and what follows from them: followers, cancelling, results, attempts, messages, reruns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from keepstate.engine.kernel import layout
from keepstate.engine.queue import endings, tasks
from keepstate.engine.queue.queue import Claim, Queue, Task
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    AlreadyExistsError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    TaskCancelledError,
    TaskFailedError,
    TransitionError,
)
from tests.engine.conftest import Turned

MANY = 250


async def take(space: Space, id: str | None = None, lease_s: float = 60) -> Task:
    if id is not None:
        return await space.queue.take(id, "w", lease_s=lease_s)
    (task,) = await space.queue.claim("w", lease_s=lease_s)
    return task


async def state_of(queue: Queue, id: str) -> str | None:
    info = await queue.get(id)
    return None if info is None else info.state


async def states(space: Space, *ids: str) -> list[str | None]:
    return [None if info is None else info.state for info in await space.queue.get_each(*ids)]


# ---- followers


async def test_a_follower_is_ready_only_when_all_that_it_waits_for_are_done(space: Space) -> None:
    for id in ("a", "b"):
        await space.queue.put(1, id=id)
    put = await space.queue.put(2, id="f", after=["a", "b"])
    assert put.state == "waiting"

    await (await take(space, "a")).complete()
    assert await state_of(space.queue, "f") == "waiting"
    await (await take(space, "b")).complete()

    assert await state_of(space.queue, "f") == "ready"
    assert (await take(space)).id == "f"


async def test_a_follower_of_ended_tasks_is_ready_or_dead_at_once(space: Space) -> None:
    for id in ("done", "cancelled"):
        await space.queue.put(1, id=id)
    await (await take(space, "done")).complete()
    await space.queue.cancel("cancelled")

    puts = [await space.queue.put(1, after=after) for after in (["done"], ["done", "cancelled"])]

    assert [put.state for put in puts] == ["ready", "dead"]
    with pytest.raises(NotFoundError, match="nobody"):
        await space.queue.put(1, after=["nobody"])


async def test_a_delay_of_a_follower_counts_from_its_put(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="a")
    await queue.put(1, id="f", after=["a"], delay_s=10)
    turned.clock.advance(4_000)
    await (await take(turned.space)).complete()

    assert await queue.claim("w", lease_s=60) == []
    turned.clock.advance(6_000)
    assert (await take(turned.space)).id == "f"


@pytest.mark.parametrize("end", ["dead", "cancelled", "discarded", "expired lease"])
async def test_the_end_of_a_task_that_is_not_done_makes_its_followers_dead(turned: Turned, end: str) -> None:
    queue = turned.space.queue
    await queue.put(1, id="a", max_attempts=1)
    await queue.put(1, id="f", after=["a"])
    await queue.put(1, id="g", after=["f"])
    if end == "dead":
        await (await take(turned.space, "a")).fail("no")
    elif end == "cancelled":
        assert await queue.cancel("a")
    elif end == "discarded":
        assert await queue.discard("a")
    else:
        await take(turned.space, "a")
        turned.clock.advance(60_000)
        assert await queue.claim("w", lease_s=60) == []

    assert await states(turned.space, "f", "g") == ["dead", "dead"]
    with pytest.raises(TaskFailedError, match="task 'a', which it waited for"):
        await queue.result("f")


async def test_thousands_of_followers_are_told_in_steps(space: Space) -> None:
    await space.queue.put(1, id="a")
    for begin in range(0, MANY, 50):
        async with space.transaction() as tx:
            for number in range(begin, begin + 50):
                await tx.queue.put(number, id=f"f{number}", after=["a"])
    before = await space.revision()
    await (await take(space, "a")).complete()

    counts = await space.queue.counts()
    assert (counts["ready"], counts["waiting"]) == (MANY, 0)
    assert await space.revision() - before == 1 + 3  # the claim, and three batches of followers
    assert await left_of_followers(space) == []


async def left_of_followers(space: Space) -> list[bytes]:
    store = await space.executor.store()
    parts = (layout.FOLLOWERS, layout.ENDING)
    pages = [await store.scan(space.executor.stored_name, part) for part in parts]
    return [entry.key for page in pages for entry in page.entries]


async def test_a_worker_tells_the_followers_that_a_killed_process_has_left(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = turned.space.queue
    await queue.put(1, id="a", keep_s=3600)
    for number in range(MANY):
        await queue.put(number, id=f"f{number}", after=["a"])

    async def killed(*_: object) -> None:
        return

    with monkeypatch.context() as killing:
        killing.setattr(endings, "resume", killed)
        await (await take(turned.space, "a")).complete("result")
    assert (await queue.counts())["waiting"] == MANY - 100
    with pytest.raises(TransitionError):
        async with turned.space.transaction() as tx:
            await tx.queue.remove("a")
    for _ in range(2):
        await queue.claim("w", lease_s=60)
        turned.clock.advance(6_000)

    assert (await queue.counts())["waiting"] == 0
    assert await left_of_followers(turned.space) == []
    turned.clock.advance(3_700_000)
    assert await queue.get("a") is None


async def test_a_follower_that_is_gone_holds_up_nobody(space: Space) -> None:
    await space.queue.put(1, id="a")
    for id in ("f", "g", "h"):
        await space.queue.put(1, id=id, after=["a"])
    await space.queue.discard("f")
    await space.queue.cancel("g")
    await space.queue.put(2, id="h", if_present="replace")
    await (await take(space, "a")).complete()

    assert await states(space, "f", "g", "h") == [None, "cancelled", "ready"]
    assert await left_of_followers(space) == []


async def test_a_leader_keeps_its_place_and_its_holder(space: Space) -> None:
    for id in ("a", "b"):
        await space.queue.put(1, id=id)
    await space.queue.put(1, id="f", after=["a"])
    held = await take(space)
    await space.queue.put(1, id="g", after=["a"])
    await held.heartbeat()
    await held.complete()

    assert held.id == "a"
    assert [task.id for task in await space.queue.claim("w", lease_s=60, count=9)] == ["b", "f", "g"]


async def test_a_follower_put_as_its_leader_ends_is_not_forgotten(space: Space) -> None:
    for number in range(20):
        await space.queue.put(1, id=f"a{number}")
        task = await take(space, f"a{number}")
        await asyncio.gather(task.complete(), space.queue.put(1, id=f"f{number}", after=[task.id]))
        assert await state_of(space.queue, f"f{number}") == "ready"


async def test_a_transaction_puts_a_leader_and_its_followers_and_ends_it(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.queue.put(1, id="a")
        await tx.queue.put(1, id="f", after=["a"])
    task = await take(space)
    async with space.transaction() as tx:
        await tx.queue.put(1, id="g", after=["a"])
        await tx.queue.complete(task)

    assert await states(space, "a", "f", "g") == ["done", "ready", "ready"]
    assert len(await space.queue.claim("w", lease_s=60, count=9)) == 2


async def test_a_replaced_leader_keeps_its_followers_and_never_waits_for_them(space: Space) -> None:
    await space.queue.put(1, id="a")
    await space.queue.put(1, id="f", after=["a"])
    with pytest.raises(TransitionError, match="followers"):
        await space.queue.put(2, id="a", after=["f"], if_present="replace")
    await space.queue.put(2, id="a", if_present="replace")
    task = await take(space)
    await task.complete()

    assert (task.payload, await state_of(space.queue, "f")) == (2, "ready")


async def test_a_waiting_follower_cannot_be_taken(space: Space) -> None:
    await space.queue.put(1, id="a")
    await space.queue.put(1, id="f", after=["a"])

    with pytest.raises(TransitionError, match="waits for 'a'"):
        await take(space, "f")


# ---- times


async def test_a_task_put_for_a_time_comes_at_that_time(turned: Turned) -> None:
    now = (await turned.space.queue.put(0, id="now"), await turned.space.queue.get("now"))[1]
    assert now is not None
    await (await take(turned.space)).complete()
    await turned.space.queue.put(1, id="t", at=now.put_at + timedelta(seconds=5))
    await turned.space.queue.put(1, id="past", at=datetime(2000, 1, 1, tzinfo=UTC))

    assert (await take(turned.space)).id == "past"
    turned.clock.advance(4_999)
    assert await turned.space.queue.claim("w", lease_s=60) == []
    turned.clock.advance(1)
    assert (await take(turned.space)).id == "t"


async def test_a_task_that_expired_is_never_begun(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="lead")
    await queue.put(1, id="ready", expires_s=5)
    await queue.put(1, id="late", expires_s=5, delay_s=10)
    await queue.put(1, id="follower", expires_s=5, after=["lead"])
    await queue.put(1, id="after", after=["ready"])
    lead = await take(turned.space)
    turned.clock.advance(5_000)
    with pytest.raises(TaskFailedError, match="expired"):
        await queue.result("ready")

    assert await queue.claim("w", lease_s=60, count=9) == []
    assert await states(turned.space, "ready", "late", "follower", "after") == ["dead"] * 4
    await lead.complete()
    assert await queue.requeue("ready") == 1
    turned.clock.advance(5_000)
    assert (await take(turned.space)).id == "ready"


async def test_a_task_that_was_begun_in_time_does_not_expire(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", expires_s=5)
    task = await take(turned.space)
    turned.clock.advance(6_000)
    await task.fail("once", retry_in_s=0)

    assert (await take(turned.space)).attempt == 2


async def test_a_task_that_was_begun_in_time_is_not_tried_again_early(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", expires_s=5)
    task = await take(turned.space)
    await task.fail("once", retry_in_s=60)
    turned.clock.advance(6_000)
    assert await turned.space.queue.claim("w", lease_s=60) == []
    turned.clock.advance(54_000)

    assert (await take(turned.space)).attempt == 2


@pytest.mark.parametrize("how", ["claim", "match", "take"])
async def test_every_way_to_claim_knows_that_a_task_expired(turned: Turned, how: str) -> None:
    queue = turned.space.queue
    await queue.put(1, id="t", expires_s=5)
    await queue.put(1, id="f", after=["t"])
    turned.clock.advance(5_000)
    if how == "take":
        with pytest.raises(TransitionError):
            await queue.take("t", "w", lease_s=60)
    else:
        match: Callable[[str, Any], bool] | None = (lambda *_: True) if how == "match" else None
        assert await queue.claim("w", lease_s=60, match=match) == []

    assert await states(turned.space, "t", "f") == ["dead", "dead"]


# ---- cancelling


@pytest.mark.parametrize("state", ["ready", "waiting", "claimed"])
async def test_a_cancelled_task_is_over_in_whatever_state_it_was(space: Space, state: str) -> None:
    await space.queue.put(1, id="t", delay_s=100 if state == "waiting" else 0)
    task = await take(space) if state == "claimed" else None

    assert await space.queue.cancel("t", by="ann", reason="not wanted")
    assert not await space.queue.cancel("t")
    assert await space.queue.claim("w", lease_s=60) == []
    with pytest.raises(TaskCancelledError, match="ann: not wanted") as caught:
        await space.queue.result("t")
    assert (caught.value.task, caught.value.by, caught.value.reason) == ("t", "ann", "not wanted")
    if task is not None:
        with pytest.raises(LeaseLostError, match="cancelled by ann: not wanted"):
            await task.complete(1)
        assert task.cancelled
        assert [each.error for each in await space.queue.attempts("t")] == ["cancelled by ann: not wanted"]


async def test_nothing_is_cancelled_that_has_ended_or_never_was(space: Space) -> None:
    await space.queue.put(1, id="t")
    await (await take(space)).complete(7)

    assert [await space.queue.cancel(id) for id in ("t", "nobody")] == [False, False]
    assert await space.queue.result("t") == 7


async def test_a_cancelled_task_is_kept_for_its_time(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="t", keep_s=10)
    await queue.cancel("t")
    turned.clock.advance(9_999)
    assert await state_of(queue, "t") == "cancelled"
    turned.clock.advance(1)

    assert await queue.get("t") is None
    assert (await queue.put(2, id="t")).added


# ---- results


async def test_a_result_is_waited_for(space: Space) -> None:
    await space.queue.put(1, id="t")
    with pytest.raises(TimeoutError, match="ready"):
        await space.queue.result("t")
    waiting = asyncio.create_task(space.queue.result("t", wait_s=30))
    await (await take(space)).complete({"n": 1})

    assert await waiting == {"n": 1}
    with pytest.raises(NotFoundError):
        await space.queue.result("nobody")


async def test_an_empty_queue_is_waited_for(space: Space) -> None:
    await space.queue.put(1, id="t")
    with pytest.raises(TimeoutError, match="1 ready"):
        await space.queue.wait_empty(0.01)
    waiting = asyncio.create_task(space.queue.wait_empty(60))
    await (await take(space)).complete()

    await waiting


async def test_payload_result_and_attempts_are_kept_as_long_as_their_task(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put({"n": 1}, id="t", keep_s=10)
    await (await take(turned.space)).fail("once", retry_in_s=0)
    await (await take(turned.space)).complete("r")
    turned.clock.advance(9_999)
    info = await queue.get("t", payload=True)
    assert info is not None and (info.payload, info.result) == ({"n": 1}, "r")
    assert len(await queue.attempts("t")) == 2
    turned.clock.advance(1)

    store = await turned.space.executor.store()
    keys = [tasks.task_key("t"), tasks.payload_key("t"), tasks.result_key("t"), layout.ATTEMPTS + b"\x02t\0"]
    assert (await store.read(turned.space.executor.stored_name, keys)).entries == [None] * 4


async def test_a_claim_by_token_completes_with_the_payload_kept(space: Space) -> None:
    await space.queue.put("x" * 3_000_000, id="t")
    task = await take(space)
    await space.queue.complete(Claim(task.id, task.token), 1)

    info = await space.queue.get("t", payload=True)
    assert info is not None and len(info.payload) == 3_000_000


# ---- attempts


async def test_attempts_tell_who_tried_when_and_why_it_failed(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="t")
    await (await take(turned.space)).release()
    await (await take(turned.space)).fail("e" * 10_000, retry_in_s=0)
    (lost,) = await queue.claim("v", lease_s=10)
    turned.clock.advance(10_000)
    (last,) = await queue.claim("u", lease_s=10)
    running = await queue.attempts("t")
    await last.complete()
    found = await queue.attempts("t")

    assert [(each.number, each.worker) for each in found] == [(1, "w"), (2, "v"), (3, "u")]
    assert found[0].error is not None and len(found[0].error.encode()) == 4096
    assert found[1].error == "the lease of worker 'v' expired in attempt 2"
    assert (running[2].ended_at, found[2].error, lost.attempt) == (None, None, 2)
    assert found[2].ended_at is not None and found[2].began_at is not None


async def test_only_the_last_attempts_are_kept(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", max_attempts=100)
    for number in range(25):
        await (await take(turned.space)).fail(f"error {number}", retry_in_s=0)

    found = await turned.space.queue.attempts("t")
    assert [each.error for each in found] == [f"error {number}" for number in range(5, 25)]
    with pytest.raises(NotFoundError):
        await turned.space.queue.attempts("nobody")


async def test_a_final_failure_makes_a_task_dead_at_once(space: Space) -> None:
    await space.queue.put(1, id="t")
    await (await take(space)).fail("hopeless", is_final=True)

    assert await state_of(space.queue, "t") == "dead"


async def test_progress_is_told_with_a_heartbeat(space: Space) -> None:
    await space.queue.put(1, id="t")
    task = await take(space)
    await task.heartbeat(progress={"rows": 7})
    await task.heartbeat()

    info = await space.queue.get("t")
    assert info is not None and info.progress == {"rows": 7}


# ---- requeue and rerun


async def test_dead_tasks_are_requeued_by_kind_and_time(turned: Turned) -> None:
    queue = turned.space.queue
    for number, kind in enumerate(("mail", "sms", "mail", "mail")):
        await queue.put(1, id=f"t{number}", kind=kind, max_attempts=1)
        await (await take(turned.space)).fail("no")
        turned.clock.advance(1_000)
    third = await queue.get("t2")
    assert third is not None

    assert await queue.requeue(kind="mail", since=third.due_at, limit=1) == 1
    assert await states(turned.space, "t0", "t1", "t2", "t3") == ["dead", "dead", "ready", "dead"]
    assert await queue.requeue(kind="mail") == 2
    with pytest.raises(NotFoundError, match="t0"):
        await queue.requeue("t1", "t0")
    assert await state_of(queue, "t1") == "dead"
    with pytest.raises(InvalidError):
        await queue.requeue()


async def test_a_dead_chain_is_requeued_together_and_keeps_its_order(space: Space) -> None:
    await space.queue.put(1, id="z", max_attempts=1)
    await space.queue.put(1, id="f", after=["z"])
    await space.queue.put(1, id="a", after=["f"])
    await (await take(space)).fail("no")
    with pytest.raises(TransitionError, match="waits for 'f'"):
        await space.queue.requeue("a")
    assert await space.queue.requeue("a", "f", "z") == 3

    for id in ("z", "f", "a"):
        task = await take(space)
        assert task.id == id
        await task.complete()


async def test_a_rerun_task_runs_with_the_same_payload_from_the_beginning(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put({"n": 1}, id="t", kind="mail", keep_s=10)
    first = await take(turned.space)
    with pytest.raises(TransitionError):
        await queue.rerun("t")
    await first.fail("once", retry_in_s=0)
    await (await take(turned.space)).complete("old")
    assert (await queue.rerun("t")).state == "ready"
    turned.clock.advance(20_000)
    again = await take(turned.space)

    assert (again.payload, again.attempt, again.kind) == ({"n": 1}, 1, "mail")
    assert again.token > first.token
    assert [each.error for each in await queue.attempts("t")] == ["once", None]
    with pytest.raises(LeaseLostError):
        await first.complete()
    with pytest.raises(TimeoutError):
        await queue.result("t")


async def test_a_copy_runs_under_another_id_once(space: Space) -> None:
    await space.queue.put("p" * 2_000_000, id="t", priority=3)
    put = await space.queue.rerun("t", as_id="copy")
    again = await space.queue.rerun("t", as_id="copy")
    info = await space.queue.get("copy", payload=True)

    assert (put.added, again.added) == (True, False)
    assert info is not None and (len(info.payload), info.priority) == (2_000_000, 3)
    with pytest.raises(NotFoundError):
        await space.queue.rerun("nobody")


async def test_a_copy_is_of_the_kind_and_the_line_of_its_task_and_ends_like_it(turned: Turned) -> None:
    queue = turned.space.queue
    await queue.put(1, id="t", kind="mail", key="ann", keep_s=10)
    await queue.rerun("t", as_id="copy")
    info = await queue.get("copy")
    await queue.cancel("copy")
    turned.clock.advance(10_001)

    assert info is not None and (info.kind, info.key) == ("mail", "ann")
    assert await queue.get("copy") is None


async def test_a_claim_is_given_back_once(space: Space) -> None:
    await space.queue.put(1, id="t")
    former = await take(space)
    await former.release()
    present = await take(space)

    with pytest.raises(LeaseLostError):
        await former.release()
    assert (await space.queue.counts())["claimed"] == 1
    await present.complete()


async def test_the_token_of_a_replaced_task_is_never_accepted_again(space: Space) -> None:
    await space.queue.put(1, id="t")
    former = await take(space)
    await former.release()
    await space.queue.put(2, id="t", if_present="replace")
    present = await take(space)

    assert present.token > former.token
    for call in (former.complete, former.heartbeat, former.release):
        with pytest.raises(LeaseLostError):
            await call()
    with pytest.raises(TransitionError):
        await space.queue.put(3, id="t", if_present="replace")
    with pytest.raises(AlreadyExistsError):
        await space.queue.put(3, id="t", if_present="raise")


# ---- messages and waiting


async def test_a_message_wakes_a_task_that_waits_for_it(space: Space) -> None:
    await space.queue.put(1, id="t")
    task = await take(space)
    await space.queue.suspend(task, None, messages=["go"])
    assert await space.queue.send("t", "other", 1)
    assert await state_of(space.queue, "t") == "waiting"
    assert await space.queue.send("t", "go", {"n": 1}, send_id="s")
    assert not await space.queue.send("t", "go", {"n": 1}, send_id="s")

    again = await take(space)
    assert (again.id, again.attempt) == ("t", 1)
    with pytest.raises(LeaseLostError):
        await task.complete()
    await again.complete()
    store = await space.executor.store()
    assert (await store.scan(space.executor.stored_name, layout.MESSAGES)).entries == []
    assert not await space.queue.send("t", "go", {"n": 1}, send_id="s")
    with pytest.raises(TransitionError):
        await space.queue.send("t", "go", 1)
    with pytest.raises(NotFoundError):
        await space.queue.send("nobody", "go", 1)


async def test_a_message_that_came_before_the_waiting_is_not_missed(space: Space) -> None:
    await space.queue.put(1, id="t")
    task = await take(space)
    await space.queue.send("t", "go", 1)
    await space.queue.suspend(task, 100, messages=["go"])

    assert (await take(space)).id == "t"


async def test_a_task_takes_a_bounded_number_of_messages(space: Space) -> None:
    await space.queue.put(1, id="t")
    async with space.transaction() as tx:
        for number in range(200):
            await tx.queue.send("t", "m", number)

    with pytest.raises(InvalidError, match="200 messages"):
        await space.queue.send("t", "m", 1)
    assert (await take(space)).id == "t"
    assert await space.queue.discard("t")
    store = await space.executor.store()
    assert (await store.scan(space.executor.stored_name, layout.MESSAGES)).entries == []


async def test_a_suspended_task_is_woken_by_its_children_however_they_end(space: Space) -> None:
    await space.queue.put(1, id="t", priority=1)
    task = await take(space)
    for id in ("a", "b"):
        await space.queue.put(1, id=id, max_attempts=1)
    await space.queue.suspend(task, None, after=["a", "b"])
    await (await take(space, "a")).fail("no")
    assert await state_of(space.queue, "t") == "waiting"
    await space.queue.cancel("b")

    assert (await take(space)).attempt == 1


async def test_a_task_is_put_off_without_an_attempt(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t", max_attempts=1)
    for _ in range(3):
        task = await take(turned.space)
        await task.later(5)
        assert await turned.space.queue.claim("w", lease_s=60) == []
        turned.clock.advance(5_000)

    assert (await take(turned.space)).attempt == 1


# ---- records


async def test_an_older_process_keeps_the_fields_that_it_does_not_know(space: Space) -> None:
    await space.queue.put(1, id="a")
    await space.queue.put(1, id="f", after=["a"])

    async def add(tx: Transaction) -> None:
        def write(entry: Any) -> None:
            record = tasks.decode_record(entry.value, "a task")
            assert record.state == "waiting"
            newer = msgspec.structs.replace(record, later=("new",))
            tx.executor.unit.put(entry.key, tasks.encode_record(newer))

        write(await tx.executor.unit.get(tasks.task_key("f")))

    await space.transact(add)
    await (await take(space, "a")).complete()
    task = await take(space)
    await space.queue.send("f", "m", 1)
    await task.heartbeat(progress=1)
    await task.fail("once", retry_in_s=0)
    await space.queue.cancel("f")
    await space.queue.rerun("f")

    store = await space.executor.store()
    (entry,) = (await store.read(space.executor.stored_name, [tasks.task_key("f")])).entries
    assert entry is not None and tasks.decode_record(entry.value, "a task").later == ("new",)
