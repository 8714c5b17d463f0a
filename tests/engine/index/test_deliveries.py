"""What killed processes have left is delivered in rounds, which cost four calls while nothing changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

import keepstate
from keepstate.engine.index.index import Index
from keepstate.engine.kernel.subjects import OUTBOXES
from keepstate.engine.space.deliveries import Deliveries
from keepstate.engine.space.keepstate import Keepstate
from keepstate.names import ALL
from keepstate.sessions import AgentStateMachine
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import Turned


class CountingStore(MemoryStore):
    """Counts its calls."""

    calls = 0

    async def read(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        return await super().read(*given, **options)

    async def scan(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        return await super().scan(*given, **options)

    async def apply(self, *given: Any) -> Any:
        self.calls += 1
        return await super().apply(*given)

    async def spaces(self, *given: Any, **options: Any) -> Any:
        self.calls += 1
        return await super().spaces(*given, **options)

    async def changed_ms(self, *given: Any) -> Any:
        self.calls += 1
        return await super().changed_ms(*given)


async def abandon(ks: Keepstate) -> None:
    """Stop the deliveries of a handle as a kill does: nothing that waits is carried."""
    delivery = ks.index._delivery
    assert delivery is not None
    delivery._due_s.clear()
    await ks.index.close()


@asynccontextmanager
async def killed(store: Any, *tenants: str | None) -> AsyncIterator[None]:
    """Leave a change of the machine `m` of each tenant, as a process does that ends before its delivery."""
    writer = keepstate.open(store)
    writer._indexes = Index(writer.opened, writer.runner, ManualClock())  # its delivery never becomes due
    for tenant in tenants:
        handle = writer if tenant is None else writer.tenant(tenant)
        await AgentStateMachine("m", persistence=handle).transition("new_task")
        await abandon(handle)
    yield
    await writer.close()


async def states(ks: Keepstate) -> list[str]:
    return [found.state for found in await ks.find(kind="machine")]


async def test_what_killed_processes_have_left_of_all_tenants_is_delivered() -> None:
    async with keepstate.open("memory://") as ks:
        store = await ks.opened()
        for tenant in ("a", "b"):
            await ks.tenant(tenant).space("x").queue.put(1)
            await ks.tenant(tenant).find()
        deliveries = Deliveries(ks, tenant=ALL)
        await deliveries.deliver()

        async with killed(store, "a", "b", "unlisted"):
            assert await states(ks.tenant("a")) == []
            assert await deliveries.deliver() == 2
        assert await states(ks.tenant("a")) == await states(ks.tenant("b")) == ["planning"]


async def test_a_tenant_without_an_index_is_left_alone() -> None:
    async with keepstate.open("memory://") as ks:
        store = await ks.opened()

        async with killed(store, "a"):
            assert await Deliveries(ks, tenant=ALL).deliver() == 0
        page = await store.scan(ks.tenant("a").stored_name("machine/m"), OUTBOXES)
        assert len(page.entries) == 1


async def test_a_round_at_rest_costs_four_calls(turned: Turned) -> None:
    store = await CountingStore(clock=turned.clock).open()
    async with keepstate.open(store) as ks:
        for number in range(100):
            await ks.tenant(f"t{number}").space("x").queue.put(1)
            await ks.tenant(f"t{number}").find()
        deliveries = Deliveries(ks, tenant=ALL)
        turned.clock.advance(5_000)
        await deliveries.deliver()

        before = store.calls
        assert await deliveries.deliver() == 0
        assert store.calls - before == 4, "the time, the spaces in two calls, and their last changes"

        await ks.tenant("t7").space("x").documents.put("d", 1)
        before = store.calls
        await deliveries.deliver()
        assert store.calls - before <= 6, "also the state of one index, and the outboxes of one space"
    await store.close()


async def test_servers_that_deliver_at_once_agree() -> None:
    async with keepstate.open("memory://") as ks:
        store = await ks.opened()
        await ks.find()
        await ks.space("x").queue.put(1)
        await ks.find()
        others = [keepstate.open(store) for _ in range(3)]

        async with killed(store, None):
            await asyncio.gather(*(Deliveries(each, tenant=ALL).deliver() for each in others))
        assert await states(ks) == ["planning"]
        assert not (await store.scan("machine/m", OUTBOXES)).entries
        assert [each async for each in ks.index.findings(None)] == []
        for each in others:
            await each.close()


async def test_a_tenant_that_fails_is_tried_again_and_stops_no_other(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await CountingStore(clock=turned.clock).open()
    async with keepstate.open(store) as ks:
        for tenant in ("a", "b"):
            await ks.tenant(tenant).space("x").queue.put(1)
            await ks.tenant(tenant).find()
        deliveries, carrier_of = Deliveries(ks, tenant=ALL), ks.index.carrier
        await deliveries.deliver()

        async def failing(tenant: str | None) -> Any:
            if tenant == "a":
                raise keepstate.CorruptError("damaged", place="index")
            return await carrier_of(tenant)

        async with killed(store, "a", "b"):
            turned.clock.advance(5_000)
            with monkeypatch.context() as planting:
                planting.setattr(ks.index, "carrier", failing)
                assert await deliveries.deliver() == 1
            assert await deliveries.deliver() == 1
        assert await states(ks.tenant("a")) == ["planning"]
    await store.close()


async def test_an_approval_that_expires_is_delivered_though_no_space_changes(turned: Turned) -> None:
    await turned.space.approvals.ask("Pay?", id="a1", expires_s=60)
    await turned.ks.find()
    deliveries = Deliveries(turned.ks, tenant=ALL)
    turned.clock.advance(5_000)
    assert await deliveries.deliver() == 0

    turned.clock.advance(56_000)
    assert [await deliveries.deliver() for _ in range(2)] == [1, 0]


async def test_a_worker_delivers_only_the_spaces_under_a_name() -> None:
    async with keepstate.open("memory://") as ks:
        store = await ks.opened()
        await ks.space("machine/x").queue.put(1)
        await ks.find()

        async with killed(store, None):
            assert await Deliveries(ks, "machine/x").deliver() == 0
            assert await Deliveries(ks, "machine").deliver() == 1


async def test_the_rounds_end_with_their_block() -> None:
    async with keepstate.open("memory://") as ks:
        await ks.space("x").queue.put(1)
        await ks.find()
        before: Collection[Any] = asyncio.all_tasks()
        async with killed(await ks.opened(), None), Deliveries(ks, tenant=ALL, every_s=0.01).running():
            async with asyncio.timeout(60):
                while not await states(ks):
                    await asyncio.sleep(0.01)
        assert asyncio.all_tasks() <= {*before}
