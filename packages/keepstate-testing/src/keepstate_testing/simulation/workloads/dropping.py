"""A space that is dropped again and again: no revision of it is ever used twice."""

from __future__ import annotations

from typing import ClassVar

from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor

_SPACE = "scratch"


class Dropping(Workload):
    """The versions that writers get only rise, whatever was dropped in between."""

    weight: ClassVar[float] = 0.7

    highest = 0

    async def act(self, actor: Actor) -> None:
        """Write to the space, reads it, or drop it."""
        space = actor.process.ks.space(_SPACE)
        kind = self.world.random.choice(["put", "put", "get", "drop"])
        name = self.world.random.choice("xyz")
        if kind == "put":
            before = self.highest
            _, version = await self.world.fate(
                actor, lambda: space.documents.put(name, kind), "writes scratch"
            )
            if version is not None:
                assert version > before, f"version {version} of {name} was given after {before}"
                self.highest = max(self.highest, version)
        elif kind == "get":
            await self.world.looked(actor, lambda: space.documents.get(name), "reads scratch")
        else:
            await self.world.fate(actor, lambda: actor.process.ks.drop(_SPACE), "drops scratch")

    async def verify(self) -> None:
        """Drop it for good."""
        await self.judge.process.ks.drop(_SPACE)
        found = [name async for name in self.judge.process.ks.spaces()]
        assert _SPACE not in found, f"after the last drop there are {found}"
