"""Usage: each use is counted once, and no batch takes an account over its budgets."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate import Budget, Usage, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.engine.usage import records
from keepstate.engine.usage.amounts import Amounts
from keepstate.engine.usage.ceilings import use
from keepstate.errors import (
    BudgetExceededError,
    ConflictError,
    InvalidError,
    LeaseLostError,
    QuotaExceededError,
    TransitionError,
)
from keepstate.values import limits
from tests.contracts.sessions.stage import BusyStore
from tests.engine.conftest import Turned

MINUTE, HOUR = 60_000, 3_600_000


def cents(number: int) -> Decimal:
    return Decimal(number) / 100


def call(cost: int = 1, model: str = "large", **tokens: int) -> Usage:
    return Usage(model=model, cost=cents(cost), **tokens)


async def used(space: Space, account: str = "") -> Decimal:
    return (await space.usage.account(account).totals()).total.cost


async def refused(error: type[Exception], call: Awaitable[object], text: str = "") -> Any:
    with pytest.raises(error, match=text or None) as caught:
        await call
    return caught.value


async def reserve_in(ledger: keepstate.UsageLedger, **bounds: Any) -> None:
    async with ledger.reserve(**bounds):
        raise AssertionError("it was reserved")


def set_to(turned: Turned, *at: int) -> None:
    """Turn the clock to a time in UTC."""
    wanted = datetime(*at, tzinfo=UTC)  # type: ignore[arg-type, misc]
    turned.clock.advance(int(wanted.timestamp() * 1000) - turned.clock.now_ms())


# ---- on every backend


async def test_a_use_is_counted_once_and_summed_by_model(space: Space) -> None:
    usage = space.usage
    large = Usage(
        model="large",
        input_tokens=1000,
        output_tokens=200,
        cached_tokens=900,
        reasoning_tokens=150,
        cost=cents(3),
    )
    small = Usage(model="small", input_tokens=10, output_tokens=5, cost=Decimal("0.0000001"), calls=2)

    assert await usage.record(large, id="request/1")
    assert not await usage.record(large, id="request/1")
    assert await usage.record(small)
    assert await usage.record(small)

    totals = await usage.totals()
    assert totals.by_model == {
        "large": large,
        "small": Usage(model="small", input_tokens=20, output_tokens=10, cost=Decimal("0.0000002"), calls=4),
    }
    assert (totals.total.tokens, totals.total.cost, totals.total.calls) == (1230, Decimal("0.0300002"), 5)
    assert await usage.totals("day") == await usage.totals("month") == totals
    assert (await usage.account("other").totals()).by_model == {}


async def test_no_use_takes_a_budget_over_its_ceiling(space: Space) -> None:
    await space.usage.record(call(2))
    await space.usage.set_budget("money", Budget(cost=cents(5)))
    await space.usage.set_budget("calls", Budget(calls=10, per="day", model="small"))

    await space.usage.record(call(3))
    error = await refused(BudgetExceededError, space.usage.record(call(1), id="late"))
    assert (error.budget, error.quota, error.most, error.used) == ("money", "cost", cents(5), cents(5))
    assert not error.retryable and error.code == "budget_exceeded" and isinstance(error, QuotaExceededError)
    again = pickle.loads(pickle.dumps(error))
    assert (again.budget, again.most, again.resets_at) == ("money", cents(5), None)
    assert await used(space) == cents(5)

    await space.usage.set_budget("money", Budget(cost=cents(6)))
    assert await space.usage.record(call(1), id="late")
    assert await space.usage.record(Usage(model="small", calls=10))
    error = await refused(BudgetExceededError, space.usage.record(Usage(model="small", calls=1)))
    assert error.budget == "calls" and error.resets_at > datetime.now(UTC)
    assert await space.usage.record(Usage(model="large", calls=100))
    assert await space.usage.delete_budget("calls") and not await space.usage.delete_budget("calls")
    assert await space.usage.record(Usage(model="small", calls=1))


async def test_a_reservation_takes_room_until_its_use_is_counted(space: Space) -> None:
    await space.usage.set_budget("all", Budget(cost=cents(10), tokens=1000, calls=3))
    async with space.usage.reserve(cost=cents(6), tokens=400, model="large") as one:
        await refused(BudgetExceededError, enter(space, cost=cents(5), tokens=1))
        async with space.usage.reserve(cost=cents(4), tokens=600) as other:
            await refused(BudgetExceededError, space.usage.record(call(1)))
            state = (await space.usage.budgets())["all"]
            assert (state.reserved_cost, state.reserved_tokens, state.reserved_calls) == (cents(10), 1000, 2)
            assert (state.used_cost, state.since, state.until, state.is_exceeded) == (0, None, None, False)
            other.record(call(1, input_tokens=5))
            other.record(call(1, "small", output_tokens=5))
        one.record(call(2))

    state = (await space.usage.budgets())["all"]
    assert (state.reserved_cost, state.reserved_tokens, state.reserved_calls) == (0, 0, 0)
    assert (state.used_cost, state.used_tokens, state.used_calls) == (cents(4), 10, 3)
    assert (one.is_over, one.is_late, len(other.uses)) == (False, False, 2)
    assert {model: sums.cost for model, sums in (await space.usage.totals()).by_model.items()} == {
        "large": cents(3),
        "small": cents(1),
    }


async def enter(space: Space, **bounds: Any) -> None:
    async with space.usage.reserve(**bounds):
        raise AssertionError("it was reserved")


async def test_a_use_above_its_reservation_is_counted_and_refuses_what_follows(space: Space) -> None:
    await space.usage.set_budget("all", Budget(cost=cents(10)))
    async with space.usage.reserve(cost=cents(10)) as spend:
        spend.record(call(12))

    assert spend.is_over and (await space.usage.budgets())["all"].is_exceeded
    await refused(BudgetExceededError, enter(space, cost=0))
    await refused(BudgetExceededError, space.usage.record(call(0)))
    assert await space.usage.record(call(1), allow_over=True)
    assert await used(space) == cents(13)


async def test_a_block_that_raises_counts_what_it_has_recorded_and_returns_the_rest(space: Space) -> None:
    await space.usage.set_budget("all", Budget(cost=cents(10)))
    with pytest.raises(ZeroDivisionError):
        async with space.usage.reserve(cost=cents(10)) as spend:
            spend.record(call(1))
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with space.usage.reserve(cost=cents(9)):
            raise ZeroDivisionError

    state = (await space.usage.budgets())["all"]
    assert (state.used_cost, state.reserved_cost) == (cents(1), 0)


async def test_a_transaction_counts_with_all_that_it_writes(space: Space) -> None:
    await space.usage.set_budget("all", Budget(cost=cents(10)))
    with pytest.raises(BudgetExceededError):
        async with space.transaction() as tx:
            await tx.documents.put("answer", 1)
            await tx.usage.record(call(8))
            await tx.usage.account("b").record(call(8))
            await tx.usage.record(call(8))
    assert await used(space) == await used(space, "b") == 0 and await space.documents.get("answer") is None

    async with space.usage.reserve(cost=cents(7)) as spend:
        spend.record(call(4))
        async with space.transaction() as tx:
            assert await tx.usage.settle(spend)
            await tx.documents.put("answer", 2)
        with pytest.raises(InvalidError, match="was settled"):
            spend.record(call(1))
    with pytest.raises(InvalidError, match="reserving"):
        async with space.transaction() as tx, tx.usage.reserve(cost=1):
            pass
    await refused(InvalidError, space.usage.account("b").settle(spend), "nothing reserved")

    state = (await space.usage.budgets())["all"]
    assert (state.used_cost, state.reserved_cost, await used(space)) == (cents(4), 0, cents(4))
    assert await space.documents.get("answer") == 2


async def test_a_transaction_that_is_not_applied_leaves_the_use_to_its_block(space: Space) -> None:
    await space.documents.put("read", 1)
    async with space.usage.reserve(cost=cents(7)) as spend:
        spend.record(call(4))
        with pytest.raises(ConflictError):
            async with space.transaction() as tx:
                await tx.documents.get("read")
                await tx.usage.settle(spend)
                await space.documents.put("read", 2)

    assert await used(space) == cents(4)


async def test_accounts_of_a_shared_space_go_with_their_prefix(space: Space) -> None:
    for name in ("user/ann/", "user/bob/"):
        ledger = space.usage.account(name)
        await ledger.set_budget("all", Budget(cost=cents(10)))
        await ledger.record(call(2), id="once")

    await space.expunge("user/ann/")

    assert (await used(space, "user/ann/"), await used(space, "user/bob/")) == (0, cents(2))
    assert await space.usage.account("user/ann/").budgets() == {}
    assert await space.usage.account("user/ann/").record(call(1), id="once")
    assert not await space.usage.account("user/bob/").record(call(2), id="once")


async def test_many_at_once_in_one_process_take_no_more_than_there_is(space: Space) -> None:
    await space.usage.set_budget("all", Budget(cost=cents(20)))

    async def spend(number: int) -> int:
        try:
            async with space.usage.reserve(cost=cents(2)) as spend:
                spend.record(call(1))
        except BudgetExceededError:
            return 0
        return 1

    counted = sum(await asyncio.gather(*(spend(number) for number in range(30))))

    state = (await space.usage.budgets())["all"]
    assert (state.used_cost, state.reserved_cost) == (cents(counted), 0) and 10 <= counted <= 19


async def test_what_another_process_spends_between_read_and_batch_counts(turned: Turned) -> None:
    inner: Any = await turned.ks.opened()
    busy = BusyStore(inner)
    async with keepstate.open(busy) as mine:
        ledger, others = mine.space("run/1").usage, turned.space.usage
        await others.set_budget("all", Budget(cost=cents(10)))

        async def meanwhile() -> None:
            await others.record(call(8))

        for spend in (lambda: ledger.record(call(8)), lambda: reserve_in(ledger, cost=cents(8))):
            await others.set_budget("all", Budget(cost=(await used(turned.space)) + cents(10)))
            busy.meanwhile, busy.after_reads = meanwhile, 0
            await refused(BudgetExceededError, spend())
            assert busy.meanwhile is None

    assert await used(turned.space) == cents(16)
    assert (await others.budgets())["all"].reserved_cost == 0


async def test_an_id_that_has_counted_other_amounts_is_refused(space: Space) -> None:
    usage, wider = space.usage, space.usage.account("wider")
    await usage.set_budget("all", Budget(cost=cents(50)))
    uses = (call(1, input_tokens=7), call(2, "small"))

    assert await usage.record(call(3), id="once") and not await usage.record(call(3), id="once")
    await refused(InvalidError, usage.record(call(4), id="once"), "'once'.* has counted other amounts")
    for order in (uses, uses[::-1]):
        async with usage.within(wider).reserve(cost=cents(9), tokens=9, id="twice") as spend:
            for use in order:
                spend.record(use)
    with pytest.raises(InvalidError, match=r"'twice' of account 'wider'.* has counted other amounts"):
        async with usage.within(wider).reserve(cost=cents(9), tokens=9, id="twice") as spend:
            spend.record(call(9))
    async with usage.reserve(cost=cents(9), tokens=9, id="twice"):
        pass  # nothing was used, as by a repetition that finds its result

    assert (await used(space), await used(space, "wider")) == (cents(6), cents(3))
    assert (await usage.budgets())["all"].reserved_cost == 0


async def test_an_id_that_is_reserved_with_other_amounts_is_refused(space: Space) -> None:
    async with space.usage.reserve(cost=cents(4), id="once") as spend:
        await refused(
            InvalidError,
            reserve_in(space.usage, cost=cents(5), id="once"),
            "'once'.* has reserved other amounts",
        )
        await refused(InvalidError, reserve_in(space.usage, cost=cents(4), model="m", id="once"))
        spend.record(call(4))

    assert await used(space) == cents(4)


async def test_a_sum_that_cannot_be_stored_is_refused_and_totals_are_exact(turned: Turned) -> None:
    most = Usage(cost=Decimal(10**9), input_tokens=limits.LARGEST_USAGE)
    space = turned.space
    await space.usage.set_budget("calls", Budget(calls=100))
    for _ in range(9):
        await space.usage.record(most)

    error = await refused(InvalidError, space.usage.record(most), "the largest that is stored")
    async with space.usage.reserve(cost=most.cost):
        state = (await space.usage.budgets())["calls"]

    assert "10,000,000,000,000,000,000" in str(error)
    assert (state.used_calls, state.reserved_cost) == (9, most.cost)
    assert (await space.usage.totals()).total.cost == 9 * most.cost
    set_to(turned, 2026, 3, 1)
    other = space.usage.account("other")
    for number in range(12):
        await other.record(Usage(model=f"m{number}", cost=most.cost))
        async with other.reserve(cost=most.cost):
            pass
    assert (await other.totals()).total.cost == 12 * most.cost
    await refused(InvalidError, other.set_budget("all", Budget(calls=1)), "nothing was written")


# ---- by the time of the store


async def test_a_reservation_of_a_killed_process_ends_by_the_time_of_the_store(turned: Turned) -> None:
    usage = turned.space.usage
    await usage.set_budget("all", Budget(cost=cents(10)))
    killed = usage.reserve(cost=cents(10), lease_s=60)
    await killed.__aenter__()

    turned.clock.advance(MINUTE - 1)
    await refused(BudgetExceededError, enter(turned.space, cost=cents(1)))
    turned.clock.advance(1)
    assert (await usage.budgets())["all"].reserved_cost == 0
    async with usage.reserve(cost=cents(10)) as spend:
        spend.record(call(9))

    assert (await usage.budgets())["all"].used_cost == cents(9)


async def test_a_use_whose_reservation_has_ended_is_counted_and_says_so(
    turned: Turned, caplog: pytest.LogCaptureFixture
) -> None:
    usage = turned.space.usage
    await usage.set_budget("all", Budget(cost=cents(10)))
    async with usage.reserve(cost=cents(10), lease_s=60) as late:
        late.record(call(10))
        turned.clock.advance(MINUTE)
        await usage.record(call(10))
        await refused(LeaseLostError, late.renew(60), "has ended")
    async with usage.account("free").reserve(cost=cents(10), lease_s=60) as kept:
        turned.clock.advance(MINUTE - 1)
        await kept.renew(60)
        turned.clock.advance(MINUTE - 1)
        kept.record(call(1))

    assert late.is_late and late.is_over and "had ended" in caplog.text
    assert not kept.is_late and await used(turned.space) == cents(20)
    assert await used(turned.space, "free") == cents(1)


async def test_an_id_is_known_for_30_days(turned: Turned) -> None:
    await turned.space.usage.record(call(1), id="one")
    turned.clock.advance(limits.USE_KNOWN_MS - 1)
    assert not await turned.space.usage.record(call(1), id="one")
    turned.clock.advance(1)
    assert await turned.space.usage.record(call(1), id="one")


async def test_a_day_begins_at_midnight_of_the_zone_also_when_the_clocks_change(turned: Turned) -> None:
    usage = turned.space.usage
    await usage.set_zone("Europe/Berlin")
    await usage.set_budget("day", Budget(calls=1, per="day"))
    set_to(turned, 2025, 3, 29, 22, 59, 59)  # the clocks go forward on the 30th, which has 23 hours
    await usage.record(call())
    error = await refused(BudgetExceededError, usage.record(call()))
    assert error.resets_at == datetime(2025, 3, 29, 23, tzinfo=UTC)
    turned.clock.advance(1000)
    await usage.record(call())
    turned.clock.advance(23 * HOUR - 1)
    await refused(BudgetExceededError, usage.record(call()))
    turned.clock.advance(1)
    await usage.record(call())
    state = (await usage.budgets())["day"]
    assert (state.since, state.until) == (
        datetime(2025, 3, 30, 22, tzinfo=UTC),
        datetime(2025, 3, 31, 22, tzinfo=UTC),
    )
    set_to(turned, 2025, 10, 25, 22)  # the 26th has 25 hours
    await usage.record(call())
    turned.clock.advance(25 * HOUR - 1)
    await refused(BudgetExceededError, usage.record(call()))
    turned.clock.advance(1)
    await usage.record(call())

    assert (await usage.totals()).total.calls == 5
    assert (await usage.totals(since=date(2025, 3, 30), until=date(2025, 3, 31))).total.calls == 1
    assert (await usage.totals(until=date(2025, 3, 31))).total.calls == 2
    assert (await usage.totals(since=date(2025, 10, 27))).total.calls == 1


async def test_a_month_is_a_month_of_the_calendar(turned: Turned) -> None:
    usage = turned.space.usage
    set_to(turned, 2024, 2, 1)
    await usage.record(call(1))
    set_to(turned, 2024, 2, 29, 23, 59, 59)
    await usage.set_budget("month", Budget(cost=cents(3), per="month"))
    await usage.record(call(2))
    error = await refused(BudgetExceededError, usage.record(call(1)))
    assert error.resets_at == datetime(2024, 3, 1, tzinfo=UTC)
    assert (await usage.totals("month")).total.cost == cents(3)
    assert (await usage.totals("day")).total.cost == cents(2)
    turned.clock.advance(1000)

    assert (await usage.totals("month")).total.cost == 0
    await usage.record(call(3))
    await refused(BudgetExceededError, usage.record(call(1)))
    set_to(turned, 2024, 3, 31, 12)
    await refused(BudgetExceededError, usage.record(call(1)))
    await usage.set_budget("month", Budget(cost=cents(9), per="month"))
    assert (await usage.budgets())["month"].used_cost == cents(3)
    set_to(turned, 2024, 12, 31)
    await usage.record(call(9))
    set_to(turned, 2025, 1, 1)
    await usage.record(call(9))


async def test_a_use_counts_in_the_period_in_which_it_is_counted(turned: Turned) -> None:
    usage = turned.space.usage
    set_to(turned, 2024, 1, 1, 23, 59)
    await usage.set_budget("day", Budget(cost=cents(5), per="day"))
    async with usage.reserve(cost=cents(5)) as spend:
        turned.clock.advance(2 * MINUTE)
        await refused(BudgetExceededError, usage.record(call(1)))
        spend.record(call(5))

    assert (await usage.budgets())["day"].used_cost == cents(5)
    assert (await usage.totals(until=date(2024, 1, 2))).total.cost == 0


async def test_a_new_budget_counts_what_its_period_has_used_of_its_model(turned: Turned) -> None:
    usage = turned.space.usage
    set_to(turned, 2024, 1, 31)
    for _ in range(40):  # several shares of the sums of a day
        await usage.record(call(1, "small"))
    set_to(turned, 2024, 2, 1)
    await usage.record(call(2, "small"))
    await usage.record(call(4, "large"))
    for name, budget in {
        "ever": Budget(cost=cents(100)),
        "small": Budget(cost=cents(100), model="small"),
        "month": Budget(cost=cents(100), per="month"),
        "day": Budget(cost=cents(100), per="day", model="small"),
    }.items():
        await usage.set_budget(name, budget)

    assert {name: state.used_cost for name, state in (await usage.budgets()).items()} == {
        "ever": cents(46),
        "small": cents(42),
        "month": cents(6),
        "day": cents(2),
    }


async def test_a_zone_is_final_once_a_use_was_counted(turned: Turned) -> None:
    usage = turned.space.usage
    await usage.set_budget("day", Budget(calls=5, per="day"))
    await usage.set_zone("Asia/Tokyo")
    assert (await usage.budgets())["day"].since == datetime(2023, 11, 14, 15, tzinfo=UTC)
    await usage.record(call())
    await usage.set_zone("Asia/Tokyo")
    await refused(TransitionError, usage.set_zone("UTC"), "final")


# ---- what is refused


async def test_a_reservation_bounds_all_that_a_budget_limits(turned: Turned) -> None:
    usage = turned.space.usage
    await usage.set_budget("money", Budget(cost=cents(10), model="large"))
    await usage.set_budget("tokens", Budget(tokens=10, model="small"))

    await refused(InvalidError, enter(turned.space, tokens=1, model="large"), "limits `cost`")
    await refused(InvalidError, enter(turned.space, cost=1, model="small"), "limits `tokens`")
    await refused(InvalidError, enter(turned.space, cost=0), "limits `tokens`")
    async with usage.reserve(model="other"):
        pass


async def test_numbers_of_budgets_and_reservations_are_bounded(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RESERVATIONS", 20)
    usage = turned.space.usage
    for number in range(limits.BUDGETS):
        await usage.set_budget(f"b{number}", Budget(calls=10_000))
    await refused(InvalidError, usage.set_budget("more", Budget(calls=1)), "32 budgets")
    await usage.set_budget("b0", Budget(calls=9_999))
    other = usage.account("other")
    blocks = [other.reserve(calls=1) for _ in range(limits.RESERVATIONS)]
    for block in blocks:
        await block.__aenter__()
    error = await refused(QuotaExceededError, reserve_in(other, calls=1), "20 reservations")
    assert not isinstance(error, BudgetExceededError)


async def test_the_longest_names_have_room_in_a_key(turned: Turned) -> None:
    ledger = turned.space.usage.account("a" * limits.ACCOUNT_BYTES)
    longest = call(1, "m" * limits.MODEL_BYTES)
    await ledger.set_budget("b" * 512, Budget(calls=1, model=longest.model))
    async with ledger.reserve(id="i" * 512, model=longest.model) as spend:
        spend.record(longest)

    assert (await ledger.totals()).by_model == {longest.model: longest}


def test_money_is_exact_and_never_a_float() -> None:
    assert Usage(cost=Decimal("0.0000000001")).cost == Decimal("0.000000001")
    assert Usage(cost=Decimal("1E-999999")).cost == Decimal("0.000000001")
    assert str(Usage(cost=Decimal("10.500")).cost) == "10.5" and str(Usage(cost=Decimal(100)).cost) == "100"
    with localcontext() as context:
        context.prec = 2
        assert Usage(cost=Decimal("123.456789")).cost == Decimal("123.456789")
    for wrong in (0.1, "1", True, None, Decimal(-1), Decimal("nan"), Decimal("inf"), Decimal("1E+999999")):
        with pytest.raises(InvalidError):
            Usage(cost=wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with pytest.raises(InvalidError):
                Budget(cost=wrong)  # type: ignore[arg-type]
    for wrong_usage in ({"cached_tokens": 1}, {"reasoning_tokens": 1}, {"calls": -1}, {"model": "m" * 101}):
        with pytest.raises(InvalidError):
            Usage(**wrong_usage)  # type: ignore[arg-type]
    for wrong_budget in ({}, {"tokens": -1}, {"calls": 1, "per": "week"}, {"calls": 1, "model": 1}):
        with pytest.raises(InvalidError):
            Budget(**wrong_budget)


async def test_a_sum_that_is_too_large_is_refused(turned: Turned) -> None:
    for _ in range(9):
        await turned.space.usage.account("a").record(Usage(cost=Decimal(10**9)))
    await turned.space.usage.account("a").set_budget("all", Budget(calls=100))
    await turned.space.usage.account("a").record(Usage(cost=Decimal(223_372_036)))

    await refused(InvalidError, turned.space.usage.account("a").record(Usage(cost=Decimal(1))), "nothing")


# ---- in blocking mode, and in a task


def test_blocking_code_spends_alike(tmp_path: Any) -> None:
    with sync.open(f"sqlite:///{tmp_path}/usage.db") as ks:
        session, tenant = ks.space("session/1").usage, ks.space("all").usage
        tenant.set_budget("all", Budget(cost=cents(5)))
        with session.within(tenant).reserve(cost=cents(5)) as spend:
            spend.renew(30)
            spend.record(call(2))
            with ks.space("session/1").transaction() as tx:
                tx.usage.settle(spend)
        with pytest.raises(BudgetExceededError), session.within(tenant).reserve(cost=cents(4)):
            pass
        assert tenant.totals("month").by_model["large"].cost == session.totals().total.cost == cents(2)


async def test_a_step_of_a_task_counts_its_use_once(turned: Turned) -> None:
    async def handler(task: Any) -> None:
        async def work(tx: Transaction) -> None:
            await tx.usage.record(call(2))

        await task.transact("count", work)
        if task.attempt == 1:
            raise ZeroDivisionError

    await turned.space.queue.put(1, id="t")
    [task] = await turned.space.queue.claim("w", lease_s=60)
    with pytest.raises(ZeroDivisionError):
        await handler(task)
    await task.fail("again", 0)
    [task] = await turned.space.queue.claim("w", lease_s=60)
    await handler(task)

    assert await used(turned.space) == cents(2)


async def test_tenants_have_usage_of_their_own(ks: Keepstate) -> None:
    await ks.tenant("a").space("spending").usage.record(call(3))
    await ks.tenant("b").space("spending").usage.record(call(4))

    await ks.tenant("a").erase(confirm="a")

    assert await used(ks.tenant("a").space("spending")) == 0
    assert await used(ks.tenant("b").space("spending")) == cents(4)


async def test_an_import_has_the_usage_of_its_export(turned: Turned, tmp_path: Any) -> None:
    source = turned.ks.tenant("a").space("spending")
    await source.usage.set_budget("all", Budget(cost=cents(10)))
    await source.usage.record(call(3), id="one")
    await turned.ks.tenant("a").export(tmp_path / "a.jsonl")
    await turned.ks.tenant("b").import_(tmp_path / "a.jsonl")

    copy = turned.ks.tenant("b").space("spending")
    assert await used(copy) == cents(3) and not await copy.usage.record(call(3), id="one")
    assert (await copy.usage.budgets())["all"].used_cost == cents(3)


def test_fields_that_a_later_version_has_added_to_a_ledger_survive_a_use() -> None:
    budget = records.BudgetRecord("day", 100, None, None, "day", None)
    reserved = records.ReservationRecord("r", 1, None, Amounts())
    zone, (day,), (one,) = msgspec.msgpack.decode(
        records.encode_ledger(records.LedgerRecord("UTC", (budget,), (reserved,)))
    )
    stored = msgspec.msgpack.encode([zone, [[*day, "weekly"]], [[*one, {"by": "ann"}]], "currency"])

    ledger = use(records.decode_ledger(stored, "the ledger"), "large", Amounts(tokens=3))

    assert ledger.budgets[0].used.tokens == 3
    zone, (day,), (one,), *later = msgspec.msgpack.decode(records.encode_ledger(ledger))
    assert (day[-1], one[-1], later) == ("weekly", {"by": "ann"}, ["currency"])
    with pytest.raises(keepstate.CorruptError):
        records.decode_ledger(msgspec.msgpack.encode(["UTC", 5]), "the ledger")
