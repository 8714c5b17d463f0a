"""A ledger behaves as a plain list of uses, whatever is spent, reserved and given up, at any time."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate import Budget, BudgetExceededError, InvalidError, Spend, Usage
from keepstate._runner import TaskRunner
from keepstate.engine.usage.ledger import UsageLedger
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate, TurnedSource

ZONE = "Europe/Berlin"
BUDGETS = {
    "ever": Budget(cost=Decimal(9)),
    "day": Budget(calls=4, per="day"),
    "month of a": Budget(tokens=12, per="month", model="a"),
    "b": Budget(cost=Decimal(3), calls=5, model="b"),
}
START = datetime(2025, 3, 28, 20, tzinfo=UTC)
"""Two days before the clocks go forward, four before the end of the month."""

Wanted = tuple[Decimal, int, int]
models = st.sampled_from(["a", "b", "c"])
amounts = st.tuples(st.integers(0, 3).map(Decimal), st.integers(0, 4), st.integers(0, 2))
steps = st.one_of(
    st.tuples(st.just("record"), models, amounts, st.integers(0, 6), st.booleans()),
    st.tuples(st.just("reserve"), st.one_of(models, st.none()), amounts, st.integers(0, 6), st.booleans()),
    st.tuples(st.just("end"), models, amounts, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("wait"), models, amounts, st.integers(1, 30), st.booleans()),
    st.tuples(st.just("budget"), models, amounts, st.integers(0, 3), st.booleans()),
)


class Model:
    """Uses and reservations as plain lists, from which everything is computed."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.uses: list[tuple[date, str, Wanted]] = []
        self.held: list[tuple[int, str | None, Wanted, str]] = []
        self.ids = dict[str, tuple[str, Wanted]]()
        self.budgets = dict[str, Budget]()

    def today(self) -> date:
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, ZoneInfo(ZONE)).date()

    def used(self, budget: Budget) -> Wanted:
        day = self.today()
        counted = [
            amounts
            for at, model, amounts in self.uses
            if budget.model in (None, model)
            and (budget.per is None or at == day or (budget.per == "month" and at.month == day.month))
        ]
        return total(counted)

    def reserved(self, budget: Budget) -> Wanted:
        now = self.clock.now_ms()
        return total(
            [
                amounts
                for until, model, amounts, _ in self.held
                if until > now and (budget.model is None or model in (None, budget.model))
            ]
        )

    def has_room(self, model: str | None, wanted: Wanted) -> bool:
        for budget in self.budgets.values():
            if budget.model is None or model in (None, budget.model):
                sums = total([self.used(budget), self.reserved(budget), wanted])
                ceilings = (budget.cost, budget.tokens, budget.calls)
                if any(most is not None and n > most for most, n in zip(ceilings, sums, strict=True)):
                    return False
        return True


def total(given: list[Wanted]) -> Wanted:
    costs, tokens, calls = zip(*given, strict=True) if given else ((), (), ())
    return sum(costs, Decimal(0)), sum(tokens), sum(calls)


def usage_of(model: str, wanted: Wanted) -> Usage:
    return Usage(model=model, cost=wanted[0], input_tokens=wanted[1], calls=wanted[2])


async def compare(usage: UsageLedger, model: Model) -> None:
    """Compare budgets and totals of the ledger with those of the model."""
    for name, state in (await usage.budgets()).items():
        assert (state.used_cost, state.used_tokens, state.used_calls) == model.used(model.budgets[name]), name
        reserved = state.reserved_cost, state.reserved_tokens, state.reserved_calls
        assert reserved == model.reserved(model.budgets[name]), name
    found = (await usage.totals()).by_model
    assert {each: (sums.cost, sums.tokens, sums.calls) for each, sums in found.items()} == {
        each: total([wanted for _, its, wanted in model.uses if its == each])
        for each in {its for _, its, _ in model.uses}
    }


async def go(taken: list[Any]) -> None:
    clock = ManualClock(int(START.timestamp() * 1000))
    ks = TurnedKeepstate(TurnedSource(MemoryStore(runner=TaskRunner(), clock=clock)))
    ks.turned = clock
    usage, model = ks.space("run").usage, Model(clock)
    open_ones: list[tuple[AbstractAsyncContextManager[Spend], Spend]] = []
    await usage.set_zone(ZONE)
    for what, name, wanted, number, flag in taken:
        id = f"id{number}"
        if what == "wait":
            clock.advance(number * (3_600_000 if flag else 60_000))
        elif what == "budget":
            chosen = list(BUDGETS)[number]
            if flag and chosen in model.budgets:
                del model.budgets[chosen]
                assert await usage.delete_budget(chosen)
            else:
                model.budgets[chosen] = BUDGETS[chosen]
                await usage.set_budget(chosen, BUDGETS[chosen])
        elif what == "record":
            is_allowed = flag or model.has_room(name, wanted)
            if model.ids.get(id, (name, wanted)) != (name, wanted):
                with pytest.raises(InvalidError):
                    await usage.record(usage_of(name, wanted), id=id)
            elif id in model.ids:
                assert not await usage.record(usage_of(name, wanted), id=id)
            elif is_allowed:
                assert await usage.record(usage_of(name, wanted), id=id, allow_over=flag)
                model.uses.append((model.today(), name, wanted))
                model.ids[id] = name, wanted
            else:
                with pytest.raises(BudgetExceededError):
                    await usage.record(usage_of(name, wanted), id=id)
        elif what == "reserve":
            block = usage.reserve(model=name, cost=wanted[0], tokens=wanted[1], calls=wanted[2], lease_s=1800)
            if model.has_room(name, wanted):
                spend = await block.__aenter__()
                open_ones.append((block, spend))
                model.held.append((clock.now_ms() + 1_800_000, name, wanted, spend.id))
            else:
                with pytest.raises(BudgetExceededError):
                    await block.__aenter__()
        elif what == "end" and open_ones:
            block, spend = open_ones.pop(number % len(open_ones))
            if flag:
                spend.record(usage_of(name, wanted))
                model.uses.append((model.today(), name, wanted))
            is_late = all(held[3] != spend.id or held[0] <= clock.now_ms() for held in model.held)
            model.held = [held for held in model.held if held[3] != spend.id]
            await block.__aexit__(None, None, None)
            assert spend.is_late == is_late
        await compare(usage, model)
    for block, _ in open_ones:
        await block.__aexit__(None, None, None)
    await ks.close()


@pytest.mark.searched
@given(st.lists(steps, max_size=40))
def test_a_ledger_behaves_as_a_list_of_uses(taken: list[Any]) -> None:
    asyncio.run(go(taken))
