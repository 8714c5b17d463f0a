"""The store as a process of the world has it: `StoreBase` and its retries, over a line that fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import ClassVar

from keepstate._runner import TaskRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Changes, Outcome, Page, Reading
from keepstate.testing.simulation.clocks import ProcessClock, WallClock
from keepstate.testing.simulation.loop import VirtualLoop
from keepstate.testing.simulation.network import Network
from keepstate.testing.simulation.oracle import Oracle
from keepstate.testing.simulation.witness import Witness

_RETRY_FOR_S = 3.0
"""Shorter than a real store's, so that some worlds see callers who were left in doubt."""


class Ground:
    """What all processes of a world share: the spaces, the line to them, and who watches.

    Attributes:
        loop: Virtual time.
        wall: The store's clock.
        heap: The spaces.
        network: The line to them.
        oracle: Knows what the store should answer.
        witness: Knows what it told to whom.
        applied_at_s: When each revision of a space came about.
    """

    def __init__(self, loop: VirtualLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.wall, self.heap = WallClock(loop), MemoryHeap()
        self.oracle = Oracle(self.heap, self.wall)
        self.witness = Witness(self.oracle)
        self.applied_at_s: dict[tuple[str, int], float] = {}
        self._timed: dict[str, int] = {}

    def follow(self, space: str) -> None:
        """Takes note of what the store has just made of a space, its own removals too."""
        self.oracle.follow(space)
        timed, revision = self._timed.get(space, 0), self.heap.seen(space).revision
        for new in range(timed + 1, revision + 1):
            self.applied_at_s[space, new] = self.loop.time()
        self._timed[space] = revision


class SimulatedStore(MemoryStore):
    """One process's handle.

    Args:
        name: The process, in the trace.
        ground: The world.
        random: The process's dice.
    """

    retries: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    def __init__(self, name: str, ground: Ground, random: Random) -> None:
        clock = ProcessClock(ground.wall, ground.loop, random)
        super().__init__(runner=TaskRunner(), clock=clock, heap=ground.heap)
        self.url, self._retry_for_s = f"simulated://{name}", _RETRY_FOR_S
        self._process, self._ground = name, ground
        self._changed: dict[str, None] = {}

    # ---- the client's side

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies through the line, and tells the witness of the answers."""
        witness = self._ground.witness
        told = [witness.highest_told(batch.space) for batch in batches]
        outcomes = await StoreBase.apply(self, batches)
        witness.tell_outcomes(batches, outcomes, told)
        return outcomes

    async def apply_admitted(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Applies through the line."""
        return await StoreBase.apply_admitted(self, batches, sizes)

    async def read(self, space: str, keys: Sequence[bytes]) -> Reading:
        """Reads through the line, and tells the witness of the answer."""
        told = self._ground.witness.highest_told(space)
        reading = await StoreBase.read(self, space, keys)
        self._ground.witness.tell(space, reading.revision, told)
        return reading

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
    ) -> Page:
        """Scans through the line, and tells the witness of the answer."""
        told = self._ground.witness.highest_told(space)
        page = await StoreBase.scan(self, space, prefix, after=after, limit=limit, reverse=reverse)
        self._ground.witness.tell(space, page.revision, told)
        return page

    # ---- the line

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await self._ground.network.apply(self._process, self, batches)

    async def _read(self, space: str, keys: Sequence[bytes]) -> Reading:
        async def call() -> Reading:
            reading = await MemoryStore.read(self, space, keys)
            self._ground.oracle.read(space, keys, reading)
            return reading

        return await self._ground.network.ask(self._process, call)

    async def _scan(  # a backend's methods take no keywords
        self,
        space: str,
        prefix: bytes,
        after: bytes | None,
        limit: int,
        reverse: bool,  # noqa: FBT001
    ) -> Page:
        async def call() -> Page:
            page = await MemoryStore._scan(self, space, prefix, after, limit, reverse)
            self._ground.oracle.scan(space, prefix, after, limit, page)
            return page

        return await self._ground.network.ask(self._process, call)

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        async def call() -> Changes:
            changes = await MemoryStore._changes(self, space, after, limit)
            self._ground.oracle.changes(space, after, changes)
            return changes

        return await self._ground.network.ask(self._process, call)

    async def _drop(self, space: str) -> None:
        async def call() -> None:
            await MemoryStore._drop(self, space)
            self._ground.oracle.drop(space)
            self._ground.follow(space)

        await self._ground.network.order(self._process, call)

    async def _sweep(self, limit: int) -> int:
        async def call() -> int:
            removed = await MemoryStore._sweep(self, limit)
            for space in self._ground.heap.spaces:
                self._ground.follow(space)
            return removed

        return await self._ground.network.ask(self._process, call)

    # ---- the store's side

    def deliver(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Applies what has arrived, at one moment, and has it judged."""
        ground = self._ground
        outcomes = self._apply_now(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            ground.network.note(f"{self._process} {batch.space} {len(batch.writes)} writes: {outcome!r}")
        ground.oracle.judge(batches, outcomes)
        for batch in batches:
            ground.follow(batch.space)
        return outcomes

    def floors(self, batches: Sequence[Batch]) -> list[int]:
        """Returns where the logs of the batches' spaces begin."""
        return [self._ground.heap.seen(batch.space).floor for batch in batches]

    def may_repeat(self, batches: Sequence[Batch], since: Sequence[int]) -> bool:
        """Whether no space of the batches was dropped since."""
        return self.floors(batches) == list(since)

    # ---- hints

    def hear(self, space: str) -> None:
        """Sends a hint over the line."""
        self._ground.network.hint(self._told, space)

    def _told(self, space: str) -> None:
        self._changed[space] = None
        self._nudge.set()

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        await self._nudge.wait(timeout_s)
        changed, self._changed = list(self._changed), {}
        return changed
