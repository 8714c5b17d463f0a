"""The clocks of a world: one at the store, one in each process, each wrong in its own way."""

from __future__ import annotations

from random import Random

from keepstate_testing.simulation.loop import VirtualLoop

BEGIN_MS = 1_700_000_000_000
"""When every world begins."""


class WallClock:
    """A clock on a wall of the world: it runs with virtual time, and can be set."""

    def __init__(self, loop: VirtualLoop, *, offset_ms: int = 0) -> None:
        self._loop, self._offset_ms = loop, offset_ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970, as it shows them."""
        return BEGIN_MS + int(self._loop.time() * 1000) + self._offset_ms

    def jump(self, ms: int) -> None:
        """Set it forward, or back."""
        self._offset_ms += ms


class ProcessClock:
    """Time and randomness of one process; implements `keepstate._clock.Clock`.

    Args:
        wall: What its calendar time is read from.
        loop: What its running time is read from.
        random: Its dice.
    """

    def __init__(self, wall: WallClock, loop: VirtualLoop, random: Random) -> None:
        self.wall, self._loop, self._random = wall, loop, random

    def now_ms(self) -> int:
        """Return milliseconds since 1970; may jump."""
        return self.wall.now_ms()

    def monotonic_s(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    def awake_or_asleep_s(self) -> float:
        """Return virtual seconds."""
        return self._loop.time()

    def touched_ms(self, descriptor: int) -> int:
        """Return milliseconds since 1970, as its own clock shows them."""
        return self.wall.now_ms()

    def random_bytes(self, size: int) -> bytes:
        """Return bytes that the seed decides."""
        return self._random.randbytes(size)

    def spread(self) -> float:
        """Return a number in [0, 1) that the seed decides."""
        return self._random.random()
