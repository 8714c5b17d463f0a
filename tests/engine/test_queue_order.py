"""Turns, limits, pauses and aging of a queue, compared with a plain model over random histories."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import keepstate
from keepstate import Claim, Limit
from keepstate._runner import TaskRunner
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import due_tasks, ordered_claims
from keepstate.engine.queue.due_tasks import put_ready_or_dead
from keepstate.engine.queue.line_keeper import LineKeeper
from keepstate.engine.queue.ordered_claims import OrderedClaims
from keepstate.engine.queue.queue_cache import QueueCache
from keepstate.engine.queue.slots import slot_key
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError, StoreUnavailableError
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Entry, Outcome, Page, Reading
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import Turned, TurnedKeepstate
from tests.engine.queue_model import History, left_of_rules


async def run_history(seed: int) -> None:
    """Run a random history of a queue that two processes work on, on a clock that only it turns."""
    rng, clock = random.Random(seed), ManualClock(seed=seed)
    store = MemoryStore(runner=TaskRunner(), clock=clock)
    await store.open()
    handles: list[Keepstate] = []
    for _ in range(2):
        handle = TurnedKeepstate(PassedStore(store, "async"))
        handle.turned = clock
        handles.append(handle)
    try:
        await History([handle.space("run/1") for handle in handles], rng, clock).run(120)
    finally:
        for handle in handles:
            await handle.close()
        await store.close()


@pytest.mark.parametrize("seed", range(25))
async def test_a_queue_behaves_like_the_model(seed: int) -> None:
    await run_history(seed)


def _lapse_without_freeing() -> Any:
    async def keep_slots(unit: Unit, record: TaskRecord, now_ms: int) -> TaskRecord:
        return await put_ready_or_dead(unit, msgspec.structs.replace(record, slots=()), now_ms)

    return patch.object(due_tasks, "put_ready_or_dead", keep_slots)


def _blocked_for_ever() -> Any:
    async def forget(_: LineKeeper, unit: Unit, marks: Sequence[Entry]) -> None:
        for mark in marks:
            unit.delete(mark.key)

    return patch.object(LineKeeper, "_unblock", forget)


def _rules_of_yesterday() -> Any:
    return patch.object(QueueCache, "learn_rules", lambda *_: True)


def _turns_that_starve() -> Any:
    return patch.object(OrderedClaims, "_next_turn", lambda _, source, *__: source.turn)


def _no_look_at_lines_of_former_limits() -> Any:
    async def settled(*_: object) -> bool:
        return True

    return patch.object(LineKeeper, "_replace_former", settled)


def _empty_without_reading_the_rules() -> Any:
    async def confirmed(*_: object) -> bool:
        return True

    return patch.object(QueueCache, "confirm_rules", confirmed)


def _uncounted() -> Any:
    async def counted(*_: object) -> bool:
        return True

    return patch.object(LineKeeper, "_count_pages", counted)


@pytest.mark.parametrize(
    "plant",
    [
        _lapse_without_freeing,
        _blocked_for_ever,
        _rules_of_yesterday,
        _turns_that_starve,
        _no_look_at_lines_of_former_limits,
        _empty_without_reading_the_rules,
        _uncounted,
    ],
)
async def test_the_model_finds_a_planted_bug(plant: Callable[[], Any]) -> None:
    with plant(), pytest.raises(AssertionError):
        for seed in range(40):
            await run_history(seed)


@pytest.mark.parametrize("seed", range(3))
async def test_every_store_keeps_the_order_and_the_limits(seed: int, url: str) -> None:
    async with keepstate.open(url) as one, keepstate.open(url) as other:
        spaces = [handle.space("run/1") for handle in (one, other)]
        if url.startswith("file:"):
            spaces = spaces[:1]  # one process has it open

        await History(spaces, random.Random(1000 + seed), None).run(60)


# ---- limits


class Interleaved(MemoryStore):
    """Lets other tasks run after each scan."""

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        page = await super().scan(space, prefix, **options)
        await asyncio.sleep(0)
        return page


async def claim_one_slot() -> int:
    """Return how many tasks of different kinds two workers claim at once under a limit of one."""
    store = Interleaved()
    await store.open()
    async with keepstate.open(store) as one, keepstate.open(store) as other:
        queues = [handle.space("run/1").queue for handle in (one, other)]
        await queues[0].configure(limits=[Limit(running=1)])
        for kind in "ab":
            await queues[0].put(kind, kind=kind)
        for queue in queues:  # both know the rules
            assert await queue.claim("w", lease_s=600, kinds=["none"]) == []
        found = await asyncio.gather(
            *(queue.claim("w", lease_s=600, kinds=[kind]) for queue, kind in zip(queues, "ab", strict=True))
        )
    await store.close()
    return sum(map(len, found))


async def test_a_slot_taken_without_a_check_is_found() -> None:
    assert await claim_one_slot() == 1

    def write_unchecked(unit: Unit, names: Sequence[bytes]) -> None:
        for name in names:
            unit.put(slot_key(name), b"")

    with patch.object(ordered_claims, "write_slots", write_unchecked):
        assert await claim_one_slot() == 2


class Counted(MemoryStore):
    """Counts its calls, and fails from a call on."""

    calls = entries = 0
    fails_from: int | None = None

    def _count(self) -> None:
        self.calls += 1
        if self.fails_from is not None and self.calls >= self.fails_from:
            raise StoreUnavailableError("the process was killed here")

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self._count()
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self._count()
        self.entries += len(keys)
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self._count()
        page = await super().scan(space, prefix, **options)
        self.entries += len(page.entries)
        return page


async def names(space: Space, count: int = 10, **options: Any) -> list[Any]:
    """Claim tasks, and return their payloads."""
    return [task.payload for task in await space.queue.claim("w", lease_s=600, count=count, **options)]


async def put_all(space: Space, *jobs: str) -> None:
    """Put tasks whose payload is their name, and whose key is its first letter."""
    for job in jobs:
        await space.queue.put(job, key=job[0])


async def test_keys_of_one_priority_take_turns(space: Space) -> None:
    await put_all(space, "a1", "a2", "a3", "b1", "b2", "c1")
    await space.queue.put("plain")
    await space.queue.put("d1", key="d", priority=1)

    assert await names(space, 5) == ["d1", "a1", "b1", "c1", "plain"]
    await put_all(space, "e1")
    assert await names(space, 4) == ["a2", "b2", "e1", "a3"]


async def test_a_key_at_its_limit_is_stepped_over_until_a_task_of_it_ends(space: Space) -> None:
    await space.queue.configure(limits=[Limit(running=1, each_key=True)])
    await put_all(space, "a1", "a2", "b1")

    first, other = await space.queue.claim("w", lease_s=600, count=10)
    assert [first.payload, other.payload] == ["a1", "b1"]
    assert await names(space) == []
    await other.complete()
    assert await names(space) == []
    await first.fail("no", retry_in_s=0)
    assert await names(space) == ["a2"]


@pytest.mark.parametrize("end", ["complete", "fail", "release", "discard"])
async def test_each_way_to_end_a_claim_frees_its_slot(space: Space, end: str) -> None:
    await space.queue.configure(limits=[Limit(running=1), Limit(running=1, each_key=True)])
    await put_all(space, "a1", "a2")
    (task,) = await space.queue.claim("w", lease_s=600, count=2)
    match end:
        case "complete":
            await task.complete()
        case "fail":
            await task.fail("no", retry_in_s=60)
        case "release":
            await task.release()
        case _:
            await space.queue.discard(task.id)

    assert await names(space, 2) == ["a2"]


async def test_a_lapsed_lease_frees_its_slot(turned: Turned) -> None:
    await turned.space.queue.configure(limits=[Limit(running=1, each_key=True)])
    await put_all(turned.space, "a1", "a2")
    assert await names(turned.space) == ["a1"]
    turned.clock.advance(601_000)

    assert await names(turned.space) == ["a2"]


async def test_a_transaction_that_completes_a_task_frees_its_slot(space: Space) -> None:
    await space.queue.configure(limits=[Limit(running=1)])
    await put_all(space, "a1", "a2")
    (task,) = await space.queue.claim("w", lease_s=600)
    async with space.transaction() as tx:
        await tx.queue.complete(task)

    assert await names(space) == ["a2"]


async def test_limits_of_nothing_and_of_very_many(space: Space) -> None:
    await space.queue.configure(
        limits=[
            Limit(running=0, kind="never"),
            Limit(starts=0, kind="never", each_key=True),
            Limit(running=2**31 - 1),
            Limit(starts=2**31 - 1, per_s=3600, each_key=True),
        ]
    )
    for number in range(80):
        await space.queue.put(number, kind="never" if number % 2 else "", key=str(number))

    assert await names(space, 100) == list(range(0, 80, 2))
    await space.queue.configure()
    assert await names(space, 100) == list(range(1, 80, 2))


@pytest.mark.parametrize("limit", [Limit(running=0), Limit(starts=0, per_s=3600)])
async def test_a_limit_of_0_for_all_starts_nothing_until_it_is_lifted(space: Space, limit: Limit) -> None:
    await put_all(space, "a1", "b1")
    await space.queue.put("plain")
    (held,) = await space.queue.claim("w", lease_s=600)
    await space.queue.configure(limits=[limit])

    assert await names(space) == []
    await held.complete()
    assert await names(space) == []
    await space.queue.configure(limits=[Limit(running=0, each_key=True)])
    assert await names(space) == ["plain"]
    await space.queue.configure()
    assert await names(space) == ["b1"]


async def test_a_limit_that_is_lowered_starts_nothing_until_enough_have_ended(space: Space) -> None:
    await space.queue.configure(limits=[Limit(running=4)])
    await put_all(space, *"abcdefgh")
    held = await space.queue.claim("w", lease_s=600, count=8)
    assert len(held) == 4
    await space.queue.configure(limits=[Limit(running=2)])

    for task in held[:2]:
        await task.complete()
        assert await names(space) == []
    await held[2].complete()
    assert await names(space) == ["e"]
    await held[3].complete()
    assert await names(space) == ["f"]


@pytest.mark.parametrize("count", [3, 130])
async def test_a_new_limit_counts_the_tasks_that_run_already(space: Space, count: int) -> None:
    for number in range(count + 2):
        await space.queue.put(number, key="k")
    held = await space.queue.claim("w", lease_s=600, count=count)
    await space.queue.configure(limits=[Limit(running=count), Limit(running=count - 1, each_key=True)])

    assert await names(space) == []
    await held[0].complete()
    assert await names(space) == []
    await held[1].complete()
    assert len(await names(space)) == 1


async def test_lines_that_a_former_limit_blocked_come_back(space: Space) -> None:
    await space.queue.configure(limits=[Limit(running=1, each_key=True)])
    await put_all(space, *(f"{key}{number}" for number in range(3) for key in "abc"))
    assert await names(space) == ["a0", "b0", "c0"]
    assert await names(space) == []
    await space.queue.configure(limits=[Limit(running=2, each_key=True)])

    assert await names(space) == ["a1", "b1", "c1"]


async def test_starts_come_back_evenly(turned: Turned) -> None:
    space = turned.space
    await space.queue.configure(limits=[Limit(starts=2, per_s=10, kind="mail")])
    for number in range(6):
        await space.queue.put(number, kind="mail")
    await space.queue.put("other")

    assert await names(space) == [0, 1, "other"]
    turned.clock.advance(4_999)
    assert await names(space) == []
    turned.clock.advance(1)
    assert await names(space) == [2]
    turned.clock.advance(60_000)
    assert await names(space) == [3, 4]


async def test_a_point_of_priority_is_worth_its_time_of_waiting(turned: Turned) -> None:
    space = turned.space
    await space.queue.put("old", priority=0)
    turned.clock.advance(60_000)
    await space.queue.put("early", priority=3)
    await space.queue.configure(aging_s=30)
    turned.clock.advance(2_000)
    await space.queue.put("late", priority=1)
    await space.queue.put("top", priority=4)

    assert await names(space) == ["top", "early", "old", "late"]


async def test_a_claim_stays_small_although_thousands_of_keys_are_at_their_limit() -> None:
    store = Counted()
    await store.open()
    async with keepstate.open(store) as ks:
        space = ks.space("run/1")
        await space.queue.configure(limits=[Limit(running=1, each_key=True), Limit(running=1, kind="slow")])
        for number in range(1_500):
            await space.queue.put("blocked", key=f"k{number}", kind="fast")
            await space.queue.put("blocked", key=f"k{number}", kind="fast")
            await space.queue.put("slow", key=f"s{number}", kind="slow")
        held = await space.queue.claim("w", lease_s=600, count=5_000)
        assert Counter(task.payload for task in held) == {"blocked": 1_500, "slow": 1}
        assert await names(space) == []
        await space.queue.put("next", key="free")
        store.calls = 0

        assert await names(space, 1) == ["next"]
        assert store.calls <= 20
        store.calls = 0
        await held[0].complete()
        assert await names(space, 1) == ["blocked" if held[0].kind == "fast" else "slow"]
        assert store.calls <= 30
    await store.close()


@pytest.mark.slow
async def test_what_a_claim_reads_does_not_grow_with_the_number_of_keys_at_their_limit() -> None:
    store = Counted()
    await store.open()
    read: list[int] = []
    async with keepstate.open(store) as ks:
        for keys in (500, 4_000):
            space = ks.space(f"run/{keys}")
            await space.queue.configure(
                limits=[Limit(running=1, each_key=True), Limit(running=0, kind="off")]
            )
            for start in range(0, keys, 100):
                async with space.transaction() as tx:
                    for number in range(start, start + 100):
                        await tx.queue.put("first", key=f"k{number}")
                        await tx.queue.put("second", key=f"k{number}")
                        await tx.queue.put("off", key=f"o{number}", kind="off")
            held = [
                task
                for _ in range(keys // 500)
                for task in await space.queue.claim("w", lease_s=3_600, count=500)
            ]
            assert len(held) == keys
            assert await names(space) == []
            await space.queue.put("next", key="free")
            store.calls = store.entries = 0

            assert await names(space) == ["next"]
            assert await names(space) == []
            read.append(store.calls + store.entries)
    await store.close()

    assert read[1] <= read[0] + 4, read


class CountedCalls(StoreWrapper):
    """Counts the calls of a store."""

    calls = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.calls += 1
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.calls += 1
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.calls += 1
        return await super().scan(space, prefix, **options)


async def claims_among(keys: int, url: str) -> tuple[int, int, int]:
    """Return the most calls of a claim, the calls of the last one, and the peak of memory in bytes.

    Each task has a key of its own. The first claims also move the tasks that have arrived into lines.
    """
    async with keepstate.open(url) as filled:
        space = filled.space("run/1")
        await space.queue.configure(limits=[Limit(running=1, each_key=True)])
        for start in range(0, keys, 250):
            async with space.transaction() as tx:
                for number in range(start, start + 250):
                    await tx.queue.put("payload", key=f"k{number}")
        store = CountedCalls(filled.store)
        async with keepstate.open(store) as ks:
            space = ks.space("run/1")
            calls: list[int] = []
            tracemalloc.start()
            try:
                for _ in range(keys // 4_000 + 3):
                    store.calls = 0
                    assert len(await names(space, 1)) == 1
                    calls.append(store.calls)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
    return max(calls), calls[-1], peak


@pytest.mark.deep
async def test_a_claim_among_100_000_keys_costs_no_more_than_among_10_000(tmp_path: Path) -> None:
    few, many = [
        await claims_among(keys, f"sqlite:///{tmp_path}/{keys}.db?durability=normal")
        for keys in (10_000, 100_000)
    ]

    assert many[0] <= few[0] + 4
    assert max(few[1], many[1]) <= 30
    assert max(few[2], many[2]) <= 4 << 20


async def test_a_claim_of_one_task_reads_few_of_many_lines() -> None:
    store = Counted()
    await store.open()
    async with keepstate.open(store) as ks:
        space = ks.space("run/1")
        await space.queue.configure(limits=[Limit(running=9, each_key=True)])
        await put_all(
            space, *(f"{key}{number}" for number in range(3) for key in "abcdefghijklmnopqrstuvwxyz")
        )
        assert await names(space, 1) == ["a0"]
        store.calls = 0

        assert await names(space, 1) == ["b0"]
        assert store.calls <= 12
    await store.close()


async def test_no_key_waits_for_more_than_one_task_of_each_other_key(space: Space) -> None:
    """The bound of waiting: as many starts as there are keys, whatever else arrives."""
    for number in range(60):
        await space.queue.put("many", key=f"k{number % 3}")
    await space.queue.put("one", key="late")
    started = list[Any]()
    while "one" not in started:
        started += await names(space, 1)
        await space.queue.put("many", key="k0")

    assert len(started) <= 4


async def test_a_worker_killed_between_any_two_calls_loses_no_task_and_no_slot() -> None:
    for killed_at in range(1, 60):
        store = Counted()
        await store.open()
        async with keepstate.open(store) as ks, keepstate.open(store) as other:
            queue = ks.space("run/1").queue
            await queue.configure(limits=[Limit(running=2, each_key=True), Limit(running=3)])
            for number in range(8):
                await queue.put(number, key="ab"[number % 2])
            store.fails_from = store.calls + killed_at
            with suppress(StoreUnavailableError):
                for _ in range(4):
                    for task in await queue.claim("w", lease_s=600, count=2):
                        await task.complete()
            store.fails_from = None

            rest = other.space("run/1")
            for info in await rest.queue.list("claimed"):  # as if its lease had lapsed
                await rest.queue.release(Claim(info.id, info.token))
            done = 0
            while held := await rest.queue.claim("w", lease_s=600, count=3):
                assert len(held) <= 3
                for task in held:
                    await task.complete()
                    done += 1
            assert (await rest.queue.counts())["done"] == 8, killed_at
            assert not await left_of_rules(rest)
        await store.close()


async def test_processes_together_never_exceed_a_limit(shared_url: str) -> None:
    running = Counter[str]()
    most = Counter[str]()

    async def work(space: Space) -> None:
        while found := await space.queue.claim("w", lease_s=600, count=2, wait_s=0.5):
            for task in found:
                for name in ("all", task.key or ""):
                    running[name] += 1
                    most[name] = max(most[name], running[name])
            await asyncio.sleep(0.005)
            for task in found:
                for name in ("all", task.key or ""):
                    running[name] -= 1
                await task.complete()

    async with keepstate.open(shared_url) as one, keepstate.open(shared_url) as other:
        spaces = [handle.space("run/1") for handle in (one, other)]
        await spaces[0].queue.configure(limits=[Limit(running=5), Limit(running=2, each_key=True)])
        for number in range(60):
            await spaces[0].queue.put(number, key="abcd"[number % 4])
        await asyncio.gather(*(work(space) for space in spaces for _ in range(4)))

        assert (await spaces[0].queue.counts())["done"] == 60
    assert most["all"] <= 5
    assert max(most[key] for key in "abcd") <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"running": -1},
        {"running": 1.5},
        {"starts": 2**31},
        {"starts": 1, "per_s": 0},
        {"starts": 1, "per_s": float("nan")},
        {"running": 1, "kind": "k" * 201},
        {"running": 1, "kind": 7},
        {"running": True},
        {"running": 1, "each_key": 1},
    ],
)
def test_a_wrong_limit_is_refused_in_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        Limit(**wrong)


async def test_keys_and_kinds_of_any_text_have_lines_and_limits(space: Space) -> None:
    texts = ["\x00" * 200, "é" * 100, "a" * 200, "a", "\x00", "a\x00", "\x00" * 199 + "b"]
    await space.queue.configure(limits=[Limit(running=1, each_key=True)])
    for kind in texts:
        for key in texts:
            await space.queue.put([kind, key], kind=kind, key=key)

    assert await names(space, 100) == [[texts[0], key] for key in texts]
