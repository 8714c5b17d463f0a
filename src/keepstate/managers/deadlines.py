"""Conversion of times by callers' clocks to times by the store's clock.

The clocks of processes differ. A caller's time is converted by its distance from the caller's present,
which is added to the store's present.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from keepstate._clock import Clock
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.errors import InvalidError

_BEGINNING: Final = datetime.fromtimestamp(0, UTC)


def caller_now(clock: Clock, *, like: datetime | None = None) -> datetime:
    """Return the caller's present: aware and UTC, or naive local time if `like` is naive."""
    now_s = clock.now_ms() / 1000
    if like is None or like.tzinfo is not None:
        return datetime.fromtimestamp(now_s, UTC)
    return datetime.fromtimestamp(now_s)


def to_store_ms(moment: datetime, clock: Clock, now: datetime) -> int:
    """Convert a caller's time to milliseconds of the store's clock.

    Args:
        moment: Time by the caller's clock; naive is local time.
        clock: The caller's clock.
        now: The store's present.
    """
    ahead = moment - caller_now(clock, like=moment)
    return max(0, to_milliseconds(now) + round(ahead.total_seconds() * 1000))


def check_age(name: str, age: timedelta) -> None:
    """Raise `InvalidError` for a value that is not a timedelta of 0 or more."""
    require_instance(name, age, timedelta)
    if age < timedelta(0):
        raise InvalidError(f"`{name}` is {age!r}. Pass a timedelta of 0 or more.")


def subtract_age(age: timedelta, now: datetime) -> datetime:
    """Return `now` less an age, at the earliest 1970."""
    return _BEGINNING if age > now - _BEGINNING else now - age


def backoff_s(attempts: int, factor: float, *, first_s: float, longest_s: float) -> float:
    """Return the delay after some attempts: first, first * factor, first * factor², … up to the longest.

    Raises:
        InvalidError: The factor is below 1, or a time is not positive.
    """
    if factor < 1 or first_s <= 0 or longest_s < first_s:
        raise InvalidError(
            f"a backoff of {first_s!r} s, times {factor!r}, up to {longest_s!r} s does not grow. "
            "Pass a factor of 1 or more, and times above 0."
        )
    try:
        return min(longest_s, first_s * factor ** max(0, attempts - 1))
    except OverflowError:
        return longest_s
