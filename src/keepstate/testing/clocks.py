"""A clock that a test advances, with randomness that a seed decides."""

from __future__ import annotations

import random
import threading


class ManualClock:
    """A `keepstate._clock.Clock` whose time changes only by `advance` and `turn_back`.

    Args:
        now_ms: The initial time.
        seed: The seed of its randomness.

    Attributes:
        second_ms: The time of files that are touched; None for the clock's own time.
        touches: The number of times that a file was touched.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, *, seed: int = 0) -> None:
        self._now_ms = now_ms
        self._running_s = 0.0
        self.second_ms: int | None = None
        self.touches = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def advance(self, ms: int) -> None:
        """Advance the time."""
        with self._lock:
            self._now_ms += ms
            self._running_s += ms / 1000

    def turn_back(self, ms: int) -> None:
        """Set the wall clock back, as an administrator or NTP does; the monotonic clock stays."""
        with self._lock:
            self._now_ms -= ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC; may jump."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return seconds that never go back."""
        return self._running_s

    def awake_or_asleep_s(self) -> float:
        """Return seconds that never go back."""
        return self._running_s

    def touched_ms(self, descriptor: int) -> int:
        """Return the time of the second clock."""
        self.touches += 1
        return self._now_ms if self.second_ms is None else self.second_ms

    def random_bytes(self, size: int) -> bytes:
        """Return bytes that depend on the seed."""
        with self._lock:
            return self._random.randbytes(size)

    def spread(self) -> float:
        """Return a number in [0, 1) that depends on the seed."""
        with self._lock:
            return self._random.random()
