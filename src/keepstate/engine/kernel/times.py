"""Conversion between seconds and datetimes, which callers use, and milliseconds, which stores use.

Datetimes are converted in whole numbers, because a float cannot represent every millisecond.
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
    """Return a positive duration in milliseconds, rounded up.

    Raises:
        InvalidError: It is not a positive number, or it is too large.
    """
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_S:
        raise InvalidError(
            f"`{name}` is {seconds!r}; it must be more than 0 seconds and at most {_LONGEST_S}"
        )
    return ceil(seconds * 1000)


def check_delay_ms(name: str, seconds: float) -> int:
    """Return a duration of 0 or more in milliseconds, rounded up.

    Raises:
        InvalidError: It is not a number of 0 or more, or it is too large.
    """
    check_wait(name, seconds)
    return ceil(seconds * 1000)


def check_wait(name: str, seconds: float) -> None:
    """Raise `InvalidError` unless this is a duration of 0 seconds or more."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST_S:
        raise InvalidError(f"`{name}` is {seconds!r}; it must be 0 seconds or more and at most {_LONGEST_S}")


def to_milliseconds(moment: datetime) -> int:
    """Convert an aware datetime to milliseconds since 1970, rounded down."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def to_datetime(at_ms: int) -> datetime:
    """Convert milliseconds since 1970 to an aware datetime."""
    return _EPOCH + timedelta(milliseconds=at_ms)
