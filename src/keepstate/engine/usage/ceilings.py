"""Ceilings: whether a ledger has room, and what it is after a reservation or a use.

Pure: from a ledger, and a time that it is brought to, follows the next one. A reservation that has ended
leaves the ledger with the first batch after its end. No period that has begun is left for an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

import msgspec

from keepstate.engine.usage.amounts import Amounts, Budget, to_money, total_of
from keepstate.engine.usage.records import (
    BudgetRecord,
    LedgerRecord,
    ReservationRecord,
    begin_of,
    day_of,
    end_day,
    first_day,
)
from keepstate.errors import BudgetExceededError, InvalidError, QuotaExceededError
from keepstate.values import limits

_CEILINGS: Final = ("cost", "tokens", "calls")


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget as it stands.

    Attributes:
        budget: The budget.
        used_cost, used_tokens, used_calls: The amounts that were used in the present period. They are over a
            ceiling if a call used more than was reserved for it.
        reserved_cost, reserved_tokens, reserved_calls: The amounts that are reserved now.
        since: The beginning of the present period, in UTC; None without periods.
        until: Its end.
    """

    budget: Budget
    used_cost: Decimal
    used_tokens: int
    used_calls: int
    reserved_cost: Decimal
    reserved_tokens: int
    reserved_calls: int
    since: datetime | None
    until: datetime | None

    @property
    def is_exceeded(self) -> bool:
        """True if more was used than the budget allows."""
        return any(
            (most := getattr(self.budget, name)) is not None and getattr(self, f"used_{name}") > most
            for name in _CEILINGS
        )


def bring_to(ledger: LedgerRecord, now_ms: int) -> LedgerRecord:
    """Return a ledger at a time: without ended reservations, its budgets in their present periods."""
    day = day_of(now_ms, ledger.zone)
    budgets = tuple(_in_period(budget, first_day(budget.per, day)) for budget in ledger.budgets)
    left = tuple(each for each in ledger.reservations if each.until_ms > now_ms)
    return msgspec.structs.replace(ledger, budgets=budgets, reservations=left)


def _in_period(budget: BudgetRecord, start: int) -> BudgetRecord:
    if start <= budget.since:
        return budget
    return msgspec.structs.replace(budget, since=start, used=Amounts())


def reserve(ledger: LedgerRecord, reservation: ReservationRecord, where: str) -> LedgerRecord:
    """Return a ledger with one more reservation.

    Raises:
        BudgetExceededError: There is no room for it.
        QuotaExceededError: There are 1,000 reservations already.
    """
    require_room(ledger, reservation.model, reservation.amounts, where)
    if len(ledger.reservations) >= limits.RESERVATIONS:
        raise QuotaExceededError(
            f"{where} has {limits.RESERVATIONS:,} reservations; let some end before you reserve more",
            quota="reservations",
            most=limits.RESERVATIONS,
            used=len(ledger.reservations),
        )
    return msgspec.structs.replace(ledger, reservations=(*ledger.reservations, reservation))


def release(ledger: LedgerRecord, id: str) -> tuple[LedgerRecord, bool]:
    """Return a ledger without a reservation, and whether it was there."""
    left = tuple(each for each in ledger.reservations if each.id != id)
    is_there = len(left) < len(ledger.reservations)
    return msgspec.structs.replace(ledger, reservations=left), is_there


def use(ledger: LedgerRecord, model: str, amounts: Amounts) -> LedgerRecord:
    """Return a ledger whose budgets have counted a use of a model, without regard to their ceilings."""
    budgets = tuple(
        msgspec.structs.replace(budget, used=budget.used.plus(amounts)) if budget.counts(model) else budget
        for budget in ledger.budgets
    )
    return msgspec.structs.replace(ledger, budgets=budgets)


def require_room(ledger: LedgerRecord, model: str | None, amounts: Amounts, where: str) -> None:
    """Raise `BudgetExceededError` if a budget has no room left for amounts."""
    for budget in ledger.budgets:
        if not budget.counts(model):
            continue
        taken = total_of([budget.used, _reserved(ledger, budget)])
        for name in _CEILINGS:
            most, used, wanted = getattr(budget, name), getattr(taken, name), getattr(amounts, name)
            if most is not None and used + wanted > most:
                raise _exceeded(ledger, budget, where, name, most, used, wanted)


def require_bounds(
    ledger: LedgerRecord, model: str | None, *, has_cost: bool, has_tokens: bool, where: str
) -> None:
    """Raise `InvalidError` if a reservation has no bound of something that a budget limits."""
    for budget in ledger.budgets:
        for name, is_bounded in (("cost", has_cost), ("tokens", has_tokens)):
            if budget.counts(model) and not is_bounded and getattr(budget, name) is not None:
                raise InvalidError(
                    f"budget {budget.name!r} of {where} limits `{name}`; reserve an upper bound of it"
                )


def _reserved(ledger: LedgerRecord, budget: BudgetRecord) -> Amounts:
    return total_of(each.amounts for each in ledger.reservations if budget.counts(each.model))


def _exceeded(
    ledger: LedgerRecord, budget: BudgetRecord, where: str, name: str, most: int, used: int, wanted: int
) -> BudgetExceededError:
    until = _bounds(ledger, budget)[1]
    begins = "" if until is None else f". It begins again at {until:%Y-%m-%d %H:%M} UTC"
    allowed, taken, added = (to_money(count) if name == "cost" else count for count in (most, used, wanted))
    return BudgetExceededError(
        f"budget {budget.name!r} of {where} allows {allowed:,} of `{name}`; {taken:,} are used or "
        f"reserved, and this would add {added:,}. Nothing was written{begins}",
        quota=name,
        most=allowed,
        used=taken,
        budget=budget.name,
        resets_at=until,
    )


def state_of(ledger: LedgerRecord, budget: BudgetRecord) -> BudgetState:
    """Return the present state of a budget, from a ledger that was brought to the present."""
    reserved = _reserved(ledger, budget)
    since, until = _bounds(ledger, budget)
    return BudgetState(
        budget_of(budget),
        to_money(budget.used.cost),
        budget.used.tokens,
        budget.used.calls,
        to_money(reserved.cost),
        reserved.tokens,
        reserved.calls,
        since,
        until,
    )


def budget_of(record: BudgetRecord) -> Budget:
    """Return the budget of a record."""
    cost = None if record.cost is None else to_money(record.cost)
    return Budget(cost=cost, tokens=record.tokens, calls=record.calls, per=record.per, model=record.model)


def _bounds(ledger: LedgerRecord, budget: BudgetRecord) -> tuple[datetime | None, datetime | None]:
    """Return the beginning and the end of the present period of a budget."""
    if budget.per is None or not budget.since:
        return None, None
    end = end_day(budget.per, budget.since)
    return begin_of(budget.since, ledger.zone), begin_of(end, ledger.zone)
