"""Bookings that expire while transactions are under way: no slot may have two live holders."""

from __future__ import annotations

import asyncio
from typing import Final

from keepstate_testing.proof.bookings import book, double_bookings
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor

_SPACE: Final = "bookings"
"""A space with few other writers: where a revision often changes, a transaction is refused before expiry."""
_TTLS_S: Final = (0.05, 0.5, 2.0)


class Booking(Workload):
    """Each actor books a slot and renews its booking, at times after its end."""

    async def act(self, actor: Actor) -> None:
        """Book or renew, up to three times."""
        space = actor.process.ks.space(_SPACE)
        for _ in range(self.world.random.randint(1, 3)):
            ttl_s = self.world.random.choice(_TTLS_S)
            wait_s = ttl_s * self.world.random.choice([0.0, 0.5, 1.2])

            async def work(ttl_s: float = ttl_s, wait_s: float = wait_s) -> None:
                await book(space, actor.name, ttl_s=ttl_s, wait=lambda: asyncio.sleep(wait_s))

            await self.world.fate(actor, work, f"books for {ttl_s} s, after {wait_s} s")

    async def verify(self) -> None:
        """Replay who had each slot, and see that bookings end."""
        found = list(double_bookings(self.world.oracle.model(_SPACE).log))
        assert not found, found[0]
        await asyncio.sleep(max(_TTLS_S) + 0.1)
        left = [name async for name in self.judge.process.ks.space(_SPACE).documents.keys("*")]
        assert not left, f"{left} should be free again"
