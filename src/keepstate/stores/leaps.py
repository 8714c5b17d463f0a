"""Refuses a leap of a space's time that no second clock confirms.

A space's time never goes back. One write by a process whose clock is wrong by years would therefore end no
lease, delay or time to live of the space for years. So a clock that is over an hour ahead of the stored time
must agree with a second one. Long pauses and resumed machines pass; one wrong process does not.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Final

from keepstate._clock import Clock
from keepstate.errors import ClockError

LEAP_MS: Final = 3_600_000
"""How far ahead of the stored time a clock needs no second one, and how far two clocks may differ."""

_AGREED_FOR_MS: Final = 60_000
_log = logging.getLogger("keepstate.stores")


def clock_error(
    space: str, clock_ms: int, second_ms: int, *, first: str, second: str, url: str | None = None
) -> ClockError:
    """Returns the error that names two clocks and their times."""
    return ClockError(
        f"the time of space {space!r} was not moved on: {first} says {_shown(clock_ms)}, and {second} says "
        f"{_shown(second_ms)}; nothing was written: set the clock that is wrong, and try again",
        url=url,
        space=space,
        clock_ms=clock_ms,
        second_ms=second_ms,
    )


def _shown(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{at_ms} ms since 1970"


class SecondClock:
    """The second clock of an embedded store: the time that the file system gives to a file of its own.

    It is asked at most once a minute, and only for leaps.

    Args:
        descriptor: The opened file.
        path: Names it in errors.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor, self._path = descriptor, path
        self._agreed_ms = -_AGREED_FOR_MS - 1

    def confirm(self, clock: Clock, space: str, clock_ms: int, stored_ms: int) -> None:
        """Returns unless the clock is a leap ahead of the stored time, and the file's time is another.

        Raises:
            ClockError: The two clocks differ by more than an hour.
        """
        if clock_ms - stored_ms <= LEAP_MS or abs(clock_ms - self._agreed_ms) <= _AGREED_FOR_MS:
            return
        try:
            second_ms = clock.touched_ms(self._descriptor)
        except OSError as error:  # there is no second clock to ask
            _log.warning("%s cannot be touched, so no second clock confirms the time: %s", self._path, error)
            second_ms = clock_ms
        if abs(clock_ms - second_ms) > LEAP_MS:
            first, second = "the clock of this process", f"the file system, for {self._path},"
            raise clock_error(space, clock_ms, second_ms, first=first, second=second)
        self._agreed_ms = clock_ms
