"""What a process supposes and reads ahead: when it does, when it stops, and what never comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

import keepstate
from keepstate.engine.kernel.observation import Operation
from keepstate.engine.kernel.store_cache import cache_of
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, OutcomeUnknownError
from keepstate.sessions.namespace import Namespace
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Reading
from keepstate.stores.wrappers.encrypted import EncryptedStore, KeyRing
from tests.crashes.supposed_stories import SharedStore


class CountedStore(SharedStore):
    """A store that counts its reads and batches, and may lose an answer or hold a batch back."""

    reads = batches = 0
    loses_answer = False
    holds: asyncio.Event | None = None

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.reads += 1
        return await super().read(space, keys, at_ms=at_ms)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.batches += 1
        if self.holds is not None:
            await self.holds.wait()
        outcomes = await super().apply(batches)
        if self.loses_answer:
            self.loses_answer = False
            return [OutcomeUnknownError("the answer was lost", token=None, space="a") for _ in outcomes]
        return outcomes

    def trips(self) -> tuple[int, int]:
        counts, self.reads, self.batches = (self.reads, self.batches), 0, 0
        return counts


class Company(NamedTuple):
    """One space in two handles that know nothing of each other, as those of two processes."""

    store: CountedStore
    us: Space
    others: Space


@asynccontextmanager
async def company() -> AsyncGenerator[Company]:
    heap = MemoryHeap()
    stores = [CountedStore(heap=heap) for _ in range(2)]
    for store in stores:
        await store.open()
    async with keepstate.open(stores[0]) as one, keepstate.open(stores[1]) as two:
        yield Company(stores[0], one.space("a"), two.space("a"))
    for store in stores:
        await store.close()


async def add(space: Space, name: str = "count") -> int:
    count: int = await space.documents.update(name, lambda old: old + 1, default=0)
    return count


async def test_a_refusal_ends_supposing_until_two_batches_have_met_no_other_writer() -> None:
    async with company() as (store, us, others):
        for _ in range(2):
            await add(us)
        await others.documents.put("count", 10)
        store.trips()

        costs: list[tuple[int, int]] = []
        for _ in range(5):
            await add(us)
            costs.append(store.trips())

        assert costs == [(1, 2), (1, 1), (1, 1), (0, 1), (0, 1)]
        assert await others.documents.get("count") == 15


async def test_a_blind_write_of_this_process_is_no_other_writer() -> None:
    async with company() as (store, us, _):
        for _ in range(2):
            await add(us)
        await us.documents.put("count", 10)
        store.trips()

        assert await add(us) == 11
        assert store.trips() == (1, 1)


async def test_an_entry_that_expires_is_read_each_time() -> None:
    async with company() as (store, us, _):
        await us.documents.put("count", 1, ttl_s=60)
        for _ in range(3):
            store.trips()
            await add(us)

            assert store.trips() == (1, 1)


async def test_a_batch_with_an_unknown_outcome_is_not_repeated() -> None:
    async with company() as (store, us, others):
        for _ in range(2):
            await add(us)
        store.loses_answer = True

        with pytest.raises(OutcomeUnknownError):
            await add(us)

        assert await others.documents.get("count") == 3
        store.trips()
        await add(us)
        assert store.trips() == (1, 1), "what was known before an unknown outcome is void"


async def test_a_cancelled_call_leaves_nothing_to_suppose() -> None:
    async with company() as (store, us, _):
        for _ in range(2):
            await add(us)
        store.holds = asyncio.Event()
        call = asyncio.ensure_future(add(us))
        while not store.batches > 2:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        store.holds = None
        store.trips()

        await add(us)

        assert store.trips() == (1, 1)


async def test_nothing_is_supposed_in_a_transaction_of_the_caller() -> None:
    async with company() as (_, us, others):
        for _ in range(2):
            await add(us)
        await others.documents.put("count", 10)

        async with us.transaction() as tx:
            assert await tx.documents.get("count") == 10


async def test_nothing_is_supposed_of_a_store_that_only_this_process_has() -> None:
    async with keepstate.open("memory://") as ks:
        space = ks.space("a")
        for _ in range(3):
            await add(space)

        assert cache_of(ks.store).parts == {}


async def test_each_key_ring_knows_its_own() -> None:
    plain = await MemoryStore().open()
    rings = [EncryptedStore(plain, KeyRing(bytes(32))) for _ in range(2)]

    assert cache_of(rings[0]) is cache_of(rings[0])
    assert len({id(cache_of(store)) for store in (plain, *rings)}) == 3
    await plain.close()


class Halt(BaseException):
    """What a caller's function raises to end more than its own work."""


@pytest.mark.parametrize("kind", [ValueError, Halt])
async def test_a_function_that_raises_over_what_is_still_there_runs_once(kind: type[BaseException]) -> None:
    async with company() as (store, us, _):
        for _ in range(2):
            await add(us)
        store.trips()
        seen: list[int] = []

        def refuse(old: int) -> int:
            seen.append(old)
            raise kind

        with pytest.raises(kind):
            await us.documents.update("count", refuse)

        assert seen == [2]
        assert store.trips() == (1, 0)


@pytest.mark.parametrize("kind", [ValueError, Halt])
async def test_what_is_raised_over_a_stale_value_reaches_no_caller(kind: type[BaseException]) -> None:
    async with company() as (_, us, others):
        for _ in range(2):
            await add(us)
        await others.documents.put("count", 10)

        def change(old: int) -> int:
            if old < 10:
                raise kind
            return old + 1

        assert await us.documents.update("count", change) == 11


async def test_an_observer_hears_of_no_run_on_suppositions() -> None:
    heard: list[Operation] = []

    class Observer:
        def begin(self, operation: Operation) -> None:
            pass

        def end(self, operation: Operation) -> None:
            heard.append(operation)

    store = await CountedStore().open()
    async with keepstate.open(store, observe=Observer()) as ks:
        space = ks.space("a")
        for _ in range(2):
            await Namespace(space).together(lambda tx, _: add_in(tx))
        heard.clear()

        await Namespace(space).together(lambda tx, _: tx.documents.get("count"))

        assert [(operation.name, operation.error) for operation in heard] == [
            ("documents.get", None),
            ("space.transaction", None),
        ]
    await store.close()


async def add_in(tx: Transaction) -> int:
    count: int = await tx.documents.update("count", lambda old: old + 1, default=0)
    return count


async def test_what_joint_work_writes_without_reading_is_no_longer_supposed() -> None:
    async with company() as (store, us, _):
        for _ in range(2):
            await add(us)

        async def replace(tx: Transaction, prefix: str) -> None:
            await tx.documents.update("other", lambda old: old + 1, default=0)
            await tx.documents.put("count", 10)

        await Namespace(us).together(replace)
        store.trips()

        assert await add(us) == 11
        assert store.trips() == (1, 1)


# ---- reading ahead


async def three(space: Space, *names: str) -> None:
    async with space.transaction() as tx:
        for name in names:
            await tx.documents.update(name, lambda old: old + 1, default=0)


async def test_a_transaction_reads_ahead_what_the_last_two_have_read() -> None:
    async with company() as (store, us, _):
        costs: list[tuple[int, int]] = []
        for _ in range(4):
            await three(us, "x", "y", "z")
            costs.append(store.trips())

        assert costs == [(3, 1), (3, 1), (1, 1), (1, 1)]
        assert await us.documents.get("z") == 4


async def test_what_is_read_ahead_and_not_used_is_not_checked() -> None:
    async with company() as (_, us, others):
        for _ in range(3):
            await three(us, "x", "y")

        async with us.transaction() as tx:
            await tx.documents.update("x", lambda old: old + 1)
            await others.documents.put("y", 10)

        assert await us.documents.get("x") == 4


async def test_what_is_read_ahead_and_used_is_checked() -> None:
    async with company() as (_, us, others):
        for _ in range(3):
            await three(us, "x", "y")

        with pytest.raises(ConflictError):
            async with us.transaction() as tx:
                await tx.documents.update("x", lambda old: old + 1)
                await others.documents.put("y", 10)
                await tx.documents.update("y", lambda old: old + 1)

        assert await us.documents.get("y") == 10


async def test_what_was_read_ahead_of_a_later_revision_is_read_again() -> None:
    async with company() as (_, us, others):
        for _ in range(3):
            await three(us, "x", "y")

        async with us.transaction() as tx:
            await tx.documents.update("x", lambda old: old + 1)
            await others.documents.put("y", 10)
            assert await tx.documents.get("another") is None  # moves the transaction to the later revision
            assert await tx.documents.get("y") == 10
