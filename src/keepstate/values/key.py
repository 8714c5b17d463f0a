"""Keys built from paths: order-preserving, reversible bytes.

Packed paths sort as their segments do, a path's bytes start with those of the path above it, and no two paths
pack alike. Segments of different kinds sort bytes, str, int, UUID, stamp. The idea is that of FoundationDB's
tuple layer.

Each segment is a tag and a body. Text and bytes end with 00, and a 00 in them is written 00 FF; text is
UTF-8, whose order is that of code points, lone surrogates included. An int is its magnitude in as few bytes
as hold it, big-endian; the tag counts the bytes, and a negative one has all bits turned over. All this is
frozen: stored keys are read for ever.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from keepstate.errors import CorruptError, InvalidError

Segment = str | int | bytes | UUID

OBJECTS: Final = 0x00
"""The section of content-addressed objects; not logged."""
BY_KEY: Final = 0x01
"""The section whose changes are logged by key."""
WITH_VALUES: Final = 0x02
"""The section whose changes are logged with old and new value."""

STAMP_SIZE: Final = 11

PART_BYTES: Final = 32
"""Size of the longest part of a space that is counted by itself; see `part_of`."""

_BYTES: Final = 0x01
_TEXT: Final = 0x02
_ZERO: Final = 0x20
"""The tag of 0; a positive int of n bytes has `_ZERO + n`, a negative one `_ZERO - n`, up to eight bytes."""
_LARGE: Final = _ZERO + 9
_LARGE_NEGATIVE: Final = _ZERO - 9
_UUID: Final = 0x30
STAMP_TAG: Final = 0x31

_MOST_INT_BYTES: Final = 0xFFFF
_STAMP_FORM: Final = struct.Struct(">BQH")
_SECTIONS: Final = {section: bytes((section,)) for section in (OBJECTS, BY_KEY, WITH_VALUES)}
_SMALL: Final = (bytes((_ZERO,)), *(bytes((_ZERO + 1, number)) for number in range(1, 256)))


@dataclass(frozen=True, slots=True, order=True)
class Stamp:
    """The segment that a store appended: the batch's revision, and the index of the write in the batch."""

    revision: int
    index: int


def pack(*segments: Segment | Stamp) -> bytes:
    """Return the bytes of a path.

    Raises:
        InvalidError: A segment is not exactly a str, int, bytes or UUID; a bool is rejected, because `True ==
            1`.
    """
    return _pack(b"", segments)


def stored_key(section: int, *segments: Segment | Stamp) -> bytes:
    """Return the key under which a store keeps a path: the section's byte, then the packed path."""
    try:
        return _pack(_SECTIONS[section], segments)
    except KeyError:
        raise InvalidError(f"section {section!r} does not exist; there are 0, 1 and 2") from None


def stamp_suffix(revision: int, index: int) -> bytes:
    """Return the `STAMP_SIZE` bytes that a store appends to a stamped key."""
    return _STAMP_FORM.pack(STAMP_TAG, revision, index)


def part_of(key: bytes) -> bytes:
    """Return the part of a space that a stored key belongs to, for counting: section and first segment.

    A key whose first segment is not a text of at most 30 bytes belongs to its section as a whole.
    """
    end = key.find(b"\0", 2, PART_BYTES)
    return key[: end + 1] if end > 0 and key[1] == _TEXT else key[:1]


def unpack(data: bytes) -> tuple[Segment | Stamp, ...]:
    """Return the segments that `pack` was given.

    Raises:
        CorruptError: The bytes are not a packed path.
    """
    segments: list[Segment | Stamp] = []
    at = 0
    segment: Segment | Stamp
    while at < len(data):
        tag = data[at]
        if tag in (_TEXT, _BYTES):
            segment, at = _unpack_body(data, at)
        elif _LARGE_NEGATIVE <= tag <= _LARGE:
            segment, at = _unpack_int(data, at)
        elif tag == _UUID:
            body, at = _take(data, at, 16)
            segment = UUID(bytes=body)
        elif tag == STAMP_TAG:
            body, at = _take(data, at, STAMP_SIZE - 1)
            segment = Stamp(int.from_bytes(body[:8]), int.from_bytes(body[8:]))
        else:
            raise _corrupt(data, at, f"no segment has the tag {tag:02x}")
        segments.append(segment)
    return tuple(segments)


def successor(prefix: bytes) -> bytes | None:
    """Return the smallest bytes above all keys with the prefix, or None if there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def _pack(packed: bytes, segments: tuple[Segment | Stamp, ...]) -> bytes:
    for segment in segments:
        if type(segment) is str:
            try:
                body = segment.encode()
            except UnicodeEncodeError:
                body = segment.encode("utf-8", "surrogatepass")
            if b"\x00" in body:
                body = body.replace(b"\x00", b"\x00\xff")
            packed += b"\x02" + body + b"\x00"
        elif type(segment) is int:
            packed += _SMALL[segment] if 0 <= segment < 256 else _pack_int(segment)
        else:
            packed += _pack_other(segment)
    return packed


def _pack_int(number: int) -> bytes:
    magnitude = abs(number)
    size = (magnitude.bit_length() + 7) // 8
    if size > _MOST_INT_BYTES:
        raise InvalidError(
            f"An int of {size} bytes is too large for a key segment. At most {_MOST_INT_BYTES} bytes fit."
        )
    if number >= 0:
        head = bytes((_ZERO + size,)) if size <= 8 else bytes((_LARGE,)) + size.to_bytes(2)
        return head + magnitude.to_bytes(size)
    turned = (1 << (8 * size)) - 1 - magnitude
    if size <= 8:
        return bytes((_ZERO - size,)) + turned.to_bytes(size)
    return bytes((_LARGE_NEGATIVE,)) + (_MOST_INT_BYTES - size).to_bytes(2) + turned.to_bytes(size)


def _pack_other(segment: object) -> bytes:
    if type(segment) is bytes:
        return b"\x01" + segment.replace(b"\x00", b"\x00\xff") + b"\x00"
    if type(segment) is UUID:
        return b"\x30" + segment.bytes
    if type(segment) is Stamp:
        return stamp_suffix(segment.revision, segment.index)
    kind = type(segment).__name__
    raise InvalidError(f"key segment {segment!r} is {kind}; a segment is exactly a str, int, bytes or UUID")


def _unpack_body(data: bytes, at: int) -> tuple[str | bytes, int]:
    start = at + 1
    end = data.find(b"\x00", start)
    escaped = False
    while end >= 0 and data[end + 1 : end + 2] == b"\xff":
        escaped = True
        end = data.find(b"\x00", end + 2)
    if end < 0:
        raise _corrupt(data, at, "a text or bytes segment has no end")
    body = data[start:end].replace(b"\x00\xff", b"\x00") if escaped else data[start:end]
    if data[at] == _BYTES:
        return body, end + 1
    try:
        return body.decode("utf-8", "surrogatepass"), end + 1
    except UnicodeDecodeError as error:
        raise _corrupt(data, at, "a text segment is not UTF-8") from error


def _unpack_int(data: bytes, at: int) -> tuple[int, int]:
    tag = data[at]
    negative = tag < _ZERO
    if tag in (_LARGE, _LARGE_NEGATIVE):
        length, at = _take(data, at, 2)
        size = int.from_bytes(length)
        size = _MOST_INT_BYTES - size if negative else size
        shortest = 9
        at -= 1
    else:
        size = shortest = abs(tag - _ZERO)
    body, end = _take(data, at, size)
    magnitude = int.from_bytes(body)
    if negative:
        magnitude = (1 << (8 * size)) - 1 - magnitude
    if size < shortest or (magnitude.bit_length() + 7) // 8 != size:
        raise _corrupt(data, at, "an int is not written in its shortest form")
    return -magnitude if negative else magnitude, end


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + 1 + size
    if end > len(data):
        raise _corrupt(data, at, "a segment is cut off")
    return data[at + 1 : end], end


def _corrupt(data: bytes, at: int, what: str) -> CorruptError:
    start = data[:40].hex()
    return CorruptError(f"Key {start} is not a packed path: at byte {at} {what}", place=start)
