"""Time as callers give it, in seconds and datetimes, and as stores take it, in milliseconds.

Moments are counted in whole numbers: a float has no room for each millisecond there is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

from keepstate.errors import InvalidError
from keepstate.values import limits

_LONGEST_S = limits.TTL_MS // 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_duration_ms(name: str, seconds: float) -> int:
    """Return a positive length of time, rounded up.

    Raises:
        InvalidError: It is not positive, or no number.
    """
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_S:
        raise InvalidError(
            f"`{name}` is {seconds!r}; it must be more than 0 seconds and at most {_LONGEST_S}"
        )
    return ceil(seconds * 1000)


def check_delay_ms(name: str, seconds: float) -> int:
    """Return a length of time that may be 0.

    Raises:
        InvalidError: It is negative, or no number.
    """
    check_wait(name, seconds)
    return ceil(seconds * 1000)


def check_wait(name: str, seconds: float) -> None:
    """Raise `InvalidError` unless it is a length of time that may be 0."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST_S:
        raise InvalidError(f"`{name}` is {seconds!r}; it must be 0 seconds or more and at most {_LONGEST_S}")


def to_milliseconds(moment: datetime) -> int:
    """Return the last whole millisecond since 1970 that is not after an aware moment."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_datetime(at_ms: int) -> datetime:
    """Return milliseconds since 1970 as an aware moment."""
    return _EPOCH + timedelta(milliseconds=at_ms)
