"""The tags of types that plain msgpack does not distinguish, and the conversion of leaves.

None, bool, int (64 bits), float, str (UTF-8), bytes, list and dict (of str) are msgpack's own. Every other
type is an Ext with one of these codes. A *leaf* contains its value's bytes; a *container* contains an
encoding of its parts. Codes never change their meaning, because stored values must stay readable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import EllipsisType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from keepstate.errors import InvalidError, MissingExtraError
from keepstate.values import arrays

BIG_INT: Final = 1
"""An int beyond 64 bits: two's complement, big-endian."""
LOOSE_TEXT: Final = 2
"""A str with lone surrogates: UTF-8 that lets them pass."""
ELLIPSIS: Final = 3
COMPLEX: Final = 4
DECIMAL: Final = 5
UNIQUE_ID: Final = 6
PATH: Final = 7
"""One byte for the class, one of four, then the text."""
DATETIME: Final = 8
DATE: Final = 9
TIME: Final = 10
TIMEDELTA: Final = 11
ZONE: Final = 12
ARRAY: Final = 13
"""A numpy array: dtype, shape, elements in C order."""
SCALAR: Final = 14
"""A numpy scalar, laid out as an array without dimensions."""

TUPLE: Final = 32
SET: Final = 33
"""Members in the order of their encodings."""
FROZENSET: Final = 34
MAP: Final = 35
"""A dict with a key that is not a UTF-8 str: key, value, key, value, in insertion order."""
OBJECT: Final = 36
"""An object of a registered class: name, version, fields by name, and pydantic's fields that were not set."""

PICKLE: Final = 37
"""An object that was pickled: its class's name behind two bytes that count it, then the pickle."""

DEQUE: Final = 38
"""Its `maxlen`, then its items."""
ORDERED: Final = 39
"""An `OrderedDict`: key, value, key, value."""
COUNTER: Final = 40
"""As `ORDERED`."""
DEFAULT: Final = 41
"""A `defaultdict`: the name of its factory or None, then as `ORDERED`."""
RANGE: Final = 42
"""Start, stop and step."""
FRACTION: Final = 43
"""Numerator and denominator, in lowest terms."""
PATTERN: Final = 44
"""A regular expression: its text and its flags."""
EXCEPTION: Final = 45
"""An exception of the interpreter: the name of its class, its arguments, and its attributes by name."""

STANDARD: Final = frozenset({DEQUE, ORDERED, COUNTER, DEFAULT, RANGE, FRACTION, PATTERN, EXCEPTION})
"""The types that `standard` supports."""
CONTAINERS: Final = frozenset({TUPLE, SET, FROZENSET, MAP, OBJECT}) | STANDARD


class Missing(msgspec.Struct, frozen=True):
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""The marker for an absent value, because None is a value."""


def kind_of(value: object) -> Any:
    """Return the class of a value as `Any`, so that type checkers infer nothing from comparing it."""
    return type(value)


# ---- numbers, text and paths

_DOUBLES: Final = struct.Struct(">dd")
_NAN: Final = float("nan")
_PATHS: Final[dict[type, bytes]] = {
    PurePosixPath: b"p",
    PureWindowsPath: b"w",
    PosixPath: b"P",
    WindowsPath: b"W",
}


def write_loose_text(text: str) -> bytes:
    """Return UTF-8 with lone surrogates as three bytes, which other readers reject."""
    return text.encode("utf-8", "surrogatepass")


def _read_loose_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _write_int(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, signed=True)


def _read_ellipsis(data: bytes) -> EllipsisType:
    if data:
        raise ValueError("an ellipsis has no bytes")
    return ...


def _write_complex(number: complex) -> bytes:
    real, imaginary = number.real, number.imag
    return _DOUBLES.pack(real if real == real else _NAN, imaginary if imaginary == imaginary else _NAN)


def _write_path(path: PurePath) -> bytes:
    return _PATHS[type(path)] + write_loose_text(str(path))


def _read_path(data: bytes) -> PurePath:
    """Return the path. A concrete path of another operating system comes back as a pure one."""
    text = _read_loose_text(data[1:])
    here = type(Path())
    kind = {b"P": PosixPath, b"W": WindowsPath}.get(data[:1])
    if kind is here:
        return here(text)
    return {b"p": PurePosixPath, b"w": PureWindowsPath}[data[:1].lower()](text)


# ---- pickles


def join_pickle(name: str, dumped: bytes) -> bytes:
    """Return the bytes of a pickle of a class with this name."""
    text = name.encode()
    return len(text).to_bytes(2) + text + dumped


def split_pickle(data: bytes) -> tuple[str, bytes]:
    """Return the name of the class, and the pickle."""
    end = 2 + int.from_bytes(data[:2])
    if len(data) < 2 or end > len(data):
        raise ValueError("a pickle has no name")
    return data[2:end].decode(), data[end:]


def _reject_pickle(data: bytes) -> object:
    name, _ = split_pickle(data)
    raise InvalidError(
        f"the value contains a pickle of {name}; a handle with pickle=SignedPickle(…) reads it where it was "
        "signed"
    )


# ---- dates, times and zones: naive ones stay naive, aware ones keep their zone by offset or name

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


def _write_datetime(moment: datetime) -> bytes:
    """Return year to microsecond and fold, followed by the zone if there is one."""
    day = moment.year, moment.month, moment.day
    fields = _DATETIME.pack(*day, moment.hour, moment.minute, moment.second, moment.microsecond, moment.fold)
    zone = moment.tzinfo
    if zone is None:
        return fields
    return fields + (_UTC if zone is UTC else _write_zone(zone))


def _read_datetime(data: bytes) -> datetime:
    """Return what `_write_datetime` was given."""
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(data)
    zone = _optional_zone(data[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def _write_time(moment: time) -> bytes:
    """Return hour to microsecond and fold, followed by the zone if there is one."""
    fields = _TIME.pack(moment.hour, moment.minute, moment.second, moment.microsecond, moment.fold)
    return fields if moment.tzinfo is None else fields + _write_zone(moment.tzinfo)


def _read_time(data: bytes) -> time:
    """Return what `_write_time` was given."""
    hour, minute, second, microsecond, fold = _TIME.unpack_from(data)
    return time(hour, minute, second, microsecond, _optional_zone(data[_TIME.size :]), fold=fold)


def _write_zone(zone: tzinfo) -> bytes:
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


def zone_of_key(key: str) -> bytes:
    """Return the bytes of a ZoneInfo with this key, which this machine need not know."""
    return _BY_KEY + key.encode()


def _read_zone(data: bytes) -> tzinfo:
    """Return the zone that `_write_zone` was given.

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
    return _read_zone(data) if data else None


# ---- all leaves

LEAF_WRITERS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    int: (BIG_INT, _write_int),
    EllipsisType: (ELLIPSIS, lambda _: b""),
    complex: (COMPLEX, _write_complex),
    Decimal: (DECIMAL, lambda number: str(number).encode()),
    UUID: (UNIQUE_ID, lambda value: value.bytes),
    **dict.fromkeys(_PATHS, (PATH, _write_path)),
    datetime: (DATETIME, _write_datetime),
    date: (DATE, lambda day: _DATE.pack(day.year, day.month, day.day)),
    time: (TIME, _write_time),
    timedelta: (TIMEDELTA, lambda span: _TIMEDELTA.pack(span.days, span.seconds, span.microseconds)),
    timezone: (ZONE, _write_zone),
    ZoneInfo: (ZONE, _write_zone),
}
"""By exact type: the tag, and the function that returns the bytes."""

LEAF_READERS: Final[dict[int, Callable[[bytes], object]]] = {
    BIG_INT: lambda data: int.from_bytes(data, signed=True),
    LOOSE_TEXT: _read_loose_text,
    ELLIPSIS: _read_ellipsis,
    COMPLEX: lambda data: complex(*_DOUBLES.unpack(data)),
    DECIMAL: lambda data: Decimal(data.decode("ascii")),
    UNIQUE_ID: lambda data: UUID(bytes=data),
    PATH: _read_path,
    DATETIME: _read_datetime,
    DATE: lambda data: date(*_DATE.unpack(data)),
    TIME: _read_time,
    TIMEDELTA: lambda data: timedelta(*_TIMEDELTA.unpack(data)),
    ZONE: _read_zone,
    ARRAY: arrays.read_array,
    SCALAR: arrays.read_scalar,
    PICKLE: _reject_pickle,
}
"""By tag. On bytes that were never written they raise errors that `decode` treats as damage."""


def leaf(value: object) -> tuple[int, bytes] | None:
    """Return tag and bytes of a value that is a leaf, or None.

    Raises:
        InvalidError: The value is of a supported type, but would not come back equal.
    """
    writer = LEAF_WRITERS.get(type(value))
    if writer is not None:
        return writer[0], writer[1](value)
    if arrays.is_array(value):
        return ARRAY, arrays.write(value)
    if arrays.is_scalar(value):
        return SCALAR, arrays.write(value)
    return None
