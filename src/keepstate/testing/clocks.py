"""Clocks that a test advances, with randomness that a seed decides."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from math import inf

from keepstate.errors import InvalidError


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


class StoreClock:
    """The clock of a store for tests: stored entries age only if the test says so.

    Calls that wait, such as `claim(wait_s=5)`, wait in real time, so none waits for ever. `advance` and `set`
    let them look again at once.

    Args:
        start: The initial time, aware. Default: 1 January 2026, 00:00 UTC.
        seed: The seed of its randomness.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, seed: int = 0) -> None:
        self._manual = ManualClock(_milliseconds(start), seed=seed)
        self._listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<StoreClock at {self.now().isoformat()}>"

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def advance(self, seconds: float) -> None:
        """Let seconds pass.

        Raises:
            InvalidError: The number is negative or not finite. `set` may go back.
        """
        if not 0 <= seconds < inf:
            raise InvalidError(f"`seconds` is {seconds!r}; give a number from 0, or use set() to go back")
        self._manual.advance(round(seconds * 1000))
        self._tell()

    def set(self, moment: datetime) -> None:
        """Set the time, forward or back, as an administrator does.

        Raises:
            InvalidError: The moment has no time zone.
        """
        passed_ms = _milliseconds(moment) - self.now_ms()
        if passed_ms >= 0:
            self._manual.advance(passed_ms)
        else:
            self._manual.turn_back(-passed_ms)
        self._tell()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call a function after each change of the time."""
        self._listeners.append(listener)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        return self._manual.now_ms()

    def monotonic_s(self) -> float:
        """Return real seconds plus the seconds that the test let pass."""
        return time.monotonic() + self._manual.monotonic_s()

    def awake_or_asleep_s(self) -> float:
        """Return real seconds plus the seconds that the test let pass."""
        return self.monotonic_s()

    def touched_ms(self, descriptor: int) -> int:
        """Return the time."""
        return self._manual.touched_ms(descriptor)

    def random_bytes(self, size: int) -> bytes:
        """Return bytes that depend on the seed."""
        return self._manual.random_bytes(size)

    def spread(self) -> float:
        """Return a number in [0, 1) that depends on the seed."""
        return self._manual.spread()


def _milliseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise InvalidError(f"{moment!r} has no time zone; give an aware datetime, such as datetime.now(UTC)")
    return round(moment.timestamp() * 1000)
