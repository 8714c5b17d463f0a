"""Dates, times and zones as bytes: naive ones stay naive, aware ones keep their zone by offset or name."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from keepstate.errors import InvalidError, MissingExtraError

_DATETIME: Final = struct.Struct(">HBBBBBIB")
_DATE: Final = struct.Struct(">HBB")
_TIME: Final = struct.Struct(">BBBIB")
_TIMEDELTA: Final = struct.Struct(">iII")
_OFFSET: Final = struct.Struct(">q")

_BY_OFFSET: Final = b"\x01"
_BY_KEY: Final = b"\x02"
_NAMED_OFFSET: Final = b"\x03"
_UTC: Final = _BY_OFFSET + _OFFSET.pack(0)
_MICROSECOND: Final = timedelta(microseconds=1)


def write_datetime(moment: datetime) -> bytes:
    """Return year to microsecond and fold, followed by the zone if there is one."""
    fields = _DATETIME.pack(
        moment.year,
        moment.month,
        moment.day,
        moment.hour,
        moment.minute,
        moment.second,
        moment.microsecond,
        moment.fold,
    )
    zone = moment.tzinfo
    if zone is None:
        return fields
    return fields + (_UTC if zone is UTC else write_zone(zone))


def read_datetime(data: bytes) -> datetime:
    """Return what `write_datetime` was given."""
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(data)
    zone = _optional_zone(data[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def write_date(day: date) -> bytes:
    """Return year, month and day."""
    return _DATE.pack(day.year, day.month, day.day)


def read_date(data: bytes) -> date:
    """Return what `write_date` was given."""
    return date(*_DATE.unpack(data))


def write_time(moment: time) -> bytes:
    """Return hour to microsecond and fold, followed by the zone if there is one."""
    fields = _TIME.pack(moment.hour, moment.minute, moment.second, moment.microsecond, moment.fold)
    return fields if moment.tzinfo is None else fields + write_zone(moment.tzinfo)


def read_time(data: bytes) -> time:
    """Return what `write_time` was given."""
    hour, minute, second, microsecond, fold = _TIME.unpack_from(data)
    return time(hour, minute, second, microsecond, _optional_zone(data[_TIME.size :]), fold=fold)


def write_timedelta(span: timedelta) -> bytes:
    """Return days, seconds and microseconds as the class normalizes them."""
    return _TIMEDELTA.pack(span.days, span.seconds, span.microseconds)


def read_timedelta(data: bytes) -> timedelta:
    """Return what `write_timedelta` was given."""
    days, seconds, microseconds = _TIMEDELTA.unpack(data)
    return timedelta(days, seconds, microseconds)


def write_zone(zone: tzinfo) -> bytes:
    """Return a fixed offset, with its custom name if it has one, or the key of a ZoneInfo.

    Raises:
        InvalidError: The zone is of another class, or a ZoneInfo without a key.
    """
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        amount = _OFFSET.pack(offset // _MICROSECOND)
        if name == timezone(offset).tzname(None):
            return _BY_OFFSET + amount
        return _NAMED_OFFSET + amount + name.encode("utf-8", "surrogatepass")
    if type(zone) is ZoneInfo and zone.key is not None:  # pyright: ignore[reportUnnecessaryComparison]
        return _BY_KEY + zone.key.encode()
    kind = f"{type(zone).__module__}.{type(zone).__qualname__}"
    raise InvalidError(
        f"a time zone {kind} does not come back; use datetime.timezone or zoneinfo.ZoneInfo(key)"
    )


def read_zone(data: bytes) -> tzinfo:
    """Return the zone that `write_zone` was given.

    Raises:
        MissingExtraError: This machine has no data for the zone.
    """
    kind, body = data[:1], data[1:]
    if kind == _BY_KEY:
        key = body.decode()
        try:
            return ZoneInfo(key)
        except (ZoneInfoNotFoundError, OSError) as error:  # the name may be that of a folder of zones
            install = "pip install tzdata"
            raise MissingExtraError(
                f"no time zone {key!r} on this machine; install its data: {install}", install=install
            ) from error
    offset = timedelta(microseconds=_OFFSET.unpack_from(body)[0])
    if kind == _BY_OFFSET and len(body) == _OFFSET.size:
        return timezone(offset)
    if kind == _NAMED_OFFSET:
        return timezone(offset, body[_OFFSET.size :].decode("utf-8", "surrogatepass"))
    raise ValueError(f"no zone is written as {kind!r}")


def _optional_zone(data: bytes) -> tzinfo | None:
    return read_zone(data) if data else None
