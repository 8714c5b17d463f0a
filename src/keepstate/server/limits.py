"""Limits of a server: sizes, times and rates, and the token bucket that a rate is kept with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from keepstate._clock import Clock
from keepstate.errors import InvalidError

LONGEST_WAIT_S: Final = 20.0
"""The longest long poll; below the deadline of a request and the timeouts of common proxies."""
_BURST_S: Final = 2.0
"""Seconds of a rate that may come at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one server process.

    Attributes:
        body_bytes: The size of a request's body.
        body_s: Seconds that a body may take to arrive.
        request_s: Seconds that a request may take, without streams. After that it is cancelled.
        rate: Requests a second of one key, unless the key has a rate of its own; None for any number.
        streams: Open streams of one key.
        stall_s: Seconds for which a stream waits for its reader to take anything.
        event_bytes: The size of an event of a stream. A larger one comes without its value.
        comment_s: Seconds of silence after which a stream sends a comment.
        deliver_s: Seconds within which the server delivers to the index of `find` what a killed process has
            left; more in a store of very many spaces, so that it costs at most 1 % of the time.
    """

    body_bytes: int = 9 << 20
    body_s: float = 30
    request_s: float = 30
    rate: float | None = None
    streams: int = 1_000
    stall_s: float = 10
    event_bytes: int = 256 << 10
    comment_s: float = 15
    deliver_s: float = 10

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "rate":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 40:
                raise InvalidError(f"`{field.name}` is {value!r}; give a positive number")


class Bucket:
    """A token bucket: it refills at a rate, and holds two seconds of it, but at least one token."""

    __slots__ = ("_at_s", "_clock", "_left", "_most", "_rate")

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock, self._rate, self._most = clock, rate, max(1.0, rate * _BURST_S)
        self._left, self._at_s = self._most, clock.monotonic_s()

    def take(self) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now_s = self._clock.monotonic_s()
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0
