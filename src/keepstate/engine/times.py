"""Lengths of time as callers give them, in seconds, and as stores take them, in milliseconds."""

from __future__ import annotations

from math import ceil

from keepstate.errors import InvalidError
from keepstate.values import limits


def milliseconds(name: str, seconds: float) -> int:
    """Returns a positive length of time, rounded up.

    Raises:
        InvalidError: It is not positive, or no number.
    """
    if type(seconds) not in (int, float) or not 0 < seconds <= limits.TTL_MS / 1000:
        raise InvalidError(
            f"{name} is {seconds!r}; it must be more than 0 seconds and at most {limits.TTL_MS // 1000}"
        )
    return ceil(seconds * 1000)


def delay_ms(name: str, seconds: float) -> int:
    """Returns a length of time that may be 0.

    Raises:
        InvalidError: It is negative, or no number.
    """
    return 0 if seconds == 0 else milliseconds(name, seconds)
