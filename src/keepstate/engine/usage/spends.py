"""Spends: one use under reservations in one or several accounts, the widest first.

Accounts in different spaces change one after another. The widest is written first, both when amounts are
reserved and when the use is counted, so a wider account never has less than its parts. A kill in between
leaves reservations, which end by the store's time. Each account counts the id once, so settling can repeat.
In the wider accounts the id is scoped by the narrowest one, so that the same id in another part counts there
too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from keepstate.engine.kernel.arguments import check_duration_ms, require_instance
from keepstate.engine.kernel.shield import finish_despite_cancel
from keepstate.engine.usage.account import Account
from keepstate.engine.usage.amounts import Amounts, Usage
from keepstate.engine.usage.records import scoped_id
from keepstate.errors import InvalidError, KeepstateError, StorageError

_log = logging.getLogger("keepstate.usage")
_USES: Final = 100


class Spend:
    """One use, or several of one id, with amounts that are reserved for it.

    Made by `UsageLedger.reserve`, which counts what it has recorded.

    Attributes:
        id: The id of the use.
        is_late: Whether the reservation had ended before the use was counted; others may have its room.
        is_over: Whether a budget was exceeded after the use was counted.
    """

    id: str
    is_late: bool
    is_over: bool

    def __init__(
        self,
        id: str,
        model: str | None,
        accounts: Sequence[Account],
        *,
        has_cost: bool = True,
        has_tokens: bool = True,
    ) -> None:
        self.id, self._model, self._accounts = id, model, tuple(accounts)
        self._has_cost, self._has_tokens = has_cost, has_tokens
        self._uses: list[Usage] = []
        self._is_closed = False
        self.is_late = self.is_over = False

    def __repr__(self) -> str:
        return f"<Spend {self.id!r} of {self._accounts[-1].where}>"

    def record(self, usage: Usage) -> None:
        """Note a use, which is counted when the block of the spend ends. Makes no call to the store.

        It may be called up to 100 times, for calls of several models too. A use of another model than the
        reserved one counts in the budgets of its own model.

        Raises:
            InvalidError: The spend was settled, or has recorded 100 uses.
        """
        require_instance("usage", usage, Usage)
        if self._is_closed:
            raise InvalidError(f"{self!r} was settled; record the use in the ledger, with an id of its own")
        if len(self._uses) >= _USES:
            raise InvalidError(f"{self!r} has recorded {_USES} uses; reserve again for more")
        self._uses.append(usage)

    @property
    def uses(self) -> list[Usage]:
        """The recorded uses."""
        return list(self._uses)

    async def renew(self, lease_s: float = 600) -> None:
        """Let the reservation last for `lease_s` seconds from now.

        Raises:
            LeaseLostError: It has ended. The use is counted nevertheless when the block ends.
        """
        lease_ms = check_duration_ms("lease_s", lease_s)
        for account in self._accounts:
            await account.renew(self._id_in(account), lease_ms)

    # ---- for the ledger

    async def hold(self, amounts: Amounts, lease_ms: int) -> None:
        """Reserve amounts in each account, the widest first; in none if one of them refuses."""
        begun: list[Account] = []
        try:
            for account in self._accounts:
                begun.append(account)
                await account.hold(
                    self._id_in(account),
                    self._model,
                    amounts,
                    lease_ms,
                    has_cost=self._has_cost,
                    has_tokens=self._has_tokens,
                )
        except BaseException as error:  # also a cancellation; raised again
            if isinstance(error, KeepstateError) and not isinstance(error, StorageError):
                begun.pop()  # it has refused, so what is reserved there is of another spend with this id
            await self._release(begun)
            raise

    async def let_go(self) -> None:
        """Return the reservations, and count nothing."""
        await self._release(self._accounts)

    async def _release(self, accounts: Sequence[Account]) -> None:
        for account in reversed(accounts):
            with suppress(KeepstateError):  # the reservation ends by itself
                await account.release(self._id_in(account))

    def _id_in(self, account: Account) -> str:
        own = self._accounts[-1]
        if account is own:
            return self.id
        return scoped_id(own.executor.stored_name, own.name, self.id)

    async def settle(self) -> bool:
        """Count what is recorded in each account that has not counted it; return whether the last one did."""
        self._is_closed, is_new = True, False
        try:
            for account in self._accounts:
                is_new = await self._settle_one(account, account)
        except InvalidError:  # a repetition cannot count either, so no account keeps room for it
            await self.let_go()
            raise
        return is_new

    async def settle_despite_cancel(self) -> bool:
        """Do what `settle` does, to its end even if the caller is cancelled."""
        return await finish_despite_cancel(self._accounts[-1].executor.runner, self.settle)

    async def settle_in(self, account: Account) -> bool:
        """Count what is recorded in one account, which a transaction may be on, after the wider ones.

        Raises:
            InvalidError: The spend has no reservation in this account.
        """
        before: list[Account] = []
        for same in self._accounts:
            if await same.is_same(account):
                break
            before.append(same)
        else:
            raise InvalidError(f"{self!r} has nothing reserved in {account.where}; settle it in its ledger")
        self._is_closed = True
        for wider in before:
            await self._settle_one(wider, wider)
        return await self._settle_one(same, account)

    async def _settle_one(self, own: Account, account: Account) -> bool:
        """Count in an account of this spend, by an object of the same account."""
        counted = await account.settle(self._id_in(own), self._uses)
        if counted.is_late and self._uses and not self.is_late:
            _log.warning("The reservation of %r had ended before its use was counted; renew it earlier", self)
        self.is_late, self.is_over = self.is_late or counted.is_late, self.is_over or counted.is_over
        return counted.is_new
