"""Quotas of all spaces of a tenant: exact for what one process writes, and late for what others do."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keepstate
from keepstate import Quota, QuotaExceededError
from keepstate._runner import TaskRunner
from keepstate.engine.kernel.grants import Grants
from keepstate.engine.kernel.store_cache import cache_of
from keepstate.engine.kernel.totals import BYTES, COUNTED, Totals, used_in
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import NotAllowedError
from keepstate.names import beginning
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Sizes
from keepstate.testing.clocks import ManualClock

LEAST_REST_MS = 1_100


class CountingStore(MemoryStore):
    """Counts the questions for sizes and for pages of names."""

    asked: Counter[str]

    async def sizes(self, space: str) -> Sizes:
        self.asked["sizes"] += 1
        return await super().sizes(space)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        self.asked["pages"] += 1
        return await super().spaces(prefix, after=after, limit=limit)


class Processes:
    """Handles of one tenant, each of a process of its own, on one heap whose clock a test turns."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.heap = MemoryHeap(self.clock)
        self.stores: list[CountingStore] = []

    async def start(self) -> Keepstate:
        """Return the tenant's handle in one more process."""
        store = CountingStore(runner=TaskRunner(), heap=self.heap, clock=self.clock)
        store.asked = Counter()
        self.stores.append(store)
        return keepstate.open(await store.open()).tenant("a")

    async def close(self) -> None:
        for store in self.stores:
            await store.close()

    def totals(self, number: int) -> Totals:
        return cache_of(self.stores[number]).part(Grants).of(beginning("a")).totals


async def put(tenant: Keepstate, space: str, key: str = "k", value: Any = 1) -> None:
    await tenant.space(space).documents.put(key, value)


async def test_all_spaces_together_hold_at_most_the_total(ks: Keepstate) -> None:
    tenant = ks.tenant("a")
    await tenant.set_quota(Quota(total_documents=3, total_queued=2, total_streams=1))
    for space in ("run/1", "run/2", "run/3"):
        await put(tenant, space)

    with pytest.raises(
        QuotaExceededError, match="tenant 'a' may have 3 of total_documents, has 3, and this would add 1"
    ) as caught:
        await put(tenant, "run/1", "more")
    with pytest.raises(QuotaExceededError, match="of total_documents"):
        await put(tenant, "run/4")
    await tenant.space("run/1").queue.put(1)
    await tenant.space("run/2").queue.put(1)
    with pytest.raises(QuotaExceededError, match="of total_queued"):
        await tenant.space("run/3").queue.put(1)
    await tenant.space("run/1").events.append(1)
    with pytest.raises(QuotaExceededError, match="of total_streams"):
        await tenant.space("run/2").events.append(1)

    error = caught.value
    assert (error.quota, error.most, error.used) == ("total_documents", 3, 3)
    await tenant.space("run/2").documents.delete("k")
    await put(tenant, "run/1", "more")
    await put(ks.tenant("b"), "run/1")
    await tenant.set_quota(None)
    await put(tenant, "run/4")


async def test_the_total_size_counts_large_values_and_may_shrink(ks: Keepstate) -> None:
    tenant = ks.tenant("a")
    await put(tenant, "run/1", "large", Random(0).randbytes(3_000_000))
    await put(tenant, "run/2", "next", Random(1).randbytes(600_000))
    await tenant.set_quota(Quota(total_size_bytes=3_700_000))

    with pytest.raises(QuotaExceededError, match="of total_size_bytes"):
        await put(tenant, "run/3", "next", Random(2).randbytes(600_000))
    await put(tenant, "run/2", "next")
    await put(tenant, "run/3", "next", Random(2).randbytes(600_000))

    assert 3_600_000 < (await tenant.size()).size_bytes <= 3_700_000


async def test_writes_of_another_process_are_counted_after_a_second() -> None:
    processes = Processes()
    one, other = [await processes.start() for _ in range(2)]
    try:
        await one.set_quota(Quota(total_documents=4))
        await put(one, "run/1")
        await put(other, "run/2")
        await put(other, "run/3")
        await put(one, "run/1", "unaware")  # it may not know yet of run/2 and run/3
        processes.clock.advance(LEAST_REST_MS)

        with pytest.raises(QuotaExceededError) as caught:
            await put(one, "run/4")
        await other.drop("run/2")
        with pytest.raises(QuotaExceededError):
            await put(one, "run/4")  # it has just counted
        processes.clock.advance(LEAST_REST_MS)
        await put(one, "run/4")

        assert caught.value.used == 4
    finally:
        await processes.close()


async def test_a_count_asks_only_spaces_that_have_changed_and_then_rests() -> None:
    processes = Processes()
    one, other = [await processes.start() for _ in range(2)]
    asked = processes.stores[0].asked
    try:
        for number in range(300):
            await put(other, f"run/{number:03}")
        await one.set_quota(Quota(total_documents=1_000))
        processes.clock.advance(LEAST_REST_MS)
        await put(one, "run/000")
        asked.clear()

        await put(one, "run/000")
        at_rest = dict(asked)
        await put(other, "run/007", "more")
        processes.clock.advance(LEAST_REST_MS + 300)
        asked.clear()
        await put(one, "run/000")

        assert at_rest == {"sizes": 1}  # of the space itself
        assert asked["pages"] == 3
        assert asked["sizes"] == 1 + 2  # run/007, and what it wrote itself
        assert processes.totals(0).used["documents"] == 301
    finally:
        await processes.close()


async def test_two_changes_in_the_millisecond_of_a_count_are_both_counted() -> None:
    processes = Processes()
    one, other = [await processes.start() for _ in range(2)]
    try:
        await one.set_quota(Quota(total_documents=1_000))
        await put(other, "run/1", "before")
        await put(one, "run/2")
        await put(other, "run/1", "after")
        processes.clock.advance(LEAST_REST_MS)

        await put(one, "run/2")

        assert processes.totals(0).used["documents"] == 3
    finally:
        await processes.close()


async def test_a_tenant_that_another_process_has_erased_is_counted_from_nothing() -> None:
    processes = Processes()
    one, other = [await processes.start() for _ in range(2)]
    try:
        for life in range(2):
            await other.set_quota(Quota(total_documents=2))
            for number in range(2):
                await put(one, f"run/{life}/{number}")
            with pytest.raises(QuotaExceededError):
                await put(one, f"run/{life}/2")
            await other.erase(confirm="a")
            with pytest.raises(NotAllowedError):
                await put(one, f"run/{life}/0")
    finally:
        await processes.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "task", "event", "delete", "drop", "wait"]),
        st.integers(0, 1),
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=20, deadline=None)
def test_a_count_finds_what_the_spaces_hold(steps: list[tuple[str, int, int, int]]) -> None:
    asyncio.run(compare_with_the_spaces(steps))


async def compare_with_the_spaces(steps: list[tuple[str, int, int, int]]) -> None:
    processes = Processes()
    handles = [await processes.start() for _ in range(2)]
    try:
        await handles[0].set_quota(Quota(total_documents=10_000))
        for what, process, place, name in steps:
            space = handles[process].space(f"run/{place}")
            match what:
                case "put":
                    await space.documents.put(f"k{name}", "x" * 10 ** (name + 1))
                case "task":
                    await space.queue.put(name)
                case "event":
                    await space.events.stream(f"s{name}").append(1)
                case "delete":
                    await space.documents.delete(f"k{name}")
                case "drop":
                    await handles[process].drop(f"run/{place}")
                case _:
                    processes.clock.advance(LEAST_REST_MS)
        processes.clock.advance(2 * LEAST_REST_MS)
        await put(handles[0], "last")

        store = processes.stores[0]
        spaces = [handles[0].stored_name(name) async for name in handles[0].spaces()]
        held = [used_in(await store.sizes(space)) for space in spaces]
        for name in (*COUNTED, BYTES):
            assert processes.totals(0).used[name] == sum(used[name] for used in held), name
    finally:
        await processes.close()


async def test_a_recorded_space_and_another_life_of_the_tenant_are_counted_afresh(ks: Keepstate) -> None:
    tenant = ks.tenant("a")
    await tenant.set_quota(Quota(total_documents=2))
    recorded = tenant.space("run/1", record=True)
    await recorded.documents.put("one", 1)
    await recorded.documents.put("two", 1)
    with pytest.raises(QuotaExceededError):
        await recorded.documents.put("three", 1)

    await tenant.erase(confirm="a")
    await tenant.set_quota(Quota(total_documents=1))
    await put(tenant, "run/2")

    with pytest.raises(QuotaExceededError):
        await put(tenant, "run/3")
