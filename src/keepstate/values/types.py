"""The tags of types that plain msgpack does not distinguish.

None, bool, int (64 bits), float, str (UTF-8), bytes, list and dict (of str) are msgpack's own. Every other
type is an Ext with one of these codes. A *leaf* contains its value's bytes; a *container* contains an
encoding of its parts. Codes never change their meaning, because stored values must stay readable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import EllipsisType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from keepstate.errors import InvalidError
from keepstate.values import arrays, datetimes

BIG_INT: Final = 1
"""An int beyond 64 bits: two's complement, big-endian."""
LOOSE_TEXT: Final = 2
"""A str with lone surrogates: UTF-8 that lets them pass."""
ELLIPSIS: Final = 3
COMPLEX: Final = 4
DECIMAL: Final = 5
UNIQUE_ID: Final = 6
PATH: Final = 7
"""One byte that says which of the four classes, then the text."""
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
"""Members stand in the order of their encodings."""
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
"""What `standard` takes apart and makes again."""
CONTAINERS: Final = frozenset({TUPLE, SET, FROZENSET, MAP, OBJECT}) | STANDARD

_DOUBLES: Final = struct.Struct(">dd")
_NAN: Final = float("nan")
_PATHS: Final[dict[type, bytes]] = {
    PurePosixPath: b"p",
    PureWindowsPath: b"w",
    PosixPath: b"P",
    WindowsPath: b"W",
}


def _write_int(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 8) // 8, signed=True)


def _read_int(data: bytes) -> int:
    return int.from_bytes(data, signed=True)


def write_loose_text(text: str) -> bytes:
    """Return UTF-8 in which lone surrogates stand as three bytes, as they do for no other reader."""
    return text.encode("utf-8", "surrogatepass")


def _read_loose_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _write_nothing(_: object) -> bytes:
    return b""


def _read_ellipsis(data: bytes) -> EllipsisType:
    if data:
        raise ValueError("an ellipsis has no bytes")
    return ...


def _write_complex(number: complex) -> bytes:
    real, imaginary = number.real, number.imag
    return _DOUBLES.pack(real if real == real else _NAN, imaginary if imaginary == imaginary else _NAN)


def _read_complex(data: bytes) -> complex:
    return complex(*_DOUBLES.unpack(data))


def _write_decimal(number: Decimal) -> bytes:
    return str(number).encode()


def _read_decimal(data: bytes) -> Decimal:
    return Decimal(data.decode("ascii"))


def _write_uuid(value: UUID) -> bytes:
    return value.bytes


def _read_uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


def _write_path(path: PurePath) -> bytes:
    return _PATHS[type(path)] + write_loose_text(str(path))


def _read_path(data: bytes) -> PurePath:
    """Return the path; one of the other system's concrete class comes back as its pure class."""
    text = _read_loose_text(data[1:])
    here = type(Path())
    kind = {b"P": PosixPath, b"W": WindowsPath}.get(data[:1])
    if kind is here:
        return here(text)
    return {b"p": PurePosixPath, b"w": PureWindowsPath}[data[:1].lower()](text)


def pickled(name: str, dumped: bytes) -> bytes:
    """Return what stands for a pickled object of a class of this name."""
    text = name.encode()
    return len(text).to_bytes(2) + text + dumped


def pickled_parts(data: bytes) -> tuple[str, bytes]:
    """Return the name of the class, and the pickle."""
    end = 2 + int.from_bytes(data[:2])
    if len(data) < 2 or end > len(data):
        raise ValueError("a pickle has no name")
    return data[2:end].decode(), data[end:]


def _refuse_pickle(data: bytes) -> object:
    name, _ = pickled_parts(data)
    raise InvalidError(
        f"a pickle of {name} stands here; a handle with pickle=SignedPickle(…) reads it where it was signed"
    )


LEAF_WRITERS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    int: (BIG_INT, _write_int),
    EllipsisType: (ELLIPSIS, _write_nothing),
    complex: (COMPLEX, _write_complex),
    Decimal: (DECIMAL, _write_decimal),
    UUID: (UNIQUE_ID, _write_uuid),
    **dict.fromkeys(_PATHS, (PATH, _write_path)),
    datetime: (DATETIME, datetimes.write_datetime),
    date: (DATE, datetimes.write_date),
    time: (TIME, datetimes.write_time),
    timedelta: (TIMEDELTA, datetimes.write_timedelta),
    timezone: (ZONE, datetimes.write_zone),
    ZoneInfo: (ZONE, datetimes.write_zone),
}
"""By exact type: the tag, and the function that gives the bytes."""

LEAF_READERS: Final[dict[int, Callable[[bytes], object]]] = {
    BIG_INT: _read_int,
    LOOSE_TEXT: _read_loose_text,
    ELLIPSIS: _read_ellipsis,
    COMPLEX: _read_complex,
    DECIMAL: _read_decimal,
    UNIQUE_ID: _read_uuid,
    PATH: _read_path,
    DATETIME: datetimes.read_datetime,
    DATE: datetimes.read_date,
    TIME: datetimes.read_time,
    TIMEDELTA: datetimes.read_timedelta,
    ZONE: datetimes.read_zone,
    ARRAY: arrays.read_array,
    SCALAR: arrays.read_scalar,
    PICKLE: _refuse_pickle,
}
"""By tag; on bytes that were never written they raise what `reading` knows as damage."""


def leaf(value: object) -> tuple[int, bytes] | None:
    """Return tag and bytes of a value that is a leaf, or None.

    Raises:
        InvalidError: It is one in kind, but cannot come back as it is.
    """
    writer = LEAF_WRITERS.get(type(value))
    if writer is not None:
        return writer[0], writer[1](value)
    if arrays.is_array(value):
        return ARRAY, arrays.write(value)
    if arrays.is_scalar(value):
        return SCALAR, arrays.write(value)
    return None
