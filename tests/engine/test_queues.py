"""One worker over many spaces, and calls on all their queues."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import keepstate
from keepstate import ALL, Limit
from keepstate.engine.queue.queue import Claim, Task
from keepstate.engine.queue.tasks import payload_key
from keepstate.engine.space import space_turns
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.queues import Queues
from keepstate.engine.space.space_turns import SpaceTurns
from keepstate.errors import InvalidError, NotAllowedError, StoreUnavailableError
from keepstate.names import OWN
from keepstate.opening import PassedStore
from keepstate.stores.protocol import Batch, Put
from tests.engine.conftest import Turned, TurnedKeepstate
from tests.engine.test_queue_order import Counted


async def work(queues: Queues, handlers: Any, **options: Any) -> Any:
    async with asyncio.timeout(120):
        return await queues.run(handlers, **({"idle_s": 0.2} | options))


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that another task of the loop does."""
    async with asyncio.timeout(120):
        while not is_so():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def worker(queues: Queues, handlers: Any, **options: Any) -> Any:
    """Run a worker for the time of the block."""
    stop = asyncio.Event()
    running = asyncio.create_task(queues.run(handlers, stop=stop, drain_s=0, **options))
    try:
        yield running
    finally:
        stop.set()
        await running


class Done:
    """A handler that notes what it was given."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []

    async def handle(self, task: Task) -> None:
        self.payloads.append(task.payload)


async def test_one_worker_serves_all_spaces_under_a_name(ks: Keepstate) -> None:
    for name in ("user/1", "user/2", "user/2/mail", "user", "users/1", "other"):
        await ks.space(name).queue.put(name)
    await ks.space("user/1").queue.put("no handler", kind="sms")
    done = Done()

    report = await work(ks.queues("user"), {"": done.handle})

    assert sorted(done.payloads) == ["user", "user/1", "user/2", "user/2/mail"]
    assert report.completed == 4
    assert (await ks.queues("user").counts())["ready"] == 1


async def test_spaces_that_come_and_go_are_followed(ks: Keepstate) -> None:
    done = Done()
    async with worker(ks.queues(), done.handle):
        await ks.space("a").queue.put(1)
        await until(lambda: 1 in done.payloads)
        await ks.drop("a")
        await ks.space("b").queue.put(2)
        await until(lambda: 2 in done.payloads)
        await ks.space("a").queue.put(3, delay_s=0.2)
        await until(lambda: 3 in done.payloads)
        for number in range(4, 8):
            await ks.space("a").queue.put(number)
            await until(lambda last=number: last in done.payloads)

    assert done.payloads == [1, 2, 3, 4, 5, 6, 7]


async def test_another_process_wakes_the_worker_also_by_a_schedule(shared_url: str) -> None:
    done = Done()
    async with keepstate.open(shared_url) as ks, keepstate.open(shared_url) as other:
        await other.space("first").documents.put("x", 1)
        async with worker(ks.queues(), done.handle):
            await other.space("user/1").queue.put("put")
            await until(lambda: "put" in done.payloads)
            await other.space("user/2").schedules.put("s", every_s=1, payload="tick")
            await until(lambda: "tick" in done.payloads)


async def test_the_first_task_of_a_new_handle_is_in_the_index_at_once(turned: Turned) -> None:
    await turned.space.queue.put(1)
    await turned.ks.find()  # makes the index
    other = TurnedKeepstate(PassedStore(turned.ks.store, "async"))
    other.turned = turned.clock  # it stands still, so no second passes

    await other.space("run/2").queue.put(2)

    async with asyncio.timeout(60):
        while not await turned.ks.find(kind="queue", under="run/2"):
            await asyncio.sleep(0.01)
    await other.close()


async def test_spaces_take_turns() -> None:
    async with keepstate.open("memory://") as ks:
        for number in range(50):
            await ks.space("busy").queue.put("busy", id=str(number))
        for name in "abc":
            await ks.space(name).queue.put(name)
        done = Done()

        await work(ks.queues(), done.handle, concurrency=1)

    assert len(done.payloads) == 53
    assert max(map(done.payloads.index, "abc")) <= 4  # no space waits for two turns of another one


async def test_limits_and_pauses_of_each_space_are_kept(ks: Keepstate) -> None:
    running, most, done = Counter[str](), Counter[str](), Done()
    for name in ("one", "two"):
        await ks.space(name).queue.configure(limits=[Limit(running=1)])
        for number in range(4):
            await ks.space(name).queue.put(name, kind="ab"[number % 2])
    await ks.space("paused").queue.put("paused")
    await ks.space("paused").queue.pause()

    async def handle(task: Task) -> None:
        running[task.payload] += 1
        most[task.payload] = max(most[task.payload], running[task.payload])
        await asyncio.sleep(0.01)
        running[task.payload] -= 1
        await done.handle(task)

    async with worker(ks.queues(), handle):
        await until(lambda: len(done.payloads) == 8)
        assert "paused" not in done.payloads
        await ks.space("paused").queue.resume()
        await until(lambda: "paused" in done.payloads)

    assert most == {"one": 1, "two": 1, "paused": 1}


async def test_a_slot_that_another_worker_frees_wakes_a_task_of_another_kind(shared_url: str) -> None:
    done = Done()
    async with keepstate.open(shared_url) as ks, keepstate.open(shared_url) as other:
        queue = other.space("s").queue
        await queue.configure(limits=[Limit(running=1)])
        await queue.put("a", kind="a")
        [held] = await queue.claim("w", lease_s=600)
        await queue.put("b", kind="b")
        await other.deliver()
        async with worker(ks.queues(), {"b": done.handle}):
            await asyncio.sleep(0.3)
            assert not done.payloads
            await held.complete()
            await until(lambda: done.payloads == ["b"])


async def test_two_workers_never_take_one_task_twice(shared_url: str) -> None:
    taken = Counter[str]()

    async def handle(task: Task) -> None:
        taken[f"{task.payload}:{task.attempt}"] += 1

    async with keepstate.open(shared_url) as one, keepstate.open(shared_url) as two:
        names = [f"u/{number}" for number in range(8)]
        for name in names:
            for number in range(3):
                await one.space(name).queue.put(f"{name}:{number}")

        await asyncio.gather(*(work(ks.queues("u"), handle, idle_s=1) for ks in (one, two)))

    assert taken == {f"{name}:{number}:1": 1 for name in names for number in range(3)}


async def test_tenants_are_covered_if_asked_for(ks: Keepstate) -> None:
    await ks.space("s").queue.put("none")
    for id in ("ann", "bob"):
        await ks.tenant(id).space("s").queue.put(id)
    done = Done()

    await work(ks.tenant("ann").queues(), done.handle)
    assert done.payloads == ["ann"]
    await work(ks.queues(), done.handle)
    assert done.payloads == ["ann", "none"]
    await work(ks.queues(tenant=ALL), done.handle)

    assert done.payloads == ["ann", "none", "bob"]
    assert (await ks.queues(tenant=ALL).counts())["done"] == 3
    with pytest.raises(NotAllowedError, match="tenant=ALL"):
        ks.tenant("ann").queues(tenant=ALL)


async def test_a_handler_knows_the_space_and_the_tenant_of_its_task(ks: Keepstate) -> None:
    await ks.space("s/1").queue.put("none")
    await ks.tenant("ann").space("s/2").queue.put("ann", kind="plain")
    known = set[tuple[str | None, str]]()

    async def handle(task: Task) -> None:
        known.add((task.tenant, task.space))

    def plain(task: Any) -> None:
        known.add((task.tenant, task.space))

    await work(ks.queues("s", tenant=ALL), {"": handle, "plain": plain})

    assert known == {(None, "s/1"), ("ann", "s/2")}


async def test_a_task_that_cannot_be_read_holds_up_no_other_space(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/k.db"
    async with keepstate.open(url) as ks:
        for name in "abc":
            await ks.space(name).queue.put(name, id="t")
        store = await ks.opened()
        await store.apply([Batch("b", [Put(payload_key("t"), b"\xc1")])])
        done = Done()

        await work(ks.queues(), done.handle)

    assert sorted(done.payloads) == ["a", "c"]


async def test_dead_tasks_of_all_spaces_are_listed_in_pages_and_requeued(ks: Keepstate) -> None:
    for name, count in (("u/1", 2), ("u/2", 0), ("u/3", 3), ("v", 1)):
        await ks.space(name).documents.put("x", 1)
        for number in range(count):
            await ks.space(name).queue.put(number, id=f"{name}:{number}", max_attempts=1, kind="mail")
        for task in await ks.space(name).queue.claim("w", lease_s=60, count=9) if count else ():
            await task.fail("no")
    queues, found, after = ks.queues("u"), list[str](), None

    while True:
        page = await queues.dead(after=after, limit=2)
        found += [f"{each.space} {each.task.id}" for each in page]
        if (after := page.next) is None:
            break

    assert sorted(found) == ["u/1 u/1:0", "u/1 u/1:1", "u/3 u/3:0", "u/3 u/3:1", "u/3 u/3:2"]
    first = await queues.dead(limit=1)
    with pytest.raises(InvalidError, match="other queues"):
        await ks.queues().dead(after=first.next)
    with pytest.raises(InvalidError, match="after"):
        await queues.dead(after="nonsense")
    assert await queues.requeue(kind="sms") == 0
    assert await queues.requeue(limit=3) == 3
    assert await queues.requeue(kind="mail") == 2
    assert (await queues.counts())["ready"] == 5
    assert (await ks.queues().counts())["dead"] == 1


async def test_dead_tasks_are_listed_without_a_look_at_spaces_that_have_none() -> None:
    store = Counted()
    await store.open()
    async with keepstate.open(store) as ks:
        for number in range(200):
            await ks.space(f"u/{number:03}").documents.put("x", 1)
        for name in ("u/050", "u/150", "u"):
            await ks.space(name).queue.put(1, max_attempts=1, id=name)
            [task] = await ks.space(name).queue.claim("w", lease_s=60)
            await task.fail("no")
        await ks.space("u/000").queue.put("ready")
        await ks.find()

        before = store.calls
        page = await ks.queues("u").dead(limit=2)
        rest = await ks.queues("u").dead(limit=2, after=page.next)
        assert [each.space for each in [*page, *rest]] == ["u", "u/050", "u/150"]
        assert store.calls - before < 40
    await store.close()


async def test_dead_tasks_of_all_tenants_are_listed_in_pages() -> None:
    async with keepstate.open("memory://") as ks:
        for handle in (ks, ks.tenant("a"), ks.tenant("b")):
            for name in ("q/1", "q/2"):
                await handle.space(name).queue.put(1, max_attempts=1)
                [task] = await handle.space(name).queue.claim("w", lease_s=60)
                await task.fail("no")
        queues, found, after = ks.queues("q", tenant=ALL), list[tuple[str | None, str]](), None
        while True:
            page = await queues.dead(after=after, limit=1)
            found += [(each.tenant, each.space) for each in page]
            if (after := page.next) is None:
                break

        assert found == [(tenant, name) for tenant in (None, "a", "b") for name in ("q/1", "q/2")]


async def test_all_queues_are_paused_and_resumed_and_no_other_space_is_touched(ks: Keepstate) -> None:
    await ks.space("plain").documents.put("x", 1)
    await ks.space("timed").schedules.put("s", every_s=3600)
    await ks.space("task").queue.put(1)
    before = (await ks.space("plain").size()).entries

    assert await ks.queues().pause() == 2

    assert await ks.space("task").queue.claim("w", lease_s=60) == []
    assert (await ks.space("plain").size()).entries == before
    assert await ks.queues().resume() == 2
    assert len(await ks.space("task").queue.claim("w", lease_s=60)) == 1


async def test_a_worker_killed_between_any_two_calls_loses_no_task() -> None:
    ended = False
    for killed_at in range(1, 400, 4):
        store = Counted()
        await store.open()
        async with keepstate.open(store) as ks, keepstate.open(store) as other:
            for number in range(6):
                await ks.space(f"u/{number % 3}").queue.put(number, kind="ab"[number % 2])
            store.fails_from = store.calls + killed_at
            turns = SpaceTurns(ks, "u", OWN, None)
            with suppress(StoreUnavailableError):
                while held := await turns.claim("w", lease_s=600, count=2, wait_s=0, kinds=None):
                    for task in held:
                        await task.complete()
                ended = True
            await ks.index.close()  # whatever it still had to deliver stays undelivered
            store.fails_from = None

            for number in range(3):
                queue = other.space(f"u/{number}").queue
                for info in await queue.list("claimed"):  # as if its lease had lapsed
                    await queue.release(Claim(info.id, info.token))
            done = Done()
            await work(other.queues("u"), done.handle, idle_s=0.02)
            counts: Mapping[str, int] = await other.queues().counts()
            assert counts["done"] == 6, (killed_at, counts)
        await store.close()
        if ended:
            return
    raise AssertionError("the last worker was killed too")


async def test_a_task_whose_writer_was_killed_is_found_by_a_sweep(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_turns, "_SWEEP_S", 0.1)
    monkeypatch.setattr(space_turns, "_REST_FACTOR", 1)
    url = f"sqlite:///{tmp_path}/k.db"
    writer = (
        "import os, sys, keepstate.sync as ks\n"
        "ks.open(sys.argv[1]).space('u/1').queue.put('left')\n"
        "os._exit(0)\n"
    )
    done = Done()
    async with keepstate.open(url) as ks:
        await ks.space("u/2").queue.put("first")
        async with worker(ks.queues(), done.handle):
            await until(lambda: "first" in done.payloads)
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", writer, url)
            assert await process.wait() == 0
            await until(lambda: "left" in done.payloads)


async def test_a_cancelled_claim_returns_what_it_had_claimed() -> None:
    async with keepstate.open("memory://") as ks:
        for name in "ab":
            await ks.space(name).queue.put(name)
        turns = SpaceTurns(ks, "", OWN, None)

        async def hang(*_: object, **__: object) -> list[Task]:
            await asyncio.sleep(600)
            return []

        queue = turns._queue((None, "b"))  # pyright: ignore[reportPrivateUsage]
        queue.claim = hang  # type: ignore[method-assign]  # it waits for a slow server
        claiming = asyncio.create_task(turns.claim("w", lease_s=600, count=2, wait_s=0, kinds=None))
        async with asyncio.timeout(60):
            while (await ks.space("a").queue.counts())["claimed"] == 0:
                await asyncio.sleep(0.01)
        claiming.cancel()
        with suppress(asyncio.CancelledError):
            await claiming

        assert (await ks.queues().counts())["ready"] == 2


def test_a_blocking_handle_runs_a_worker_in_this_thread(tmp_path: Any) -> None:
    from keepstate import sync

    def double(task: Any) -> int:
        task.heartbeat(progress="half")
        return 2 * int(task.payload)

    with sync.open(f"sqlite:///{tmp_path}/k.db", tenant="ann") as ks:
        for name in ("a", "b"):
            ks.space(name).queue.put(3, id="t")
        report = ks.space("a").queue.run(double, idle_s=0.05)
        both = ks.queues().run({"": double}, idle_s=0.05)

        assert (report.completed, both.completed) == (1, 1)
        assert ks.space("b").queue.result("t") == 6
