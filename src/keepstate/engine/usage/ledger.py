"""Ledgers of usage: budgets, uses that are counted once, and totals by model.

Nothing gives money back: a use that was counted stays counted, whatever becomes of the message that it was
for. The ceilings are checked in the batch that counts or reserves; see `engine.usage.account`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Final

import msgspec

from keepstate.engine.kernel.arguments import (
    check_choice,
    check_duration_ms,
    check_flag,
    check_name,
    require_instance,
    single_use,
)
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.shield import acquire_shielded
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.timetable import check_zone
from keepstate.engine.usage import ceilings
from keepstate.engine.usage.account import Account, Guard
from keepstate.engine.usage.amounts import (
    Amounts,
    Budget,
    Period,
    Usage,
    amounts_of,
    check_model,
    to_billionths,
)
from keepstate.engine.usage.ceilings import BudgetState
from keepstate.engine.usage.records import (
    BudgetRecord,
    UsedRecord,
    check_account,
    day_and_model,
    day_of,
    decode_used,
    end_day,
    first_day,
    usage_of,
    used_prefix,
)
from keepstate.engine.usage.spends import Spend
from keepstate.errors import InvalidError, KeepstateError, TransitionError
from keepstate.values import limits

_COUNTED_LEASE_MS: Final = 60_000
"""Time for which `record` holds room in all ledgers before it counts in the first."""
_LAST_DAY: Final = date.max.toordinal()


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """The usage of some days.

    Attributes:
        total: The usage of all models.
        by_model: The usage of each model, by its name.
    """

    total: Usage
    by_model: dict[str, Usage]


class UsageLedger:
    """The usage of one account of a space, or of a transaction on it.

    Attributes:
        name: The name of the account; empty for that of the space itself.
    """

    name: str

    def __init__(
        self,
        executor: Executor,
        name: str = "",
        outer: tuple[Account, ...] = (),
        guard: Guard | None = None,
    ) -> None:
        self._executor, self.name, self._outer = executor, name, outer
        self._account = Account(executor, name, guard)

    def __repr__(self) -> str:
        return f"<UsageLedger of {self._account.where}>"

    def account(self, name: str) -> UsageLedger:
        """Return the ledger of another account of the same space. Makes no call to the store.

        Accounts of one space can be spent from in one transaction.

        Args:
            name: The name of the account; at most 360 bytes of UTF-8. `expunge` removes it by its beginning.
        """
        return UsageLedger(self._executor, check_account("name", name))

    def guarded(self, guard: Guard) -> UsageLedger:
        """Return this ledger behind a guard; for the layers above the engine."""
        return UsageLedger(self._executor, self.name, self._outer, guard)

    def within(self, outer: UsageLedger) -> UsageLedger:
        """Return this ledger as part of a wider one: of its user, or its tenant. Makes no call to the store.

        `record` and `reserve` then spend from both. The wider ledger is written first, in a batch of its own,
        so it never has less than its parts. If this process is killed between the two, only the wider one has
        counted, and a repetition with the same id counts in the other. Ids are known by ledger: two ledgers
        within the same wider one may use the same id, and both count.

        Args:
            outer: The wider ledger, in any space of any store.
        """
        require_instance("outer", outer, UsageLedger)
        return UsageLedger(self._executor, self.name, outer._accounts + self._outer, self._account.guard)

    @property
    def _accounts(self) -> tuple[Account, ...]:
        """The accounts that are spent from, the widest first."""
        return (*self._outer, self._account)

    # ---- budgets

    async def set_budget(self, name: str, budget: Budget) -> None:
        """Set a ceiling from now on. What was used in its present period counts, also from before the call.

        Args:
            name: The name of the budget; 1 to 512 bytes of UTF-8. A budget of this name is replaced.
            budget: The ceiling.

        Raises:
            InvalidError: The account has 32 budgets already.
        """
        check_name("name", name)
        require_instance("budget", budget, Budget)
        cost = None if budget.cost is None else to_billionths("cost", budget.cost)
        wanted = BudgetRecord(name, budget.tokens, cost, budget.calls, budget.per, budget.model)

        async def work(unit: Unit) -> None:
            ledger = await self._account.read(unit)
            former = next((each for each in ledger.budgets if each.name == name), None)
            others = tuple(each for each in ledger.budgets if each.name != name)
            if len(others) >= limits.BUDGETS:
                raise InvalidError(f"{self._account.where} has {limits.BUDGETS} budgets already; delete one")
            start = first_day(budget.per, day_of(await unit.confirmed_now_ms(), ledger.zone))
            if former is not None and (former.per, former.model) == (budget.per, budget.model):
                since, used = former.since, former.used
            else:
                since, used = start, await self._used_since(unit, start, budget.model)
            made = msgspec.structs.replace(wanted, since=since, used=used)
            self._account.write(unit, msgspec.structs.replace(ledger, budgets=(*others, made)))

        await self._account.change(work)

    async def _used_since(self, unit: Unit, start: int, model: str | None) -> Amounts:
        total, prefix = Amounts(), used_prefix(self.name)
        async for entry in unit.scan(prefix, after=used_prefix(self.name, start) if start else None):
            _, its_model = day_and_model(entry.key)
            if model is None or its_model == model:
                total = total.plus(decode_used(entry.value, self._account.where).amounts)
        return total

    async def delete_budget(self, name: str) -> bool:
        """Remove a ceiling, and return whether it was there. Sums and reservations stay."""
        check_name("name", name)

        async def work(unit: Unit) -> bool:
            ledger = await self._account.read(unit)
            left = tuple(each for each in ledger.budgets if each.name != name)
            if len(left) == len(ledger.budgets):
                return False
            self._account.write(unit, msgspec.structs.replace(ledger, budgets=left))
            return True

        return await self._account.change(work)

    async def budgets(self) -> dict[str, BudgetState]:
        """Return the budgets as they stand, by name. Cost: one read."""

        async def work(unit: Unit) -> dict[str, BudgetState]:
            ledger = await self._account.read(unit)
            return {each.name: ceilings.state_of(ledger, each) for each in ledger.budgets}

        return (await self._executor.run(work))[0]

    async def set_zone(self, zone: str) -> None:
        """Set the zone whose calendar has the days and months of the account. The default is UTC.

        Args:
            zone: The name of the zone, such as `Europe/Berlin`.

        Raises:
            InvalidError: This machine has no such zone.
            TransitionError: Usage was counted before, in days of another zone.
        """
        name = check_zone(zone)

        async def work(unit: Unit) -> None:
            ledger = await self._account.read(unit)
            if ledger.zone == name:
                return
            async for _ in unit.scan(used_prefix(self.name), at_once=1):
                raise TransitionError(
                    f"{self._account.where} has counted usage in days of {ledger.zone!r}, so its zone is "
                    "final; use another account",
                    current=ledger.zone,
                    wanted=name,
                )
            day = day_of(await unit.confirmed_now_ms(), name)
            budgets = tuple(
                msgspec.structs.replace(each, since=first_day(each.per, day)) for each in ledger.budgets
            )
            self._account.write(unit, msgspec.structs.replace(ledger, zone=name, budgets=budgets))

        await self._account.change(work)

    # ---- spending

    async def record(self, usage: Usage, *, id: str | None = None, allow_over: bool = False) -> bool:
        """Count a use, and return True; return False if a use with this id was counted before.

        The batch that counts it checks every ceiling, unless `allow_over` is set. Cost: one read and one
        batch for each ledger; two batches for each of several. With a budget, writers take turns.

        Args:
            usage: The usage.
            id: The id of the use, such as that of the request; 1 to 512 bytes of UTF-8. It is known in this
                ledger for 30 days.
            allow_over: Count it also above a ceiling. For money that is spent already: a budget that is
                exceeded by it then refuses all that follows.

        Raises:
            BudgetExceededError: It would exceed a ceiling. Nothing was written.
            InvalidError: The id was counted, or is reserved, with other amounts, or a sum would have more
                than 63 bits. Nothing was written.
        """
        require_instance("usage", usage, Usage)
        if id is not None:
            check_name("id", id)
        check_flag("allow_over", allow_over)
        if not self._outer:
            return (await self._account.record(id, [usage], allow_over=allow_over)).is_new
        spend = Spend(self._account.new_id() if id is None else id, usage.model, self._accounts)
        spend.record(usage)
        if not allow_over:  # room in all of them first, so that none counts what another one refuses
            await spend.hold(amounts_of(usage), _COUNTED_LEASE_MS)
        return await spend.settle_despite_cancel()

    @single_use
    async def reserve(
        self,
        *,
        tokens: int | None = None,
        cost: Decimal | int | None = None,
        calls: int = 1,
        model: str | None = None,
        lease_s: float = 600,
        id: str | None = None,
    ) -> AsyncGenerator[Spend]:
        """Reserve an upper bound of a use, and yield a spend that records the use.

        When the block ends, also by an error, the recorded use is counted and the reservation is returned, in
        one batch. A use above the reservation is counted too: the budget is then exceeded, and refuses all
        that follows. If this process is killed, the reservation ends after `lease_s` seconds by the store's
        time, and the use is not known.

        Args:
            tokens: The largest number of tokens. Required if a budget limits tokens.
            cost: The largest cost. Required if a budget limits the cost.
            calls: The largest number of calls.
            model: The model. Without it, the reservation counts in the budgets of every model.
            lease_s: Seconds after which the reservation ends by itself; see `Spend.renew`.
            id: The id of the use; by default, a random one. If it was counted in the last 30 days, nothing is
                reserved, and the use must be the same. A reservation of the same amounts is replaced.

        Raises:
            BudgetExceededError: A budget has no room left for it. Nothing was written.
            InvalidError: A bound is missing, or a running spend with this id has reserved other amounts. At
                the end of the block: the id was counted with other amounts, or a sum would have more than 63
                bits; this use was not counted.
            QuotaExceededError: The account has 1,000 reservations.
        """
        self._executor.require_outside_transaction("reserving")
        amounts = _bounds(tokens, cost, calls)
        if model is not None:
            check_model("model", model)
        lease_ms = check_duration_ms("lease_s", lease_s)
        own = self._account.new_id() if id is None else check_name("id", id)
        spend = Spend(own, model, self._accounts, has_cost=cost is not None, has_tokens=tokens is not None)

        async def acquire() -> Spend:
            await spend.hold(amounts, lease_ms)
            return spend

        await acquire_shielded(self._executor.runner, acquire, Spend.let_go)
        try:
            yield spend
        except BaseException as error:  # also a cancellation; raised again
            try:
                await spend.settle_despite_cancel()
            except KeepstateError as failure:
                error.add_note(f"{spend!r} is not settled, and its reservation ends by itself: {failure}")
            raise
        await spend.settle_despite_cancel()

    async def settle(self, spend: Spend) -> bool:
        """Count what a spend has recorded, and return its reservation; return False if it was counted before.

        Only needed in a transaction, to count the use in the batch of a result. Wider ledgers are settled
        first, at once, because the money is spent whatever becomes of the transaction. Afterwards the spend
        records nothing.

        Args:
            spend: A spend of this ledger.

        Raises:
            InvalidError: The spend is of other ledgers, or its id was counted with other amounts.
        """
        require_instance("spend", spend, Spend)
        return await spend.settle_in(self._account)

    # ---- totals

    async def totals(
        self, per: Period | None = None, *, since: date | None = None, until: date | None = None
    ) -> UsageTotals:
        """Return the usage of some days, by model. Without arguments, of all time.

        Cost: a scan of a row for each day and model, up to 16 where the account has no budget. In a
        transaction, the batch then requires that the space does not change.

        Args:
            per: The present day or month, in the zone of the account.
            since: The first day.
            until: The first day that does not count.

        Raises:
            InvalidError: Both `per` and a day were given.
        """
        check_choice("per", per, None, "day", "month")
        begin, end = _ordinal("since", since), _ordinal("until", until)
        if per is not None:
            if begin is not None or end is not None:
                raise InvalidError(
                    "`per` and a day were both given; give the first day and the end, or `per`"
                )
            begin = first_day(per, await self._today())
            end = end_day(per, begin)
        if self._account.guard is not None:
            await self.budgets()  # refuses a caller who may not read it
        prefix = used_prefix(self.name)
        after = None if begin is None else used_prefix(self.name, begin)
        before = None if end is None or end > _LAST_DAY else used_prefix(self.name, end)
        found: dict[str, list[UsedRecord]] = {}
        async for _, entry in self._executor.scan(prefix, after=after, before=before):
            day, model = day_and_model(entry.key)
            place = f"the usage of {model!r} on {date.fromordinal(day)} in {self._account.where}"
            found.setdefault(model, []).append(decode_used(entry.value, place))
        sums = {model: UsedRecord.total(records) for model, records in found.items()}
        total = UsedRecord.total(sums.values())
        return UsageTotals(usage_of("", total), {model: usage_of(model, one) for model, one in sums.items()})

    async def _today(self) -> int:
        async def work(unit: Unit) -> int:
            ledger = await self._account.read(unit)
            return day_of(await unit.confirmed_now_ms(), ledger.zone)

        return (await self._executor.run(work))[0]


def _bounds(tokens: int | None, cost: Decimal | int | None, calls: int) -> Amounts:
    """Return the amounts of a reservation."""
    if tokens is not None:
        limits.admit_count("tokens", tokens, 0, limits.LARGEST_USAGE)
    limits.admit_count("calls", calls, 0, limits.LARGEST_USAGE)
    return Amounts(tokens or 0, 0 if cost is None else to_billionths("cost", cost), calls)


def _ordinal(what: str, day: object) -> int | None:
    if day is None:
        return None
    if not isinstance(day, date) or isinstance(day, datetime):
        raise InvalidError(f"`{what}` is {day!r:.60}. Pass a date, which is a day in the zone of the account")
    return day.toordinal()
