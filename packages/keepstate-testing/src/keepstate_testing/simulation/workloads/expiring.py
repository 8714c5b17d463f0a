"""Documents with a time to live, and a sweep that removes only expired entries."""

from __future__ import annotations

import asyncio

from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor

_NAMES = tuple(f"brief/{letter}" for letter in "abcdef")
_LONGEST_S = 4.0


class Expiring(Workload):
    """Compare the end only: the oracle compares each answer of the store."""

    async def act(self, actor: Actor) -> None:
        """Put, updates, deletes or read a document that will expire, or sweeps."""
        documents = actor.space.documents
        kind = self.world.random.choice(["put", "put", "update", "delete", "get", "list", "sweep"])
        name = self.world.random.choice(_NAMES)
        ttl_s = self.world.random.choice([0.05, 0.5, 2.0, _LONGEST_S])
        if kind == "put":
            await self.world.fate(actor, lambda: documents.put(name, kind, ttl_s=ttl_s), f"puts {name}")
        elif kind == "update":
            await self.world.fate(actor, lambda: documents.update(name, lambda old: old), f"touches {name}")
        elif kind == "delete":
            await self.world.fate(actor, lambda: documents.delete(name), f"deletes {name}")
        elif kind == "get":
            await self.world.looked(actor, lambda: documents.get(name), f"reads {name}")
        elif kind == "list":
            await self.world.looked(actor, lambda: self._listed(actor), "lists")
        else:
            await self.world.looked(actor, actor.process.ks.sweep, "sweeps")

    @staticmethod
    async def _listed(actor: Actor) -> list[str]:
        return [name async for name in actor.space.documents.keys("brief/*")]

    async def verify(self) -> None:
        """Wait until all has expired, and sweeps."""
        await asyncio.sleep(_LONGEST_S + 0.1)
        left = await self._listed(self.judge)
        assert not left, f"{left} should have expired"
        await self.judge.process.ks.sweep()
        assert await self.judge.process.ks.sweep() == 0, "a second sweep found something to remove"
