"""The only reader of time and randomness, so that tests can control both."""

from __future__ import annotations

import os
import random
import time
from typing import Protocol

_SUSPEND_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Time and randomness."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds that never go back; stands still while the machine sleeps."""
        ...

    def awake_or_asleep_s(self) -> float:
        """Return seconds that never go back and run on while the machine sleeps."""
        ...

    def touched_ms(self, descriptor: int) -> int:
        """Touch an open file, and return the time that the file system gave it, in ms since 1970."""
        ...

    def random_bytes(self, size: int) -> bytes:
        """Return bytes for names and nonces."""
        ...

    def spread(self) -> float:
        """Return a number in [0, 1) that spreads retries."""
        ...


class SystemClock:
    """The machine's clock and the operating system's randomness."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds that never go back; stands still while the machine sleeps."""
        return time.monotonic()

    def awake_or_asleep_s(self) -> float:
        """Return seconds that never go back and run on while the machine sleeps."""
        return time.clock_gettime(_SUSPEND_CLOCK)

    def touched_ms(self, descriptor: int) -> int:
        """Touch an open file, and return the time that the file system gave it, in ms since 1970."""
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns // 1_000_000

    def random_bytes(self, size: int) -> bytes:
        """Return bytes for names and nonces."""
        return os.urandom(size)

    def spread(self) -> float:
        """Return a number in [0, 1) that spreads retries."""
        return random.random()


SYSTEM_CLOCK = SystemClock()
