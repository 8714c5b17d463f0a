"""Blocking twins of `keepstate.engine.usage.ledger`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import date
from decimal import Decimal

from keepstate._finish import entered, finish
from keepstate.engine.usage import ledger as engine
from keepstate.engine.usage.amounts import Budget, Period, Usage
from keepstate.engine.usage.ceilings import BudgetState
from keepstate.engine.usage.ledger import UsageTotals
from keepstate.sync.spends import Spend
from keepstate.sync.twin import Twin, inner_of, single_use


class UsageLedger(Twin[engine.UsageLedger]):
    """The usage of one account of a space, or of a transaction on it.

    Attributes:
        name: The name of the account; empty for that of the space itself.
    """

    @property
    def name(self) -> str:
        """The name of the account; empty for that of the space itself."""
        return self._inner.name

    def account(self, name: str) -> UsageLedger:
        """Return the ledger of another account of the same space. Makes no call to the store.

        Accounts of one space can be spent from in one transaction.

        Args:
            name: The name of the account; at most 360 bytes of UTF-8. `expunge` removes it by its beginning.
        """
        return UsageLedger(self._inner.account(name))

    def within(self, outer: UsageLedger) -> UsageLedger:
        """Return this ledger as part of a wider one: of its user, or its tenant. Makes no call to the store.

        `record` and `reserve` then spend from both. The wider ledger is written first, in a batch of its own,
        so it never has less than its parts. If this process is killed between the two, only the wider one has
        counted, and a repetition with the same id counts in the other. Ids are known by ledger: two ledgers
        within the same wider one may use the same id, and both count.

        Args:
            outer: The wider ledger, in any space of any store.
        """
        return UsageLedger(self._inner.within(inner_of(outer)))

    def set_budget(self, name: str, budget: Budget) -> None:
        """Set a ceiling from now on. What was used in its present period counts, also from before the call.

        Args:
            name: The name of the budget; 1 to 512 bytes of UTF-8. A budget of this name is replaced.
            budget: The ceiling.

        Raises:
            InvalidError: The account has 32 budgets already.
        """
        finish(self._inner.set_budget(name, budget))

    def delete_budget(self, name: str) -> bool:
        """Remove a ceiling, and return whether it was there. Sums and reservations stay."""
        return finish(self._inner.delete_budget(name))

    def budgets(self) -> dict[str, BudgetState]:
        """Return the budgets as they stand, by name. Cost: one read."""
        return finish(self._inner.budgets())

    def set_zone(self, zone: str) -> None:
        """Set the zone whose calendar has the days and months of the account. The default is UTC.

        Args:
            zone: The name of the zone, such as `Europe/Berlin`.

        Raises:
            InvalidError: This machine has no such zone.
            TransitionError: Usage was counted before, in days of another zone.
        """
        finish(self._inner.set_zone(zone))

    def record(self, usage: Usage, *, id: str | None = None, allow_over: bool = False) -> bool:
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
        return finish(self._inner.record(usage, id=id, allow_over=allow_over))

    @single_use
    def reserve(
        self,
        *,
        tokens: int | None = None,
        cost: Decimal | int | None = None,
        calls: int = 1,
        model: str | None = None,
        lease_s: float = 600,
        id: str | None = None,
    ) -> Generator[Spend]:
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
        with entered(
            self._inner.reserve(tokens=tokens, cost=cost, calls=calls, model=model, lease_s=lease_s, id=id)
        ) as inner:
            yield Spend(inner)

    def settle(self, spend: Spend) -> bool:
        """Count what a spend has recorded, and return its reservation; return False if it was counted before.

        Only needed in a transaction, to count the use in the batch of a result. Wider ledgers are settled
        first, at once, because the money is spent whatever becomes of the transaction. Afterwards the spend
        records nothing.

        Args:
            spend: A spend of this ledger.

        Raises:
            InvalidError: The spend is of other ledgers, or its id was counted with other amounts.
        """
        return finish(self._inner.settle(inner_of(spend)))

    def totals(
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
        return finish(self._inner.totals(per, since=since, until=until))
