"""Moments that callers name by their own clocks, as moments of the store.

Clocks of processes differ. What a caller says is taken for how far it is from his present, and counted from
the store's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from keepstate._clock import Clock
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.times import to_milliseconds
from keepstate.errors import InvalidError

_BEGINNING: Final = datetime.fromtimestamp(0, UTC)


def present(clock: Clock, *, like: datetime | None = None) -> datetime:
    """Return the caller's present: aware, UTC, or naive in local time where the other moment is naive."""
    now_s = clock.now_ms() / 1000
    if like is None or like.tzinfo is not None:
        return datetime.fromtimestamp(now_s, UTC)
    return datetime.fromtimestamp(now_s)


def store_ms(moment: datetime, clock: Clock, now: datetime) -> int:
    """Return a caller's moment as milliseconds of the store.

    Args:
        moment: By the caller's clock; naive is local time.
        clock: The caller's.
        now: The store's present.
    """
    ahead = moment - present(clock, like=moment)
    return max(0, to_milliseconds(now) + round(ahead.total_seconds() * 1000))


def admit_age(name: str, age: timedelta) -> None:
    """Raise `InvalidError` for what is no span of time that has passed."""
    require_instance(name, age, timedelta)
    if age < timedelta(0):
        raise InvalidError(f"`{name}` is {age!r}; give a timedelta of 0 or more")


def ago(age: timedelta, now: datetime) -> datetime:
    """Return the moment that is so long ago, and 1970 for all before it."""
    return _BEGINNING if age > now - _BEGINNING else now - age


def backoff_s(attempts: int, factor: float, *, first_s: float, longest_s: float) -> float:
    """Return how long to wait after so many attempts: first, first * factor, first * factor², … the longest.

    Raises:
        InvalidError: The factor is below 1, or a time is not positive.
    """
    if factor < 1 or first_s <= 0 or longest_s < first_s:
        raise InvalidError(
            f"a backoff of {first_s!r} s, times {factor!r}, up to {longest_s!r} s does not grow; "
            "give a factor of 1 or more, and times above 0"
        )
    try:
        return min(longest_s, first_s * factor ** max(0, attempts - 1))
    except OverflowError:
        return longest_s
