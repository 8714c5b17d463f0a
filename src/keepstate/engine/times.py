"""Lengths of time as callers give them, in seconds, and as stores take them, in milliseconds."""

from __future__ import annotations

from math import ceil

from keepstate.errors import InvalidError
from keepstate.values import limits

_LONGEST_S = limits.TTL_MS // 1000


def milliseconds(name: str, seconds: float) -> int:
    """Returns a positive length of time, rounded up.

    Raises:
        InvalidError: It is not positive, or no number.
    """
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_S:
        raise InvalidError(
            f"`{name}` is {seconds!r}; it must be more than 0 seconds and at most {_LONGEST_S}"
        )
    return ceil(seconds * 1000)


def delay_ms(name: str, seconds: float) -> int:
    """Returns a length of time that may be 0.

    Raises:
        InvalidError: It is negative, or no number.
    """
    admit_wait(name, seconds)
    return ceil(seconds * 1000)


def admit_wait(name: str, seconds: float) -> None:
    """Raises `InvalidError` unless it is a length of time that may be 0."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST_S:
        raise InvalidError(f"`{name}` is {seconds!r}; it must be 0 seconds or more and at most {_LONGEST_S}")
