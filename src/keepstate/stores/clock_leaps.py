"""Rejects leaps of a space's time that no second clock confirms, and reports spaces ahead of both clocks.

A space's time never goes back. One write by a process whose clock is years ahead would therefore stop every
lease, delay and time to live of the space from ending for years. So a clock needs a second one: on embedded
stores before it advances a space's time at all, on servers before the time leaps by over an hour. Long
pauses and resumed machines pass; one wrong process does not, in one leap or in small steps. If both clocks
were wrong together, the space is ahead of them once they are right again, and is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from keepstate._clock import Clock
from keepstate.errors import ClockError, StorageError
from keepstate.stores.protocol import Leap

LEAP_MS: Final = 3_600_000
"""The lead over the stored time that needs no second clock, and the largest difference of two clocks."""

_AGREED_FOR_MS: Final = 60_000
_REPORT_EVERY_S: Final = 60.0
_REPORTED_SPACES: Final = 1_000
_log = logging.getLogger("keepstate.stores")


def clock_error(
    space: str, clock_ms: int, second_ms: int, *, first: str, second: str, url: str | None = None
) -> ClockError:
    """Return the error for two clocks that disagree, with their times."""
    return ClockError(
        f"The time of space {space!r} was not advanced, and nothing was written: {first} says "
        f"{format_time(clock_ms)}, and {second} says {format_time(second_ms)}. Set the wrong clock, and try "
        f"again.",
        url=url,
        space=space,
        clock_ms=clock_ms,
        second_ms=second_ms,
    )


def format_time(at_ms: int) -> str:
    """Format a time in milliseconds since 1970 for people."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{at_ms} ms since 1970"


def detect_leap(revision: int, stored_ms: int, now_ms: int) -> Leap | None:
    """Return the leap made by a write as `revision`, or None if time advances by an hour or less."""
    return Leap(revision, stored_ms, now_ms) if now_ms - stored_ms > LEAP_MS else None


def check_server_clock(space: str, now_ms: int, stored_ms: int, clock: Clock, *, url: str) -> None:
    """Require that a server's clock which is a leap ahead of the stored time agrees with this process's.

    A space without a stored time passes.

    Raises:
        ClockError: The clocks of the server and of this process differ by more than an hour.
    """
    if not stored_ms or now_ms - stored_ms <= LEAP_MS:
        return
    second_ms = clock.now_ms()
    if abs(now_ms - second_ms) > LEAP_MS:
        clocks = {"first": "the server", "second": "the clock of this process"}
        raise clock_error(space, now_ms, second_ms, **clocks, url=url)


class AheadReport:
    """Logs a warning for each space whose time is over an hour ahead of both clocks, at most once a minute.

    Args:
        url: Names the store.
        clock: The first clock.
        second_ms: Returns the time of the second clock.
    """

    def __init__(self, url: str, clock: Clock, second_ms: Callable[[str], Awaitable[int]]) -> None:
        self._url, self._clock, self._second_ms = url, clock, second_ms
        self._asked_s: dict[str, float] = {}

    def is_due(self, space: str, now_ms: int) -> bool:
        """Return whether a space is ahead of the first clock and the second was not read within a minute."""
        if now_ms - self._clock.now_ms() <= LEAP_MS:
            return False
        asked_s = self._asked_s.get(space)
        return asked_s is None or self._clock.monotonic_s() - asked_s >= _REPORT_EVERY_S

    async def report(self, space: str, now_ms: int) -> None:
        """Log a warning if the space is ahead of the second clock too."""
        at_s = self._clock.monotonic_s()
        if len(self._asked_s) >= _REPORTED_SPACES:
            recent = {name: s for name, s in self._asked_s.items() if at_s - s < _REPORT_EVERY_S}
            self._asked_s = recent if len(recent) < _REPORTED_SPACES else {}
        self._asked_s[space] = at_s
        try:
            latest_ms = max(self._clock.now_ms(), await self._second_ms(space))
        except StorageError:  # the caller has its answer already; the check runs again after a minute
            return
        if now_ms - latest_ms > LEAP_MS:
            _log.warning(
                "The time of space %r in %s is %s, and both clocks say %s. Leases, delays and times to "
                "live there do not end. `keepstate doctor` lists such spaces, and `keepstate repair` sets "
                "them back.",
                space, self._url, format_time(now_ms), format_time(latest_ms),
            )  # fmt: skip


class SecondClock:
    """The second clock of an embedded store: the modification time that the file system gives to a file.

    It is read at most once a minute, and only by a clock that is ahead of the stored time.

    Args:
        descriptor: The open file.
        path: The file's name in errors.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self._path = descriptor, path
        self._agreed_ms = -_AGREED_FOR_MS - 1
        self._has_warned = False

    def confirm(self, clock: Clock, space: str, clock_ms: int, stored_ms: int) -> None:
        """Require that a clock which is ahead of the stored time agrees with the file system's time.

        The lead over the stored time does not matter: steps of less than an hour, each stored, add up.

        Raises:
            ClockError: The clock is over an hour ahead of the file system's.
        """
        if clock_ms <= stored_ms or abs(clock_ms - self._agreed_ms) <= _AGREED_FOR_MS:
            return
        second_ms = self.read_ms(clock, clock_ms)
        if clock_ms - second_ms > LEAP_MS:
            first, second = "the clock of this process", f"the file system, for {self._path},"
            raise clock_error(space, clock_ms, second_ms, first=first, second=second)
        self._agreed_ms = clock_ms

    def read_ms(self, clock: Clock, clock_ms: int) -> int:
        """Touch the file and return its time, or `clock_ms` if it cannot be touched."""
        try:
            return clock.touched_ms(self._descriptor)
        except OSError as error:  # there is no second clock
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s cannot be touched, so no time is confirmed by a second clock: %s", self._path, error
                )
            return clock_ms
