"""Cron expressions: five fields that choose minutes on a wall clock without a zone.

The fields are those of Vixie's cron: minute, hour, day of the month, month and day of the week, with lists,
ranges, steps and names. If neither day field begins with `*`, a day that matches one of them is chosen, as in
every cron since 1987; otherwise it has to match both. `L`, `FRI#2` and `FRIL` are the extensions of Quartz.
Not a calendar of a zone: `timetable` maps wall times to instants.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.stored import shorten
from keepstate.errors import InvalidError

_LONGEST: Final = 512
_YEARS: Final = 50
"""Years after which no day can match any more. A date on a weekday comes back within 40, in 2096 to 2136."""
_LAST: Final = -1
_SUNDAY: Final = 7
_DAY: Final = timedelta(days=1)

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: Sequence[str] = ()
    """Names of the values from `least`."""


_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_DAY_OF_MONTH: Final = _Field("day of the month", 1, 31)
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_MONTH: Final = _Field("month", 1, 12, _MONTHS)
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY_OF_WEEK: Final = _Field("day of the week", 0, _SUNDAY, _WEEKDAYS)


class Cron:
    """A parsed expression.

    Args:
        text: Five fields, or one of @yearly, @monthly, @weekly, @daily and @hourly.

    Raises:
        InvalidError: A field is wrong, or no day ever matches, as with 30 February.
    """

    def __init__(self, text: str) -> None:
        check_text("cron", text)
        if len(text) > _LONGEST:
            raise InvalidError(f"`cron` has {len(text)} characters; it has at most {_LONGEST}")
        fields = _MACROS.get(text.strip().lower(), text).upper().split()
        if len(fields) != 5:
            raise _error(
                text,
                f"it has {len(fields)} fields, and needs 5: minute, hour, day of the month, month, day of "
                "the week. Use `every_s` for seconds",
            )
        minute, hour, day, month, weekday = fields
        self.text = text
        self._minutes = sorted(_values(text, _MINUTE, minute))
        self._hours = sorted(_values(text, _HOUR, hour))
        self._months = _values(text, _MONTH, month)
        plain, self._is_last_day = _without(day, "L")
        self._days = _values(text, _DAY_OF_MONTH, plain) if plain else set[int]()
        self._weekdays, self._counted = _weekdays(text, weekday)
        self._needs_both = day.startswith("*") or weekday.startswith("*")
        if next(self.walls(datetime(2000, 1, 1)), None) is None:
            raise _error(text, "no day ever matches it, so it would never run")

    def walls(self, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
        """Yield the chosen wall times from `start` on, inclusive, or backwards from it.

        Ends if none comes within 50 years, or at the end of the calendar.
        """
        minutes, hours = self._minutes, self._hours
        if reverse:
            minutes, hours = minutes[::-1], hours[::-1]
        for day in self._matching(start.date(), reverse=reverse):
            is_first = day == start.date()
            for hour in hours:
                if is_first and (hour > start.hour if reverse else hour < start.hour):
                    continue
                for minute in minutes:
                    wall = datetime(day.year, day.month, day.day, hour, minute)
                    if is_first and (wall > start if reverse else wall < start):
                        continue
                    yield wall

    def _matching(self, day: date, *, reverse: bool) -> Iterator[date]:
        found_in = day.year
        while abs(day.year - found_in) <= _YEARS:
            if self._matches(day):
                yield day
                found_in = day.year
            try:
                day = self._step(day, reverse=reverse)
            except (OverflowError, ValueError):
                return

    def _step(self, day: date, *, reverse: bool) -> date:
        """Return the next day, or the first one of the next month if this month has none."""
        if day.month in self._months:
            return day - _DAY if reverse else day + _DAY
        if reverse:
            return day.replace(day=1) - _DAY
        return (day.replace(day=28) + 4 * _DAY).replace(day=1)

    def _matches(self, day: date) -> bool:
        if day.month not in self._months:
            return False
        last = monthrange(day.year, day.month)[1]
        by_day = day.day in self._days or (self._is_last_day and day.day == last)
        weekday = day.isoweekday() % _SUNDAY
        by_weekday = (
            weekday in self._weekdays
            or (weekday, (day.day + 6) // 7) in self._counted
            or (day.day + 7 > last and (weekday, _LAST) in self._counted)
        )
        return by_day and by_weekday if self._needs_both else by_day or by_weekday


def _error(text: str, why: str) -> InvalidError:
    return InvalidError(f"`cron` is {shorten(text)!r}: {why}")


def _without(field: str, item: str) -> tuple[str, bool]:
    """Return a field without an item of its list, and whether the item was there."""
    items = field.split(",")
    return ",".join(each for each in items if each != item), item in items


def _weekdays(text: str, field: str) -> tuple[set[int], set[tuple[int, int]]]:
    """Return the days of the week, Sunday as 0, and those that are counted in their month."""
    plain: list[str] = []
    counted: set[tuple[int, int]] = set()
    for item in field.split(","):
        day, sign, number = item.partition("#")
        if sign:
            if number not in ("1", "2", "3", "4", "5"):
                raise _error(text, f"{shorten(item)!r} counts a day in its month, from #1 to #5")
            counted.add((_value(text, _DAY_OF_WEEK, day) % _SUNDAY, int(number)))
        elif len(item) > 1 and item.endswith("L"):
            counted.add((_value(text, _DAY_OF_WEEK, item[:-1]) % _SUNDAY, _LAST))
        else:
            plain.append(item)
    days = _values(text, _DAY_OF_WEEK, ",".join(plain)) if plain else set[int]()
    return {day % _SUNDAY for day in days}, counted


def _values(text: str, field: _Field, written: str) -> set[int]:
    """Return the values that a list of ranges chooses."""
    chosen: set[int] = set()
    for item in written.split(","):
        span, slash, step = item.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = field.least, field.most
        else:
            low = _value(text, field, first)
            high = _value(text, field, last) if dash else field.most if slash else low
            if dash and field is _DAY_OF_WEEK and last == "SUN":
                high = _SUNDAY  # FRI-SUN ends a week
        if low > high:
            raise _error(text, f"the range {shorten(item)!r} of its {field.name} is empty")
        by = _number(step) if slash else 1
        if not by or by > field.most:
            raise _error(text, f"the step of {shorten(item)!r} must be 1 to {field.most}")
        chosen.update(range(low, high + 1, by))
    return chosen


def _value(text: str, field: _Field, written: str) -> int:
    if written in field.names:
        return field.least + field.names.index(written)
    value = _number(written)
    if value is None or not field.least <= value <= field.most:
        names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        raise _error(
            text,
            f"{shorten(written)!r} is not a {field.name}, which is {field.least} to {field.most}{names}",
        )
    return value


def _number(written: str) -> int | None:
    return int(written) if written.isascii() and written.isdigit() else None
