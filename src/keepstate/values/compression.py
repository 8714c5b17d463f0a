"""Compression by zstd, and bounds on the memory that few stored bytes may expand to.

zstd is part of the standard library since Python 3.14; before that, its backport is used.

The weight of an encoding is an upper bound of the memory of its decoded value: each byte once, and
`_OBJECT_BYTES` for each byte that may begin a list, dict or tagged value. It is computed without decoding.
The writer respects the same bounds, so every stored value can be read again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final, cast

from keepstate.errors import CorruptError, InvalidError
from keepstate.values import limits

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL: Final = 3
_SMALL_BYTES: Final = 1 << 17
"""Up to this size an idle compressor is used, because creating one takes longer than compressing 4 KB."""

_idle: Final[list[zstd.ZstdCompressor]] = []
"""Idle compressors; each retains the memory that its largest value needed."""


def compress(data: bytes) -> bytes | None:
    """Return the compressed bytes, or None if that saves less than a tenth, or could not be read again.

    Raises:
        InvalidError: There are more than `limits.DECODED_BYTES`, which could not be decompressed again.
    """
    if len(data) > limits.DECODED_BYTES:
        raise InvalidError(
            f"a value of {len(data)} bytes; at most {limits.DECODED_BYTES} fit: store it in parts"
        )
    packed = _compress(data) if len(data) <= _SMALL_BYTES else zstd.compress(data, _LEVEL)
    return packed if len(packed) <= len(data) * 9 // 10 and is_within(data, len(packed)) else None


def _compress(data: bytes) -> bytes:
    try:
        compressor = _idle.pop()  # one for each concurrent thread, so that none waits
    except IndexError:
        compressor = zstd.ZstdCompressor(_LEVEL)
    packed = compressor.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    _idle.append(compressor)
    return packed


def decompress(packed: bytes, *, at_most: int = limits.DECODED_BYTES) -> bytes:
    """Return the decompressed bytes. Memory is bounded by `at_most`, whatever size the bytes claim.

    Raises:
        CorruptError: The bytes are not a single complete frame, or exceed the bound.
    """
    at_most = min(at_most, most_inflated(len(packed)))
    try:
        claimed = cast("int | None", zstd.get_frame_info(packed).decompressed_size)
        if claimed is not None and claimed > at_most:
            raise CorruptError(f"a compressed value claims {claimed} bytes; at most {at_most} are inflated")
        inflater = zstd.ZstdDecompressor()
        data = inflater.decompress(packed, max_length=at_most + 1 if claimed is None else claimed + 1)
    except zstd.ZstdError as error:
        raise CorruptError(f"a compressed value cannot be inflated: {error}") from error
    if not inflater.eof or inflater.unused_data or len(data) > at_most:
        raise CorruptError("a compressed value is truncated, followed by other bytes, or too large")
    if not is_within(data, len(packed)):
        raise CorruptError(
            f"a compressed value of {len(packed)} bytes holds more lists and dicts than its size allows"
        )
    return data


_OBJECT_BYTES: Final = 64
_HEADS: Final = frozenset((*range(0x80, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xD9), *range(0xDC, 0xE0)))
"""First bytes of the lists, dicts and tagged values of msgpack."""
_NO_HEADS: Final = bytes(set(range(256)) - _HEADS)
_UNWEIGHED_BYTES: Final = limits.SHARED_BYTES // (1 + _OBJECT_BYTES)


def weight(encoding: bytes) -> int:
    """Return an upper bound, approximately, of the memory of an encoding's value in bytes."""
    return len(encoding) + _OBJECT_BYTES * len(encoding.translate(None, _NO_HEADS))


def most_inflated(stored_bytes: int) -> int:
    """Return the size of the largest encoding that this many compressed bytes may expand to."""
    return min(limits.DECODED_BYTES, limits.INFLATED_BYTES + limits.EXPANSION * stored_bytes)


def is_within(encoding: bytes, stored_bytes: int) -> bool:
    """Return whether this many compressed bytes may expand to the value of this encoding."""
    most = most_inflated(stored_bytes)
    return len(encoding) <= most and (
        len(encoding) * (1 + _OBJECT_BYTES) <= limits.INFLATED_BYTES
        or weight(encoding) <= limits.INFLATED_BYTES + limits.EXPANSION * stored_bytes
    )


def is_repeated(encoding: bytes, stored_bytes: int) -> bool:
    """Return whether a value repeats its parts more often than a state of this many bytes may."""
    return (
        len(encoding) > max(stored_bytes, _UNWEIGHED_BYTES)
        and weight(encoding) > limits.SHARED_BYTES + limits.EXPANSION * stored_bytes
    )


class Expansion:
    """Counts the objects of a state that are decoded, each as often as it is referred to.

    Args:
        objects: All objects that the state refers to.
    """

    def __init__(self, objects: Mapping[bytes, bytes]) -> None:
        self._objects = objects
        self._bytes = self._weight = 0
        self._stored_bytes: int | None = None

    def spend(self, data: bytes) -> bytes:
        """Count an object that is about to be decoded, and return it.

        Raises:
            CorruptError: The repeated objects weigh more than the stored bytes may expand to.
        """
        self._bytes += len(data)
        if self._bytes <= _UNWEIGHED_BYTES:
            return data
        if self._stored_bytes is None:
            self._stored_bytes = sum(map(len, self._objects.values()))
        if self._bytes <= self._stored_bytes:  # nothing was repeated
            return data
        self._weight += weight(data)
        if self._weight > limits.SHARED_BYTES + limits.EXPANSION * self._stored_bytes:
            raise CorruptError(
                f"a state of {self._stored_bytes:,} bytes repeats its parts until it takes more than "
                f"{self._weight:,} bytes of memory; it is damaged, or malicious"
            )
        return data
