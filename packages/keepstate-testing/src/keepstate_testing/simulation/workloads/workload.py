"""The base of all workloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

from keepstate_testing.simulation.world import Actor, Fate, World


class Workload(ABC):
    """A kind of work that actors do, one step at a time.

    Args:
        world: Where.
    """

    weight: ClassVar[float] = 1.0
    """The share of its steps among those of all workloads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fates: dict[str, Fate] = {}

    @abstractmethod
    async def act(self, actor: Actor) -> None:
        """Take one step."""

    def listeners(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what runs all the time, and never ends by itself."""
        return ()

    async def finish(self) -> None:
        """Bring the work to its end, after the world has healed."""
        return

    @abstractmethod
    async def verify(self) -> None:
        """Raise `AssertionError` if the state contradicts the answers."""

    @property
    def judge(self) -> Actor:
        """The client that looks at the end."""
        return self.world.actors[0]

    def compare(self, found: Iterable[str], where: str) -> None:
        """Raise `AssertionError` unless the names found are those of what applied, each once."""
        names = list(found)
        if len(names) > len(set(names)):
            doubled = {name for name in names if names.count(name) > 1}
            raise AssertionError(f"{where}: {sorted(doubled)} applied twice")
        told = {name for name, fate in self.fates.items() if fate is Fate.APPLIED}
        lost = told - set(names)
        assert not lost, f"{where}: {sorted(lost)} were acknowledged and are lost"
        ghosts = {name for name in names if self.fates.get(name) in (None, Fate.REFUSED)}
        assert not ghosts, f"{where}: {sorted(ghosts)} were refused, or made by no client, and are there"
