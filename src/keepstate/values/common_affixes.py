"""The differing middle of two encoded lists, found without decoding their common beginning and end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec

from keepstate.errors import CorruptError
from keepstate.values.encode_ext import array_head

_raw: Final = msgspec.msgpack.Decoder(msgspec.Raw).decode
_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def between(old: bytes, new: bytes, count: int) -> tuple[int, Sequence[bytes], Sequence[bytes]]:
    """Return the number of common leading items, and the items of each list before the common end.

    Args:
        old: The encoding of a list.
        new: The encoding of another list.
        count: The number of items of the other list.

    Raises:
        CorruptError: One of them is not the encoding of a list.
    """
    try:
        return _between(old, new, count)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"a list is damaged: {error}") from error


def _between(old: bytes, new: bytes, count: int) -> tuple[int, Sequence[bytes], Sequence[bytes]]:
    raws = _raws(old)
    begin, new_begin = len(array_head(len(raws))), len(array_head(count))
    borders = [*accumulate(map(len, raws), initial=begin)]
    same = _shared(old, begin, new, new_begin, 1)
    head = bisect_right(borders, begin + same) - 1
    at, new_at = borders[head], new_begin + borders[head] - begin
    same = min(_shared(old, len(old), new, len(new), -1), len(old) - at, len(new) - new_at)
    last = max(bisect_left(borders, len(old) - same), len(raws) + head - min(len(raws), count))
    # Bytes that end alike are equal items only if one begins there on both sides: a text may look like some.
    for end in (last, len(raws)):
        new_end = len(new) - (len(old) - borders[end])
        try:
            fresh = _split(new, new_at, new_end, count - head - (len(raws) - end))
        except msgspec.MsgspecError:
            if end == len(raws):
                raise
            continue
        return head, [bytes(raw) for raw in raws[head:end]], fresh
    raise AssertionError("the second turn returns or raises")


def _split(data: bytes, begin: int, end: int, count: int) -> list[bytes]:
    items = memoryview(data)[begin:end]
    if count == 1:  # which may be all there is, and is not copied to be looked at
        return [bytes(_raw(items))]
    return [bytes(raw) for raw in _raws(b"".join((array_head(count), items)))]


def _shared(old: bytes, begin: int, new: bytes, new_begin: int, way: int) -> int:
    """Return the number of equal bytes after two offsets, or before them if `way` is -1."""
    view = memoryview(old)
    most = min(len(old) - begin, len(new) - new_begin) if way > 0 else min(begin, new_begin)
    low, high = 0, most
    while low < high:  # each byte is compared about once: the halves get shorter
        some = (low + high + 1) // 2
        place, new_place = (begin + low, new_begin + low) if way > 0 else (begin - some, new_begin - some)
        if new.startswith(view[place : place + some - low], new_place):
            low = some
        else:
            high = some - 1
    return low
