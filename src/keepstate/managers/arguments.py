"""Checks of callers' arguments, and conversion of times by callers' clocks to times by the store's clock.

The clocks of processes differ. A caller's time is converted by its distance from the caller's present,
which is added to the store's present.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from keepstate._clock import Clock
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.errors import InvalidError
from keepstate.values import limits

_BEGINNING: Final = datetime.fromtimestamp(0, UTC)


def require_integers(**given: object) -> None:
    """Raise `InvalidError` unless all are ints."""
    for name, number in given.items():
        if type(number) is not int:
            raise InvalidError(f"`{name}` is {number!r}. Pass an int.")


def require_counts(of: object, *names: str) -> None:
    """Raise `InvalidError` unless these fields are whole numbers of 0 or more, or None."""
    for name in names:
        count = getattr(of, name)
        if count is not None and (type(count) is not int or count < 0):
            raise InvalidError(f"`{name}` is {count!r}. Pass a whole number, 0 or more.")


def check_interval(name: str, seconds: Any) -> float:
    """Check a number of seconds, which may be 0, and return it as a float."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= limits.TTL_MS / 1000:
        raise InvalidError(f"`{name}` is {seconds!r}. Pass 0 seconds or more.")
    return float(seconds)


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
