"""Each kind of record is verified, alone and with those that belong to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import msgspec
import pytest

import keepstate
from keepstate.cli.damage import StoreSource
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import MANIFEST_BYTE
from keepstate.engine.queue import tasks, ticks
from keepstate.engine.repair.verifier import Problem, Verifier, log_problems, size_problems
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Delete, Entry, Put, Store, Write
from keepstate.values import codec, limits
from keepstate.values.key import pack, stored_key

LARGE = Random(1).randbytes(2_500_000)
PLAN = layout.named_key(layout.DOCUMENTS, "plan")
BIG = layout.named_key(layout.DOCUMENTS, "big")

Damage = Callable[[Store], Awaitable[list[Write]]]


async def everything(ks: keepstate.Keepstate) -> None:
    """Write at least one record of each kind."""
    space = ks.space("run")
    await space.documents.put("plan", {"step": 1})
    await space.documents.put("big", LARGE)
    await space.documents.put("n" * 500, "a name that is cut")
    await space.leases.acquire("lock", 60)
    await space.events.append({"a": 1}, {"b": 2})
    await space.events.append(LARGE, stream="large")
    for name in ("ready", "done", "claimed", "failing"):
        await space.queue.put(name, id=name, max_attempts=1, priority=0 if name == "ready" else 1)
    done, claimed, failing = await space.queue.claim("me", lease_s=60, count=3)
    await done.complete({"came": "to"})
    await failing.fail("broken")
    await space.queue.put("later", id="waiting", delay_s=60)
    assert claimed.id
    await space.schedules.put("nightly", cron="0 2 * * *", payload={"of": "yesterday"})
    await ks.sweep()


async def problems_of(store: Store, space: str) -> list[Problem]:
    source = StoreSource(store)
    verifier = Verifier(source, space)
    found: list[Problem] = []
    async for page in source.pages(space):
        for entry in page:
            found += await verifier.problems(entry)
    return found


async def entry(store: Store, key: bytes) -> Entry:
    (found,) = (await store.read("run", [key])).entries
    assert found is not None
    return found


async def first(store: Store, part: bytes) -> Entry:
    return (await store.scan("run", part, limit=1)).entries[0]


async def test_a_space_with_every_kind_of_record_is_whole(ks: keepstate.Keepstate) -> None:
    await everything(ks)

    assert await problems_of(ks.store, "run") == []
    assert await log_problems(ks.store, "run") == []


async def garbled_document(_: Store) -> list[Write]:
    return [Put(PLAN, b"\x01\xc1")]


async def manifest_that_is_none(_: Store) -> list[Write]:
    return [Put(BIG, MANIFEST_BYTE + b"\x93")]


async def missing_part(store: Store) -> list[Write]:
    return [Delete((await first(store, layout.PARTS)).key)]


async def part_of_something_else(store: Store) -> list[Write]:
    return [Put((await first(store, layout.PARTS)).key, b"other bytes")]


async def garbled_event(store: Store) -> list[Write]:
    return [Put((await first(store, layout.EVENTS)).key, b"\x93")]


async def event_without_head(_: Store) -> list[Write]:
    return [Delete(layout.stream_key(layout.HEADS, "main"))]


async def head_without_event(store: Store) -> list[Write]:
    page = await store.scan("run", layout.stream_key(layout.EVENTS, "main"))
    return [Delete(page.entries[-1].key)]


async def garbled_head(_: Store) -> list[Write]:
    return [Put(layout.stream_key(layout.HEADS, "main"), b"head")]


async def garbled_task(_: Store) -> list[Write]:
    return [Put(tasks.task_key("ready"), b"\x00")]


async def task_of_another_name(store: Store) -> list[Write]:
    return [Put(tasks.task_key("ready"), (await entry(store, tasks.task_key("waiting"))).value)]


async def task_without_payload(_: Store) -> list[Write]:
    return [Delete(tasks.payload_key("ready"))]


async def task_without_result(_: Store) -> list[Write]:
    return [Delete(tasks.result_key("done"))]


async def task_without_its_place(store: Store) -> list[Write]:
    return [Delete((await first(store, layout.CLAIMED)).key)]


async def place_without_task(_: Store) -> list[Write]:
    return [Put(tasks.timed_key(layout.WAITING, 1, "nobody"), msgspec.msgpack.encode(["nobody"]))]


async def task_in_two_places(_: Store) -> list[Write]:
    return [Put(tasks.timed_key(layout.WAITING, 1, "claimed"), msgspec.msgpack.encode(["claimed"]))]


async def payload_without_task(_: Store) -> list[Write]:
    return [Put(tasks.payload_key("nobody"), codec.encode(1))]


async def garbled_payload(_: Store) -> list[Write]:
    return [Put(tasks.payload_key("ready"), b"\x7f")]


async def garbled_schedule(_: Store) -> list[Write]:
    return [Put(ticks.schedule_key("nightly"), b"\x91\x01")]


async def schedule_of_another_name(store: Store) -> list[Write]:
    return [Put(ticks.schedule_key("daily"), (await entry(store, ticks.schedule_key("nightly"))).value)]


async def schedule_without_payload(_: Store) -> list[Write]:
    return [Delete(ticks.planned_key("nightly"))]


async def schedule_without_its_place(store: Store) -> list[Write]:
    return [Delete((await first(store, layout.TICKS)).key)]


async def place_without_schedule(_: Store) -> list[Write]:
    return [Put(ticks.tick_key(1, "nothing"), b"")]


async def schedule_in_two_places(_: Store) -> list[Write]:
    return [Put(ticks.tick_key(1, "nightly"), b"")]


async def payload_without_schedule(_: Store) -> list[Write]:
    return [Put(ticks.planned_key("nothing"), codec.encode(1))]


async def garbled_payload_of_a_schedule(_: Store) -> list[Write]:
    return [Put(ticks.planned_key("nightly"), b"\x7f")]


async def garbled_lease(_: Store) -> list[Write]:
    return [Put(layout.named_key(layout.LEASES, "lock"), b"")]


async def event_at_no_position(_: Store) -> list[Write]:
    return [Put(layout.EVENTS + pack("main", 7), b"")]


@pytest.mark.parametrize(
    ("damage", "alone", "said"),
    [
        (garbled_document, True, "damaged"),
        (manifest_that_is_none, True, "damaged"),
        (missing_part, True, "is missing"),
        (part_of_something_else, True, "match its name"),
        (garbled_event, True, "damaged"),
        (event_without_head, False, "head of its stream is lost"),
        (head_without_event, False, "last event of stream 'main' is lost"),
        (garbled_head, True, "not the head"),
        (garbled_task, True, "damaged"),
        (task_of_another_name, True, "record of another task"),
        (task_without_payload, False, "payload is lost"),
        (task_without_result, False, "result is lost"),
        (task_without_its_place, False, "place among the claimed tasks is lost"),
        (place_without_task, False, "task 'nobody' is lost"),
        (task_in_two_places, False, "another index entry"),
        (payload_without_task, False, "task 'nobody' is lost"),
        (garbled_payload, True, "7f"),
        (garbled_schedule, True, "cut off"),
        (schedule_of_another_name, True, "record of another schedule"),
        (schedule_without_payload, False, "payload is lost"),
        (schedule_without_its_place, False, "place among the due ones is lost"),
        (place_without_schedule, False, "schedule 'nothing' is lost"),
        (schedule_in_two_places, False, "another index entry"),
        (payload_without_schedule, False, "schedule 'nothing' is lost"),
        (garbled_payload_of_a_schedule, True, "7f"),
        (garbled_lease, True, "no bytes"),
        (event_at_no_position, True, "that of an event"),
    ],
)
def test_what_is_damaged_is_named(damage: Damage, alone: bool, said: str) -> None:
    async def main() -> list[Problem]:
        async with keepstate.open("memory://") as ks:
            await everything(ks)
            writes = await damage(ks.store)
            (outcome,) = await ks.store.apply([Batch("run", writes)])
            assert isinstance(outcome, Applied)
            return await problems_of(ks.store, "run")

    found = asyncio.run(main())

    assert any(said in problem.what and problem.is_alone is alone for problem in found), found


def test_a_record_that_is_replaced_while_it_is_verified_is_not_called_damaged() -> None:
    async def main() -> list[Problem]:
        async with keepstate.open("memory://") as ks:
            await everything(ks)
            old = await entry(ks.store, BIG)
            await ks.space("run").documents.put("big", "small now")
            await ks.sweep()
            return await Verifier(StoreSource(ks.store), "run").problems(old)

    assert asyncio.run(main()) == []


async def test_a_size_that_is_not_that_of_the_entries_is_found(ks: keepstate.Keepstate) -> None:
    await everything(ks)

    assert await size_problems(ks.store, "run") == []


async def test_a_wrong_size_is_found() -> None:
    store = MemoryStore()
    await store.open()
    async with keepstate.open(store) as ks:
        await everything(ks)
        store._heap.spaces["run"]._sizes.count(PLAN, 1, 7)

        (problem,) = await size_problems(store, "run")

    assert problem.key == layout.DOCUMENTS
    await store.close()


async def test_sizes_of_more_parts_than_are_counted_are_right_though_some_are_empty_now() -> None:
    keys = [stored_key(1, f"part {number}") for number in range(limits.COUNTED_PARTS + 9)]
    store = MemoryStore()
    await store.open()
    await store.apply([Batch("run", writes=tuple(Put(key, b"v") for key in keys))])
    await store.apply([Batch("run", writes=tuple(Delete(key) for key in keys[:5]))])

    assert await size_problems(store, "run") == []

    store._heap.spaces["run"]._sizes.count(keys[-1], 1, 7)
    (problem,) = await size_problems(store, "run")
    assert problem.key == b"\x01"
    await store.close()
