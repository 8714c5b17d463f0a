"""Values too large for one entry, replaced and read while their unused parts are collected."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, ClassVar

from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor

_SPACE = "large"
_NAMES = ("film", "scan")
_SIZES = (10_000, 60_000, 200_000, 200_000)
"""In bytes: of one entry, of one batch, and of several by a world's limits."""


class Keeping(Workload):
    """Each value is made from its own name, so that a part in the wrong place is seen."""

    weight: ClassVar[float] = 0.5

    async def act(self, actor: Actor) -> None:
        """Put, reads or delete a large document, or collects."""
        documents = actor.process.ks.space(_SPACE).documents
        key = self.world.random.choice(_NAMES)
        kind = self.world.random.choice(["put", "put and collect", "get", "collect", "delete"])
        if kind == "put":
            await self._put(actor, key)
        elif kind == "put and collect":
            other = self.world.random.choice(self.world.actors)
            await asyncio.gather(self._put(actor, key), self._collect(other))
        elif kind == "get":
            self._compare(await self.world.looked(actor, lambda: documents.get(key), f"reads {key}"))
        elif kind == "delete":
            await self.world.fate(actor, lambda: documents.delete(key), f"deletes {key}")
        else:
            await self._collect(actor)

    async def _put(self, actor: Actor, key: str) -> None:
        documents = actor.process.ks.space(_SPACE).documents
        # Now and then a value that was there before: its parts may just be about to be collected.
        old = [name for name in self.fates if self.world.random.random() < 0.3]
        name = old[0] if old else self.world.name(f"value {self.world.random.choice(_SIZES)} ")
        self.fates[name], _ = await self.world.fate(
            actor, lambda: documents.put(key, _value(name)), f"puts {name}"
        )

    async def _collect(self, actor: Actor) -> None:
        for _ in range(3):
            await self.world.looked(actor, actor.process.ks.sweep, "collects")

    def _compare(self, value: Any) -> None:
        assert value is None or value == _value(value["name"]), "a large value is not what was put"

    async def verify(self) -> None:
        """Collect garbage, and read the rest."""
        await self.judge.process.ks.sweep()
        documents = self.judge.process.ks.space(_SPACE).documents
        for key in _NAMES:
            self._compare(await documents.get(key))
            await documents.delete(key)
        await self.judge.process.ks.sweep()
        left = await self.judge.process.ks.sweep()
        assert left == 0, f"{left} parts were left by a collection of all"
        await self.judge.process.ks.drop(_SPACE)


def _value(name: str) -> dict[str, Any]:
    return {"name": name, "content": Random(name).randbytes(int(name.split()[1]))}
