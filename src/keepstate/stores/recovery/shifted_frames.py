"""Recovery of whole frames after the journal's first line, or bytes in front of the frames, were lost.

A frame's checksums start from the journal's seed and the frame's offset, and its body's from its head's. So a
frame shows by itself that it is whole. A CRC can be computed backwards from its end to its start: that gives
the checksum of the seed if the offset is known, and the offset if the seed is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple, cast
from zlib import crc32

from keepstate.errors import CorruptError
from keepstate.stores.file.frames import FRAME_HEAD_BYTES, Format, Head
from keepstate.stores.file.journal import ZSTD_MAGIC
from keepstate.values.compression import decompress

_FRAME_HEAD: Final = re.compile(rb"frame ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})\n")
_ONES: Final = 0xFFFFFFFF
_FARTHEST: Final = 1 << 20
"""The largest shift of a frame in bytes; each offset up to it is tried."""
_MOST_SEARCHES: Final = 3
_MOST_MOVES: Final = 64
_ENOUGH: Final = 16
"""Number of frames that decide the seed's checksum; two that agree are not a coincidence."""


class Moved(NamedTuple):
    """Frames from `at` on were written `by` bytes later in the file, or earlier if `by` is negative."""

    at: int
    by: int


class _Frame(NamedTuple):
    at: int
    length: bytes
    head_crc: int
    body: bytes


def head_from_frames(data: bytes) -> Head | None:
    """Return a head that fits the frames, or None if no two frames agree on one.

    Its seed is another one with the same checksum. The original seed is neither known nor needed.
    """
    votes: Counter[int] = Counter()
    forms: Counter[Format] = Counter()
    for frame in _frames(data, 0):
        start = _before(frame.head_crc, b"%d" % frame.at + frame.length)
        votes[start] += 1
        forms[_form_of(frame.body)] += 1
        if votes[start] == _ENOUGH:
            break
    if not votes or (found := votes.most_common(1)[0])[1] < 2:
        return None
    form = forms.most_common(1)[0][0]
    if f"{form}-zstd" in forms:  # its frames are compressed only if that saves room
        form = cast("Format", f"{form}-zstd")
    return Head(form, _seed(found[0]))


def _form_of(body: bytes) -> Format:
    """Return the format of a frame."""
    payload, is_compressed = body[:-1], body.startswith(ZSTD_MAGIC)
    if is_compressed:
        try:
            payload = decompress(payload)
        except CorruptError:
            is_compressed = False
    if payload.startswith((b"{", b"[")):
        return "json-zstd" if is_compressed else "json"
    return "msgpack-zstd" if is_compressed else "msgpack"


def realign(data: bytes, head: Head) -> tuple[bytes, list[Moved]]:
    """Return the journal with each shifted frame at its offset again, and the shifts."""
    moves: list[Moved] = []
    at = len(bytes(head))
    while at < len(data):
        body = head.body(data, at)
        if body is not None:
            at += FRAME_HEAD_BYTES + len(body)
            continue
        following = _next_in_place(data, head, at)
        if following is None:
            found = _next_moved(data, head, at)
            if found is None or len(moves) == _MOST_MOVES:
                break
            moves.append(found)
            start = found.at
            following = start + found.by
            data = data[:at] + b"\xff" * (following - at) + data[start:]
        at = following
    return data, moves


def _next_in_place(data: bytes, head: Head, at: int) -> int | None:
    while (at := data.find(b"frame ", at + 1)) >= 0:
        if head.body(data, at) is not None:
            return at
    return None


def _next_moved(data: bytes, head: Head, at: int) -> Moved | None:
    """Return the next frame that belongs after `at`, which a copy of an earlier frame in a value does not."""
    seed_crc = crc32(head.seed)
    for searches, frame in enumerate(_frames(data, at)):
        if searches == _MOST_SEARCHES:
            break
        start = _before(frame.head_crc, frame.length)
        ahead = range(frame.at + 1, frame.at + _FARTHEST)
        back = range(frame.at - 1, max(at, frame.at - _FARTHEST) - 1, -1)
        for place in chain(ahead, back):
            if crc32(b"%d" % place, seed_crc) == start:
                return Moved(frame.at, place - frame.at)
    return None


def _frames(data: bytes, at: int) -> Iterator[_Frame]:
    """Yield the whole frames of any journal and offset."""
    while (found := _FRAME_HEAD.search(data, at)) is not None:
        size, head_crc = int(found[1], 16), int(found[2], 16)
        body = data[found.end() : found.end() + size]
        if size and len(body) == size and crc32(body, head_crc) == int(found[3], 16):
            yield _Frame(found.start(), found[1], head_crc, body)
            at = found.end() + size
        else:
            at = found.start() + 1


# ---- CRC-32, backwards


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0xEDB88320 if byte & 1 else 0)
    return byte


_TABLE: Final = [_entry(byte) for byte in range(256)]
_BY_TOP: Final = {entry >> 24: byte for byte, entry in enumerate(_TABLE)}


def _before(crc: int, data: bytes) -> int:
    """Return the checksum before the data was added."""
    state = crc ^ _ONES
    for byte in reversed(data):
        index = _BY_TOP[state >> 24]
        state = (state ^ _TABLE[index]) << 8 & _ONES | index ^ byte
    return state ^ _ONES


def _seed(crc: int) -> bytes:
    """Return eight bytes that have this checksum."""
    return bytes(4) + (_before(crc, bytes(4)) ^ crc32(bytes(4))).to_bytes(4, "little")
