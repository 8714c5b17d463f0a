"""The instants of a schedule: each wall time of a cron expression in a zone, or every so many seconds.

A wall time belongs to the first instant at which the clocks of the zone show it or a later one. So a time
that is skipped in spring belongs to the end of the gap, and a time that comes twice in autumn to its first
coming. A larger wall time never has an earlier instant. Pure: the same zone data gives the same instants.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.stored import shorten, to_datetime, to_milliseconds
from keepstate.engine.queue.cron import Cron
from keepstate.errors import InvalidError, MissingExtraError

_LONGEST_FOLD: Final = timedelta(days=1)
"""The longest time by which a zone has set its clocks back: across the date line."""
_SECOND: Final = timedelta(seconds=1)
_OF_MACHINE: Final = ("localtime", "posixrules", "Factory")
"""Files among the zones that have no zone of their own."""
_INSTALL: Final = "pip install 'keepstate[zones]'"


class Timetable(Protocol):
    """The instants of a schedule, in milliseconds since 1970."""

    def after(self, at_ms: int) -> int | None:
        """Return the first instant after a time; None if there is none."""
        ...

    def latest(self, begin_ms: int, end_ms: int, most: int) -> list[int]:
        """Return the last instants after `begin_ms` and up to `end_ms`, at most so many, in their order."""
        ...


class Interval:
    """Instants at equal distances.

    Args:
        anchor_ms: The time from which they count. It is not one of them.
        every_ms: The distance.
    """

    def __init__(self, anchor_ms: int, every_ms: int) -> None:
        self._anchor_ms, self._every_ms = anchor_ms, every_ms

    def after(self, at_ms: int) -> int | None:
        """Return the first instant after a time."""
        passed = max(at_ms - self._anchor_ms, 0) // self._every_ms
        return self._anchor_ms + (passed + 1) * self._every_ms

    def latest(self, begin_ms: int, end_ms: int, most: int) -> list[int]:
        """Return the last instants after `begin_ms` and up to `end_ms`, at most so many, in their order."""
        last = (end_ms - self._anchor_ms) // self._every_ms
        first = max((max(begin_ms, self._anchor_ms) - self._anchor_ms) // self._every_ms + 1, last - most + 1)
        return [self._anchor_ms + number * self._every_ms for number in range(first, last + 1)]


class ZonedCron:
    """The instants of a cron expression in a zone.

    Args:
        cron: The expression.
        zone: The zone of its wall times.
    """

    def __init__(self, cron: Cron, zone: tzinfo) -> None:
        self._cron, self._zone = cron, zone

    def after(self, at_ms: int) -> int | None:
        """Return the first instant after a time; None if the calendar ends before it."""
        try:
            start = self._wall(to_datetime(at_ms)).replace(second=0, microsecond=0, fold=0)
            for wall in self._cron.walls(start):
                if (found := self._instant(wall)) > at_ms:
                    return found
        except OverflowError:
            pass
        return None

    def latest(self, begin_ms: int, end_ms: int, most: int) -> list[int]:
        """Return the last instants after `begin_ms` and up to `end_ms`, at most so many, in their order."""
        found: list[int] = []
        start = self._wall(to_datetime(end_ms))
        if start.fold:  # the clocks have shown later times before
            start = start.replace(fold=0) + _LONGEST_FOLD
        for wall in self._cron.walls(start, reverse=True):
            instant = self._instant(wall)
            if instant <= begin_ms:
                break
            if instant <= end_ms and instant not in found[-1:]:
                if len(found) == most:
                    break
                found.append(instant)
        return found[::-1]

    def _wall(self, moment: datetime) -> datetime:
        """Return what the zone's clocks show, with `fold` set if they show it for the second time."""
        return moment.astimezone(self._zone).replace(tzinfo=None)

    def _instant(self, wall: datetime) -> int:
        first, second = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first <= second:
            return to_milliseconds(first)
        # In a gap, the offset before it leads behind it, and the offset after it leads to before it.
        low, high = second, first
        while high - low > _SECOND:
            middle = low + ((high - low) // 2 // _SECOND) * _SECOND
            if self._wall(middle).replace(fold=0) >= wall:
                high = middle
            else:
                low = middle
        return to_milliseconds(high)


def next_instants(timetable: Timetable, at_ms: int, until_ms: int | None, most: int) -> list[int]:
    """Return the next instants after a time, up to `until_ms`."""

    def following() -> int | None:
        nonlocal at_ms
        found = timetable.after(at_ms)
        if found is None or (until_ms is not None and found > until_ms):
            return None
        at_ms = found
        return found

    return list(islice(iter(following, None), most))


def find_zone(name: str) -> tzinfo:
    """Return a zone of this machine.

    Raises:
        InvalidError: This machine has no such zone.
        MissingExtraError: It has no zones at all.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        if not available_timezones():
            raise MissingExtraError(
                f"zone {shorten(name)!r} was not found, because this machine has no time zones: {_INSTALL}",
                install=_INSTALL,
            ) from error
        raise _unknown_zone(name) from error


def check_zone(zone: object) -> str:
    """Return the name of a zone that this machine knows."""
    name = check_text("zone", zone)
    if name in _OF_MACHINE:
        raise InvalidError(
            f"`zone` is {name!r}, which is another zone on each machine; give a name of the IANA database, "
            "such as 'Europe/Berlin', or 'UTC'"
        )
    find_zone(name)
    # A file system that ignores case, or has other files among the zones, finds more names than others do.
    if name != "UTC" and name not in available_timezones():
        raise _unknown_zone(name)
    return name


def _unknown_zone(name: str) -> InvalidError:
    return InvalidError(
        f"`zone` is {shorten(name)!r}, which is not a time zone of this machine; give a name of the IANA "
        "database, such as 'Europe/Berlin'"
    )
