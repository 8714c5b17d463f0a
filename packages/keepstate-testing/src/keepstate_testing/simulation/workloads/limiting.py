"""Transactions that look at a range before they add to it: no phantom may let it grow past its limit."""

from __future__ import annotations

from keepstate.engine.kernel import layout
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import MAIN, Actor

_MOST = 3
_PREFIX = "slot/"


class Limiting(Workload):
    """Each takes a slot of its own if fewer than three are taken, or frees one."""

    async def act(self, actor: Actor) -> None:
        """Take a slot, or frees one."""
        name = self.world.name(_PREFIX)
        frees = self.world.random.random() < 0.4

        async def work() -> None:
            async with actor.space.transaction() as tx:
                taken = [key async for key in tx.documents.keys(_PREFIX + "*")]
                assert len(taken) <= _MOST, f"a transaction found {taken}, more than {_MOST}"
                if frees and taken:
                    await tx.documents.delete(taken[0])
                elif len(taken) < _MOST:
                    await tx.documents.put(name, actor.name)

        await self.world.fate(actor, work, f"frees a slot for {name}" if frees else f"takes {name}")

    async def verify(self) -> None:
        """Replay how slots were taken and freed."""
        taken: set[bytes] = set()
        prefix = layout.name_prefix(layout.DOCUMENTS, _PREFIX)
        for change in self.world.oracle.model(MAIN).log:
            if not change.key.startswith(prefix):
                continue
            if change.deleted:
                taken.discard(change.key)
            else:
                taken.add(change.key)
            assert len(taken) <= _MOST, (
                f"at revision {change.revision} {len(taken)} slots of {_MOST} are taken"
            )
