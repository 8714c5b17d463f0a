"""zstd, from the standard library since Python 3.14, and from its backport before."""

from __future__ import annotations

import sys
from typing import Final, cast

from keepstate.errors import CorruptError, InvalidError
from keepstate.values import limits
from keepstate.values.expansion import is_within, most_inflated

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL: Final = 3
_SMALL_BYTES: Final = 1 << 17
"""Up to so many are compressed by one that is at hand: to make one takes longer than to compress 4 KB."""

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
    packed = _compressed(data) if len(data) <= _SMALL_BYTES else zstd.compress(data, _LEVEL)
    return packed if len(packed) <= len(data) * 9 // 10 and is_within(data, len(packed)) else None


def _compressed(data: bytes) -> bytes:
    try:
        compressor = _idle.pop()  # one for each thread that is here at once: none waits
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
        raise CorruptError("a compressed value is cut off, followed by something, or larger than it may be")
    if not is_within(data, len(packed)):
        raise CorruptError(
            f"a compressed value of {len(packed)} bytes holds more lists and dicts than so few may"
        )
    return data
