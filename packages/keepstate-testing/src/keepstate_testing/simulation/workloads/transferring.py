"""Transactions that move money between accounts, and audits that must always find all of it."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from keepstate.engine.space.space import Transaction
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor

_ACCOUNTS = ("acct/a", "acct/b", "acct/c", "acct/d")
_BEGIN = 100
_TOTAL = _BEGIN * len(_ACCOUNTS)
_STREAM = "transfers"


class Transferring(Workload):
    """Each transfer writes two accounts and an event in one batch; an account begins with 100."""

    weight: ClassVar[float] = 2.0

    async def act(self, actor: Actor) -> None:
        """Transfer once, transfers until it succeeds, or audits."""
        kind = self.world.random.choice(["transfer", "transact", "audit", "audit and write"])
        if kind == "transfer":
            await self._transfer(actor)
        elif kind == "transact":
            await self._transact(actor)
        else:
            await self.world.fate(actor, lambda: self._audit(actor, writes=kind != "audit"), kind + "s")

    async def _transfer(self, actor: Actor) -> None:
        name, move = self._move()

        async def work() -> None:
            async with actor.space.transaction(message=name) as tx:
                await move(tx)

        self.fates[name], _ = await self.world.fate(actor, work, f"transfers {name}")

    async def _transact(self, actor: Actor) -> None:
        name, move = self._move()
        self.fates[name], _ = await self.world.fate(
            actor, lambda: actor.space.transact(move), f"transacts {name}"
        )

    def _move(self) -> tuple[str, Any]:
        name = self.world.name("t")
        source, target = self.world.random.sample(_ACCOUNTS, 2)
        amount, pause_s = self.world.random.randint(1, 20), self.world.random.choice([0.0, 0.0, 0.01])

        async def move(tx: Transaction) -> None:
            left = await tx.documents.get(source, _BEGIN)
            if pause_s:
                await asyncio.sleep(pause_s)
            there = await tx.documents.get(target, _BEGIN)
            await tx.documents.put(source, left - amount)
            await tx.documents.put(target, there + amount)
            await tx.events.append([name, source, target, amount], stream=_STREAM)

        return name, move

    async def _audit(self, actor: Actor, *, writes: bool) -> None:
        async with actor.space.transaction() as tx:
            found = {name: value async for name, value in tx.documents.items("acct/*")}
            total = sum(found.values()) + _BEGIN * (len(_ACCOUNTS) - len(found))
            assert total == _TOTAL, f"an audit found {found}, {total} in all and not {_TOTAL}"
            if writes:
                await tx.documents.put("audit", found)

    async def verify(self) -> None:
        """Replay the events and compare with the accounts."""
        balances = dict.fromkeys(_ACCOUNTS, _BEGIN)
        names: list[str] = []
        for event in await self.judge.space.events.read(stream=_STREAM, limit=100_000):
            name, source, target, amount = event.data
            names.append(name)
            balances[source] -= amount
            balances[target] += amount
        self.compare(names, "the transfers")
        for account, balance in balances.items():
            stored = await self.judge.space.documents.get(account, _BEGIN)
            assert stored == balance, f"{account} holds {stored}, and the events make {balance}"
