"""Leases: one holder at a time, fenced by a token."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

import keepstate
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import ClosedError, ConflictError, InvalidError, LeaseLostError
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Put
from keepstate.testing.clocks import ManualClock
from keepstate.values import codec
from tests.engine.conftest import Turned, TurnedKeepstate, TurnedSource


async def test_a_held_lease_is_refused_to_another(space: Space) -> None:
    await space.leases.acquire("job", 30)

    with pytest.raises(ConflictError, match="is held by"):
        await space.leases.acquire("job", 30)


async def test_each_holder_has_a_higher_token(space: Space) -> None:
    first = await space.leases.acquire("job", 30)
    assert await first.release() is True
    second = await space.leases.acquire("job", 30)

    assert second.token > first.token
    assert await first.release() is False
    await second.check()


async def test_a_lease_that_another_holds_now_is_not_held(turned: Turned) -> None:
    first = await turned.space.leases.acquire("job", 30)
    turned.clock.advance(31_000)
    second = await turned.space.leases.acquire("job", 30)

    with pytest.raises(LeaseLostError):
        await first.check()
    await second.check()


async def test_a_holder_of_any_length_makes_a_short_error(space: Space) -> None:
    store = await space.executor.store()
    holder = codec.encode("x" * 100_000)
    key = layout.named_key(layout.LEASES, "job")
    await store.apply([Batch(space.name, [Put(key, holder, ttl_ms=60_000)])])

    with pytest.raises(ConflictError, match=r"is held by x{160}…x{80}\. Try again later"):
        await space.leases.acquire("job", 30)


async def test_a_lease_that_is_let_go_wakes_who_waits_for_it(space: Space) -> None:
    first = await space.leases.acquire("job", 30)
    waiting = asyncio.create_task(space.leases.acquire("job", 30, wait_s=60))
    await asyncio.sleep(0.02)
    await first.release()

    assert (await waiting).is_held()


async def test_who_is_cancelled_while_acquiring_a_lease_does_not_leave_it_held(space: Space) -> None:
    await space.documents.put("a", 1)
    for turn in range(60):
        acquiring = asyncio.create_task(space.leases.acquire(f"job {turn}", 60))
        for _ in range(turn % 12):
            await asyncio.sleep(0)
        acquiring.cancel()
        with suppress(asyncio.CancelledError):
            await (await acquiring).release()

    async def acquire(turn: int) -> None:
        async with await space.leases.acquire(f"job {turn}", 60):
            pass

    await asyncio.gather(*[acquire(turn) for turn in range(60)])


async def test_a_lease_believes_in_nine_tenths_of_its_time(turned: Turned) -> None:
    lease = await turned.space.leases.acquire("job", 10)
    turned.clock.advance(8_999)
    assert lease.is_held()
    turned.clock.advance(1)
    assert not lease.is_held()

    await lease.renew()
    assert lease.is_held()


async def test_a_lease_that_ran_out_is_lost_to_every_call(turned: Turned) -> None:
    lease = await turned.space.leases.acquire("job", 1)
    turned.clock.advance(1_000)

    with pytest.raises(LeaseLostError):
        await lease.check()
    with pytest.raises(LeaseLostError):
        await lease.renew()
    with pytest.raises(LeaseLostError):
        async with turned.space.transaction(lease=lease) as tx:
            await tx.documents.put("a", 1)
    assert await turned.space.documents.get("a") is None


async def test_a_renewal_on_its_way_does_not_revive_a_lease_that_is_let_go(space: Space) -> None:
    for turn in range(10):
        lease = await space.leases.acquire(f"job {turn}", 30)

        calls = [lease.renew(), lease.release()]
        outcomes = await asyncio.gather(*(calls if turn % 2 else calls[::-1]), return_exceptions=True)

        assert True in outcomes
        assert await space.leases.holder(f"job {turn}") is None
        assert not lease.is_held()


class AnswersOnceLate(MemoryStore):
    """Keeps the answer to the next batch back until `late` is set."""

    late: asyncio.Event | None = None

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        late, self.late = self.late, None
        outcomes = await super().apply(batches)
        if late is not None:
            await late.wait()
        return outcomes


async def test_a_renewal_that_is_answered_after_the_release_revives_nothing() -> None:
    store = AnswersOnceLate()
    await store.open()
    async with keepstate.open(store) as ks:
        lease = await ks.space("run").leases.acquire("job", 30)
        late = store.late = asyncio.Event()
        renewing = asyncio.create_task(lease.renew(60))
        while store.late is not None:
            await asyncio.sleep(0)
        assert await lease.release()
        late.set()
        await renewing

        assert not lease.is_held()
        assert lease.ttl_s == 30
    await store.close()


async def test_a_renewal_counts_from_before_its_call(opened: list[Keepstate]) -> None:
    clock = ManualClock()
    store = AnswersOnceLate(runner=TaskRunner(), clock=clock)
    ks = TurnedKeepstate(TurnedSource(store))
    ks.turned = clock
    opened.append(ks)
    lease = await ks.space("run").leases.acquire("job", 10)
    late = store.late = asyncio.Event()
    renewing = asyncio.create_task(lease.renew())
    while store.late is not None:
        await asyncio.sleep(0)
    clock.advance(4_000)
    late.set()
    await renewing

    clock.advance(4_990)
    assert lease.is_held()
    clock.advance(20)
    assert not lease.is_held()


async def test_what_a_block_raises_is_not_hidden_by_a_lease_that_cannot_be_let_go(ks: Keepstate) -> None:
    lease = await ks.space("run").leases.acquire("job", 30)

    with pytest.raises(ValueError, match="what went wrong") as caught:
        async with lease:
            await ks.close()
            raise ValueError("what went wrong")
    assert "could not be released, and will expire by itself: the handle on" in "".join(
        caught.value.__notes__
    )


async def test_a_block_that_ends_well_says_that_its_lease_could_not_be_let_go(ks: Keepstate) -> None:
    lease = await ks.space("run").leases.acquire("job", 30)

    with pytest.raises(ClosedError):
        async with lease:
            await ks.close()


def test_a_lease_of_another_store_is_no_fence_although_the_space_has_the_same_name() -> None:
    async def main() -> object:
        async with keepstate.open("memory://") as here, keepstate.open("memory://") as elsewhere:
            lease = await elsewhere.space("run").leases.acquire("job", 60)
            await here.space("run").leases.acquire("job", 60)

            with pytest.raises(InvalidError, match="belongs to another space"):
                async with here.space("run").transaction(lease=lease) as tx:
                    await tx.documents.put("plan", 1)

            return await here.space("run").documents.get("plan")

    assert asyncio.run(main()) is None


# ---- by name and token


async def test_held_leases_are_listed_with_holder_and_token(ks: Keepstate, space: Space) -> None:
    long = "job/" + "x" * 500
    held = {}
    for name in ("job/b", "other", "job/a", long):
        held[name] = await space.by("ann").leases.acquire(name, 30)
    await held["other"].release()

    first = await space.leases.held("job/", limit=2)
    rest = await space.leases.held("job/", limit=2, after=first.next)
    back = await space.leases.held("job/", limit=2, before=rest.previous)

    assert [info.name for info in [*first, *rest]] == ["job/a", "job/b", long]
    assert {info.token for info in [*first, *rest]} == {held[info.name].token for info in [*first, *rest]}
    assert {info.holder for info in [*first, *rest]} == {"ann"}
    assert [info.name for info in back] == ["job/a", "job/b"]
    assert 0 < (first[0].expires_at - await space.now()).total_seconds() <= 30
    assert list(await space.leases.held("other")) == []
    assert await space.leases.holder(long) == "ann"
    with pytest.raises(InvalidError, match="of another"):
        await space.leases.held("", after=first.next)


async def test_a_lease_is_resumed_by_name_and_token(turned: Turned) -> None:
    leases = turned.space.leases
    token = (await leases.acquire("job", 30)).token
    turned.clock.advance(10_000)

    again = await leases.resume("job", token)
    assert (again.token, again.ttl_s, again.is_held()) == (token, 20, True)
    async with turned.space.transaction(lease=again) as tx:
        await tx.documents.put("a", 1)
    renewed = await leases.resume("job", token, ttl_s=60)
    assert renewed.ttl_s == 60
    turned.clock.advance(40_000)
    await renewed.check()
    assert await renewed.release() is True

    for name, wrong in (("job", token), ("job", token + 1), ("never", token)):
        with pytest.raises(LeaseLostError):
            await leases.resume(name, wrong)


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000])
async def test_a_lease_is_resumed_by_the_time_of_the_store(turned: Turned, off_ms: int) -> None:
    token = (await turned.space.leases.acquire("job", 30)).token
    turned.clock.advance(10_000)
    elsewhere = TurnedKeepstate(PassedStore(await turned.ks.opened(), "async"))
    elsewhere.turned = ManualClock(turned.clock.now_ms() + off_ms)

    again = await elsewhere.space("run/1").leases.resume("job", token)

    assert (again.ttl_s, again.is_held()) == (20, True)


async def test_an_expired_or_taken_lease_is_not_resumed(turned: Turned) -> None:
    token = (await turned.space.leases.acquire("job", 30)).token
    turned.clock.advance(30_001)
    with pytest.raises(LeaseLostError):
        await turned.space.leases.resume("job", token)
    await turned.space.leases.acquire("job", 30)

    with pytest.raises(LeaseLostError):
        await turned.space.leases.resume("job", token)
