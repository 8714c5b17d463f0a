"""Leases, held too long by paused processes, and writes that only the present holder may make."""

from __future__ import annotations

from typing import ClassVar

from keepstate.engine.queue.lease import Lease
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import Actor, Fate, World

_NAMES = ("lease/a", "lease/b")
_TTL_S = 2.0


class Leasing(Workload):
    """Each fenced write adds an event with its token: tokens never go back."""

    weight: ClassVar[float] = 2.0

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.held: dict[str, Lease] = {}

    async def act(self, actor: Actor) -> None:
        """Acquire a lease, or uses the one that the actor believes in, or believed in."""
        lease = self.held.get(actor.name)
        if lease is None:
            await self._acquire(actor)
            return
        kind = self.world.random.choice(["write", "write", "write", "renew", "release", "check"])
        if kind == "write":
            await self._write(actor, lease)
        elif kind == "check":
            fate, _ = await self.world.fate(actor, lease.check, f"checks {lease.name} {lease.token}")
            self._believe(actor, fate)
        elif kind == "renew":
            fate, _ = await self.world.fate(actor, lease.renew, f"renews {lease.name} {lease.token}")
            self._believe(actor, fate)
        else:
            await self.world.fate(actor, lease.release, f"releases {lease.name} {lease.token}")
            del self.held[actor.name]

    async def _acquire(self, actor: Actor) -> None:
        name, wait_s = self.world.random.choice(_NAMES), self.world.random.choice([0, 0, 0, 1.5])
        _, lease = await self.world.fate(
            actor, lambda: actor.space.leases.acquire(name, _TTL_S, wait_s=wait_s), f"acquires {name}"
        )
        if lease is None:
            return
        # An answer may come so late that the lease is over, and the next one's holder rightly believes in it.
        if lease.is_held() and not self.world.dials.clock_jumps:
            for other, theirs in self.held.items():
                assert theirs.name != name or not theirs.is_held(), f"{actor.name} got {lease} of {other}"
        self.held[actor.name] = lease

    async def _write(self, actor: Actor, lease: Lease) -> None:
        name = self.world.name("g")

        async def work() -> None:
            async with actor.space.transaction(lease=lease) as tx:
                await tx.documents.put(f"guarded/{lease.name}", lease.token)
                await tx.events.append([name, lease.token], stream=lease.name)

        self.fates[name], _ = await self.world.fate(actor, work, f"writes {name} with {lease.token}")
        self._believe(actor, self.fates[name])

    def _believe(self, actor: Actor, fate: Fate) -> None:
        """Let some actors continue with a rejected lease, like a process that ignores the error."""
        if fate is Fate.REFUSED and self.world.random.random() < 0.6:
            del self.held[actor.name]

    async def verify(self) -> None:
        """Look for a former holder's write behind a later one's."""
        names: list[str] = []
        for lease in _NAMES:
            highest = 0
            for event in await self.judge.space.events.read(stream=lease, limit=100_000):
                name, token = event.data
                names.append(name)
                assert token >= highest, f"{name} of holder {token} of {lease} came after one of {highest}"
                highest = token
            stored = await self.judge.space.documents.get(f"guarded/{lease}", 0)
            assert stored == highest, (
                f"{lease} was last written by {stored}, and its events end with {highest}"
            )
        self.compare(names, "the fenced writes")
