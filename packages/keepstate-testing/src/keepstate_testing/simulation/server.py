"""The far end of every line: a memory store with a clock of its own, whose answers are all judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keepstate._runner import TaskRunner
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Changes, Outcome, Page, Reading
from keepstate_testing.simulation.clocks import ProcessClock
from keepstate_testing.simulation.network import Network
from keepstate_testing.simulation.oracle import Oracle


class Server(MemoryStore):
    """Applies and answers calls that arrive, each at one moment.

    Args:
        clock: The server's.
        network: Keeps the trace.

    Attributes:
        oracle: Has the right answers.
        applied_at_s: The virtual time of each revision of a space.
    """

    def __init__(self, clock: ProcessClock, network: Network) -> None:
        super().__init__(runner=TaskRunner(), clock=clock, heap=MemoryHeap())
        self._time, self._network = clock, network
        self.oracle = Oracle(self._heap, clock.wall)
        self.applied_at_s: dict[tuple[str, int], float] = {}
        self._timed: dict[str, int] = {}
        self._listening: dict[Callable[[str], None], None] = {}

    # ---- batches

    def deliver(self, who: str, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply calls that have arrived."""
        outcomes = self._apply_now(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            self._network.note(f"{who} {batch.space} {len(batch.writes)} writes: {outcome!r}")
        self.oracle.judge(batches, outcomes)
        for batch in batches:
            self._follow(batch.space)
        return outcomes

    def floors(self, batches: Sequence[Batch]) -> list[int]:
        """Return where the logs of the batches' spaces begin."""
        return [self._heap.state_of(batch.space).floor for batch in batches]

    def _follow(self, space: str) -> None:
        """Record the present content of a space, including the store's own removals."""
        self.oracle.follow(space)
        timed, revision = self._timed.get(space, 0), self._heap.state_of(space).revision
        for new in range(timed + 1, revision + 1):
            self.applied_at_s[space, new] = self._time.monotonic_s()
        self._timed[space] = revision

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Drop a space; return whether it was there."""
        was_there = await self._drop(space, at)
        if was_there or at is None:
            self.oracle.drop(space)
        self._follow(space)
        return was_there

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove expired entries."""
        removed = await self._sweep(prefix, limit)
        for space in self._heap.spaces:
            self._follow(space)
        return removed

    # ---- questions

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Read entries."""
        reading = await super().read(space, keys, at_ms=at_ms)
        self.oracle.read(space, keys, at_ms, reading)
        return reading

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Scan upwards."""
        page = await self._scan(space, prefix, after, limit, reverse, at_ms)
        self.oracle.scan(space, prefix, after, limit, at_ms, page)
        return page

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Notify listeners of changes."""
        changes = await self._changes(space, after, limit)
        self.oracle.changes(space, after, changes)
        return changes

    # ---- hints

    def tell_of_changes(self, listener: Callable[[str], None]) -> None:
        """Let a line hear the name of each space that changes."""
        self._listening[listener] = None

    def tell_no_more(self, listener: Callable[[str], None]) -> None:
        """Let it hear no more."""
        self._listening.pop(listener, None)

    def notify(self, space: str) -> None:
        """Notify all lines."""
        for listener in list(self._listening):
            listener(space)
