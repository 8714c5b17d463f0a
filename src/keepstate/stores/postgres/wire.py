"""The binary forms of arguments and answers: arrays and records of int8, bytea and bool.

Pure. Arrays are packed and unpacked here, because the driver's adapters cost more than the call.
Format: `array_send`, `record_send`, `int8send` and `byteasend` of PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

_BYTEA_OID: Final = 17
_INT8_OID: Final = 20

_HEAD = Struct("!iiI")
_SIZES = Struct("!ii")
_SIZE = Struct("!i")
_FIELD = Struct("!Ii")
_INT8 = Struct("!q")
_SIZED_INT8 = Struct("!iq")

_NULL = _SIZE.pack(-1)
_NO_INT8S = _HEAD.pack(0, 0, _INT8_OID)
_NO_BYTEAS = _HEAD.pack(0, 0, _BYTEA_OID)

int8 = _INT8.pack


def int8_or_null(number: int | None) -> bytes | None:
    """Encode a bigint, or null."""
    return None if number is None else int8(number)


def int8s(numbers: Sequence[int | None]) -> bytes:
    """Encode a bigint[]."""
    if not numbers:
        return _NO_INT8S
    parts = [_HEAD.pack(1, None in numbers, _INT8_OID), _SIZES.pack(len(numbers), 1)]
    parts += [_NULL if number is None else _SIZED_INT8.pack(8, number) for number in numbers]
    return b"".join(parts)


def byteas(items: Sequence[bytes | None]) -> bytes:
    """Encode a bytea[]."""
    if not items:
        return _NO_BYTEAS
    parts = [_HEAD.pack(1, None in items, _BYTEA_OID), _SIZES.pack(len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts += (_SIZE.pack(len(item)), item)
    return b"".join(parts)


def from_record(data: bytes | None) -> list[bytes | None]:
    """Return the fields of a record."""
    if data is None:
        return []
    (count,) = _SIZE.unpack_from(data)
    fields: list[bytes | None] = []
    at = _SIZE.size
    for _ in range(count):
        _, size = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        if size < 0:
            fields.append(None)
        else:
            fields.append(data[at : at + size])
            at += size
    return fields


def from_int8(data: bytes | None) -> int:
    """Return a bigint, 0 for null."""
    return 0 if data is None else int.from_bytes(data, "big", signed=True)


def from_array(data: bytes | None) -> list[bytes | None]:
    """Return the elements of an array of one dimension; none for null."""
    if data is None:
        return []
    dimensions, _, _ = _HEAD.unpack_from(data)
    if not dimensions:
        return []
    count, _ = _SIZES.unpack_from(data, _HEAD.size)
    items: list[bytes | None] = []
    at = _HEAD.size + _SIZES.size
    for _ in range(count):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if size < 0:
            items.append(None)
        else:
            items.append(data[at : at + size])
            at += size
    return items


def from_byteas(data: bytes | None) -> list[bytes]:
    """Return the elements of a bytea[] without nulls."""
    return [item or b"" for item in from_array(data)]


def from_int8s(data: bytes | None) -> list[int]:
    """Return the elements of a bigint[], 0 for null."""
    return [from_int8(item) for item in from_array(data)]


def from_expiries(data: bytes | None) -> list[int | None]:
    """Return the elements of a bigint[] in which null has a meaning."""
    return [None if item is None else from_int8(item) for item in from_array(data)]
