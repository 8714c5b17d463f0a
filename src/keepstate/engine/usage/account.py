"""One account: the batches that count and reserve, each of which checks every ceiling of the account.

A batch that spends under a budget replaces the ledger's entry and checks its version, so no two processes
take the same room. It goes by the store's time, which also ends reservations. What is counted stays counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

import msgspec

from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.usage import ceilings
from keepstate.engine.usage.amounts import Amounts, Usage, amounts_of
from keepstate.engine.usage.records import (
    SHARES,
    LedgerRecord,
    ReservationRecord,
    UsedRecord,
    day_of,
    decode_ledger,
    decode_used,
    digest_of,
    encode_ledger,
    encode_used,
    ledger_key,
    spent_key,
    unscoped,
    used_key,
)
from keepstate.errors import InvalidError, LeaseLostError
from keepstate.values import limits

T = TypeVar("T")


class Guard(Protocol):
    """A check in front of an account that not every caller may use, such as that of an owned session."""

    @property
    def key(self) -> bytes:
        """The key of the entry that decides."""
        ...

    async def check(self, executor: Executor, unit: Unit) -> None:
        """Raise an error if the caller may not use the account."""
        ...


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcome of counting a use.

    Attributes:
        is_new: Whether it was counted now, and not before.
        is_late: Whether its reservation had ended before.
        is_over: Whether a budget is exceeded now.
    """

    is_new: bool
    is_late: bool
    is_over: bool


class Account:
    """An account of a space, or of a transaction on it.

    Args:
        executor: The executor of the space.
        name: The name of the account.
        guard: Refuses callers who may not use the account, by what a unit reads.
    """

    def __init__(self, executor: Executor, name: str, guard: Guard | None = None) -> None:
        self.executor, self.name, self.guard = executor, name, guard

    @property
    def where(self) -> str:
        """The account and its space, in messages."""
        account = f"account {self.name!r} of " if self.name else ""
        return f"{account}{self.executor.name!r}"

    def new_id(self) -> str:
        """Return a random id for a use."""
        return str(UUID(bytes=self.executor.clock.random_bytes(16), version=4))

    async def is_same(self, other: Account) -> bool:
        """Return whether another object is of the same account, in the same opened store."""
        names = self.executor.stored_name == other.executor.stored_name and self.name == other.name
        return names and await self.executor.store() is await other.executor.store()

    # ---- the ledger

    async def change(self, work: Callable[[Unit], Awaitable[T]]) -> T:
        """Run work on the ledger, after earlier work of this process on it, until it is applied."""
        return (await self.executor.serialized(ledger_key(self.name), work))[0]

    async def read(self, unit: Unit, *also: bytes) -> LedgerRecord:
        """Return the ledger at the present time, and read other entries with it.

        The guard's error is raised here, and nothing was written.
        """
        guarded = () if self.guard is None else (self.guard.key,)
        entry = (await unit.read(ledger_key(self.name), *also, *guarded))[0]
        if self.guard is not None:
            await self.guard.check(self.executor, unit)
        ledger = decode_ledger(None if entry is None else entry.value, f"the ledger of {self.where}")
        return ceilings.bring_to(ledger, await unit.confirmed_now_ms())

    def write(self, unit: Unit, ledger: LedgerRecord) -> None:
        """Write the ledger."""
        unit.put(ledger_key(self.name), encode_ledger(ledger))

    # ---- reservations

    async def hold(
        self, id: str, model: str | None, amounts: Amounts, lease_ms: int, *, has_cost: bool, has_tokens: bool
    ) -> None:
        """Reserve amounts, unless a use with this id was counted before. The same reservation is replaced.

        Raises:
            BudgetExceededError: There is no room for them.
            InvalidError: A budget limits what the reservation has no bound of, or other amounts are reserved
                for this id.
            QuotaExceededError: There are too many reservations.
        """

        async def work(unit: Unit) -> None:
            ledger = await self.read(unit, spent_key(self.name, id))
            if await unit.get(spent_key(self.name, id)) is not None:
                return
            for running in ledger.reservations:
                if running.id == id and (running.model, running.amounts) != (model, amounts):
                    raise self._reused(id, "has reserved")
            ledger, _ = ceilings.release(ledger, id)
            ceilings.require_bounds(ledger, model, has_cost=has_cost, has_tokens=has_tokens, where=self.where)
            until_ms = await unit.confirmed_now_ms() + lease_ms
            self.write(
                unit, ceilings.reserve(ledger, ReservationRecord(id, until_ms, model, amounts), self.where)
            )

        await self.change(work)

    async def renew(self, id: str, lease_ms: int) -> None:
        """Let a reservation last from now on.

        Raises:
            LeaseLostError: It has ended.
        """

        async def work(unit: Unit) -> None:
            ledger = await self.read(unit)
            until_ms = await unit.confirmed_now_ms() + lease_ms
            if all(each.id != id for each in ledger.reservations):
                raise LeaseLostError(
                    f"reservation {id!r} of {self.where} has ended, and others may have its room; a use that "
                    "is recorded is counted nevertheless",
                    space=self.executor.name,
                    name=id,
                )
            renewed = tuple(
                msgspec.structs.replace(each, until_ms=until_ms) if each.id == id else each
                for each in ledger.reservations
            )
            self.write(unit, msgspec.structs.replace(ledger, reservations=renewed))

        await self.change(work)

    async def release(self, id: str) -> None:
        """Return a reservation, if it is there."""

        async def work(unit: Unit) -> None:
            ledger, is_there = ceilings.release(await self.read(unit), id)
            if is_there:
                self.write(unit, ledger)

        await self.change(work)

    # ---- uses

    async def settle(self, id: str, usages: Sequence[Usage]) -> Counted:
        """Count uses whatever the ceilings, and return the reservation, in one batch; once for an id.

        Raises:
            InvalidError: The id has counted other amounts.
        """
        return await self.change(
            lambda unit: self._count(unit, id, usages, is_reserved=True, allow_over=True)
        )

    async def record(self, id: str | None, usages: Sequence[Usage], *, allow_over: bool) -> Counted:
        """Count uses, once for an id.

        Raises:
            BudgetExceededError: They would exceed a ceiling, and may not.
            InvalidError: The id has counted other amounts.
        """
        return await self.change(
            lambda unit: self._count(unit, id, usages, is_reserved=False, allow_over=allow_over)
        )

    async def _count(
        self, unit: Unit, id: str | None, usages: Sequence[Usage], *, is_reserved: bool, allow_over: bool
    ) -> Counted:
        mark = None if id is None else spent_key(self.name, id)
        ledger = await self.read(unit, *(() if mark is None else (mark,)))
        if id is not None and mark is not None and (known := await unit.get(mark)) is not None:
            if usages and known.value != digest_of(usages):
                raise self._reused(id, "has counted")
            return Counted(False, False, _is_over(ledger))
        is_there = True
        if is_reserved and id is not None:
            ledger, is_there = ceilings.release(ledger, id)
        for usage in usages:
            amounts = amounts_of(usage)
            if not allow_over:
                ceilings.require_room(ledger, usage.model, amounts, self.where)
            ledger = ceilings.use(ledger, usage.model, amounts)
        if ledger.budgets or (is_reserved and is_there):
            self.write(unit, ledger)
        await self._add_sums(unit, ledger, usages)
        if mark is not None and usages:
            unit.put(mark, digest_of(usages), ttl_ms=limits.USE_KNOWN_MS)
        return Counted(bool(usages), not is_there, _is_over(ledger))

    def _reused(self, id: str, what: str) -> InvalidError:
        return InvalidError(
            f"use {unscoped(id)!r} of {self.where} {what} other amounts before; this use was not "
            "counted. Give each use an id of its own, or none"
        )

    async def _add_sums(self, unit: Unit, ledger: LedgerRecord, usages: Sequence[Usage]) -> None:
        """Add uses to the sums of this day. Writers of an account without a budget seldom meet there."""
        day = day_of(await unit.confirmed_now_ms(), ledger.zone)
        share = 0 if ledger.budgets else int(self.executor.clock.spread() * SHARES)
        keys = {usage.model: used_key(self.name, day, usage.model, share) for usage in usages}
        entries = dict(zip(keys, await unit.read(*keys.values()), strict=True)) if keys else {}
        for model, key in keys.items():
            entry = entries[model]
            total = decode_used(None if entry is None else entry.value, f"the sums of {self.where}")
            for usage in usages:
                if usage.model == model:
                    total = total.plus(UsedRecord.of(usage))
            unit.put(key, encode_used(total))


def _is_over(ledger: LedgerRecord) -> bool:
    return any(ceilings.state_of(ledger, budget).is_exceeded for budget in ledger.budgets)
