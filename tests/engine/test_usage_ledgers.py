"""Several ledgers of usage: the widest counts first, all of them or none, and each by itself."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate import Budget, Session, Usage
from keepstate.engine.usage.account import Account
from keepstate.errors import BudgetExceededError, StoreUnavailableError
from tests.engine.conftest import Turned
from tests.engine.test_usage import call, cents, refused, reserve_in


async def test_several_ledgers_count_together_or_none(turned: Turned) -> None:
    session, user, tenant = (turned.ks.space(name).usage for name in ("session/1", "user/1", "all"))
    both = session.within(user).within(tenant)
    await user.set_budget("user", Budget(cost=cents(10)))

    async with both.reserve(cost=cents(4)) as spend:
        assert (await user.budgets())["user"].reserved_cost == cents(4)
        spend.record(call(3))
    assert await both.record(call(2), id="one") and not await both.record(call(2), id="one")
    for ledger in (session, user, tenant):
        assert (await ledger.totals()).total.cost == cents(5)

    await session.set_budget("session", Budget(cost=cents(6)))
    for spend_more in (lambda: both.record(call(2)), lambda: reserve_in(both, cost=cents(2))):
        assert (await refused(BudgetExceededError, spend_more())).budget == "session"
    for ledger in (session, user, tenant):
        assert (await ledger.totals()).total.cost == cents(5)
    assert (await user.budgets())["user"].reserved_cost == 0
    assert await both.record(call(2), allow_over=True)
    assert (await tenant.totals()).total.cost == cents(7)


async def test_the_same_id_in_two_parts_of_a_wider_ledger_counts_twice(turned: Turned) -> None:
    one, two, tenant = (turned.ks.space(name).usage for name in ("session/1", "session/2", "all"))
    await tenant.set_budget("all", Budget(cost=cents(10)))

    for session, cost in ((one, 3), (two, 2)):
        assert await session.within(tenant).record(call(cost), id="turn/1")
        assert not await session.within(tenant).record(call(cost), id="turn/1")
    assert await tenant.record(call(1), id="turn/1")
    assert (await tenant.totals()).total.cost == cents(6)

    async with (
        one.within(tenant).reserve(cost=cents(2), id="turn/2") as first,
        two.within(tenant).reserve(cost=cents(1), id="turn/2") as second,
    ):
        assert (await tenant.budgets())["all"].reserved_cost == cents(3)
        first.record(call(2))
        second.record(call(1))
    assert [(await ledger.totals()).total.cost for ledger in (one, two, tenant)] == [
        cents(5),
        cents(3),
        cents(9),
    ]
    assert (await tenant.budgets())["all"].reserved_cost == 0


async def test_the_widest_ledger_is_written_first_though_a_process_is_killed(turned: Turned) -> None:
    inner, outer = turned.ks.space("inner").usage, turned.ks.space("outer").usage
    await inner.set_budget("none", Budget(calls=0))

    before = await turned.ks.space("outer").revision()
    await refused(BudgetExceededError, inner.within(outer).record(call(1)))
    await refused(BudgetExceededError, reserve_in(inner.within(outer)))

    # Each time a reservation in the wider one, and its return.
    assert await turned.ks.space("outer").revision() == before + 4


async def test_a_crash_between_two_ledgers_counts_in_the_wider_one_and_repeats_once(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = turned.ks.space("inner").usage, turned.ks.space("outer").usage
    await outer.set_budget("all", Budget(cost=cents(10)))
    settle = Account.settle

    async def crash(self: Account, id: str, usages: Any) -> Any:
        if self.executor.name == "inner":
            raise StoreUnavailableError("the process is gone")
        return await settle(self, id, usages)

    with monkeypatch.context() as patch:
        patch.setattr(Account, "settle", crash)
        await refused(StoreUnavailableError, inner.within(outer).record(call(3), id="one"))
    assert ((await outer.totals()).total.cost, (await inner.totals()).total.cost) == (cents(3), 0)

    assert await inner.within(outer).record(call(3), id="one")
    assert ((await outer.totals()).total.cost, (await inner.totals()).total.cost) == (cents(3), cents(3))
    assert (await outer.budgets())["all"].reserved_cost == 0


async def test_a_tenant_has_a_ledger_that_its_sessions_spend_within(turned: Turned) -> None:
    ks = turned.ks
    acme, zeta = ks.tenant("acme"), ks.tenant("zeta")
    await acme.usage.set_budget("all", Budget(tokens=10))
    await zeta.usage.record(Usage(input_tokens=90))
    for user in ("ann", "bob"):
        session = Session(user, user_id=user, persistence=acme)
        ledger = session.usage.within(session.user.usage).within(acme.usage)
        await ledger.record(Usage(input_tokens=5), id="one")

    with pytest.raises(BudgetExceededError):
        await Session("cid", persistence=acme).usage.within(acme.usage).record(Usage(input_tokens=1))

    assert (await acme.usage.totals()).total.tokens == 10
    assert (await Session("cid", persistence=acme).usage.totals()).total.tokens == 0
    assert (await acme.space("usage").usage.totals()).total.tokens == 10
    assert (await ks.usage.totals()).total.tokens == 0
