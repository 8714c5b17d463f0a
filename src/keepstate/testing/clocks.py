"""A clock that stands still until a test turns it, with dice that fall the same way each time."""

from __future__ import annotations

import random
import threading


class ManualClock:
    """Time that only `advance` and `turn_back` move; implements `keepstate._clock.Clock`.

    Args:
        now_ms: The time it starts at.
        seed: Where its randomness starts.

    Attributes:
        second_ms: The time that files get when they are touched; None for the clock's own.
        touches: How often a file was touched.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000, *, seed: int = 0) -> None:
        self._now_ms = now_ms
        self._running_s = 0.0
        self.second_ms: int | None = None
        self.touches = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def advance(self, ms: int) -> None:
        """Let time pass."""
        with self._lock:
            self._now_ms += ms
            self._running_s += ms / 1000

    def turn_back(self, ms: int) -> None:
        """Set the wall clock back, as an administrator or NTP does; what only runs forward stays."""
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
        """Return bytes that the seed decides."""
        with self._lock:
            return self._random.randbytes(size)

    def spread(self) -> float:
        """Return a number in [0, 1) that the seed decides."""
        with self._lock:
            return self._random.random()
