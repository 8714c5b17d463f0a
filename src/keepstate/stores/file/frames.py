r"""Frames of a journal, which distinguish written bytes from torn ones, and both from damaged ones.

```
head     keepstate journal 1 msgpack 0123456789abcdef 89abcdef\n
frame    frame LENGTH HEAD-CRC BODY-CRC\n, then the body, which ends with \n
```

Numbers in frames are eight hexadecimal digits. Each CRC-32 starts from the journal's seed and the frame's
offset, so zeros are not a frame, and neither is a frame of another journal or one inside a stored value.

A write that a crash cut short leaves the end of the file missing, or sectors of it empty. The bytes after the
last good frame are *torn*, and may be cut off, if they show one of the two and no good frame follows.
Anything else was complete once and is *damaged*. One case is ambiguous: damage to the very last frame if that
frame also holds an empty sector.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, cast
from zlib import crc32

import msgspec

from keepstate.errors import CorruptError, UnsupportedError

VERSION: Final = 1
FRAME_HEAD_BYTES: Final = 33
Format = Literal["json", "json-zstd", "msgpack", "msgpack-zstd"]
"""The encoding of items in frames; with `zstd` a frame is compressed if that saves a tenth."""

_MARK: Final = b"frame "
_HEAD = re.compile(
    rb"keepstate journal (\d{1,9}) ((?:json|msgpack)(?:-zstd)?) ([0-9a-f]{16}) ([0-9a-f]{8})\n"
)
_ANY_HEAD = re.compile(rb"keepstate journal (\d{1,9}) [^\n]*([0-9a-f]{8})\n")
"""The head of any version: it ends with the checksum of its line."""
_FRAME_HEAD = re.compile(rb"frame ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})\n")
_SECTOR: Final = 512
_EMPTY: Final = bytes(_SECTOR)
_MOST_SUMMED: Final = 4
"""Multiple of the file's size that may be checksummed to find a whole frame after a bad one."""


class Head(msgspec.Struct, frozen=True):
    """The first line of a journal."""

    format: Format
    seed: bytes

    def __bytes__(self) -> bytes:
        line = b"keepstate journal %d %s %s " % (VERSION, self.format.encode(), self.seed.hex().encode())
        return line + b"%08x\n" % crc32(line)

    @classmethod
    def of(cls, data: bytes, path: str) -> Head:
        """Parse the head of a journal.

        Raises:
            UnsupportedError: A later keepstate wrote it.
            CorruptError: The head is damaged, or the file is not a journal.
        """
        known = _ANY_HEAD.match(data)
        if known is not None and int(known[1]) > VERSION and crc32(known[0][:-9]) == int(known[2], 16):
            raise UnsupportedError(
                f"{path} is a journal of version {int(known[1])}, but this keepstate reads up to version "
                f"{VERSION}. Upgrade keepstate."
            )
        found = _HEAD.match(data)
        if found is None or crc32(found[0][:-9]) != int(found[4], 16):
            raise CorruptError(
                f"{path} does not start like a journal of keepstate. The file was not changed. "
                "Use another path, or restore a backup.",
                place=f"{path} at byte 0",
            )
        form = cast("Format", found[2].decode())
        return cls(form, bytes.fromhex(found[3].decode()))

    def frame(self, payload: bytes, at: int) -> bytes:
        """Return the payload as a frame for an offset in the journal."""
        body = payload + b"\n"
        length = b"%08x" % len(body)
        head_crc = crc32(length, self._start(at))
        return b"frame %s %08x %08x\n" % (length, head_crc, crc32(body, head_crc)) + body

    def body(self, data: bytes, at: int) -> memoryview | None:
        """Return the body of the frame at an offset, or None if there is no good frame."""
        return self.body_under(data[at : at + FRAME_HEAD_BYTES], data, at)

    def body_under(self, frame_head: bytes, data: bytes, at: int) -> memoryview | None:
        """Return the body of the frame at an offset as if it had the given head, or None."""
        length = self._length(frame_head, at)
        start = at + FRAME_HEAD_BYTES
        if length is None or start + length > len(data):
            return None
        body = memoryview(data)[start : start + length]
        return body if crc32(body, self._head_crc(frame_head, at)) == int(frame_head[-9:-1], 16) else None

    def length(self, data: bytes, at: int) -> int | None:
        """Return the length of the body in the frame head at an offset, or None if that head is not good."""
        return self._length(data[at : at + FRAME_HEAD_BYTES], at)

    def _length(self, frame_head: bytes, at: int) -> int | None:
        found = _FRAME_HEAD.match(frame_head)
        if found is None or self._head_crc(frame_head, at) != int(found[2], 16):
            return None
        return int(found[1], 16)

    def _head_crc(self, frame_head: bytes, at: int) -> int:
        return crc32(frame_head[len(_MARK) : len(_MARK) + 8], self._start(at))

    def _start(self, at: int) -> int:
        return crc32(b"%d" % at, crc32(self.seed))


def crc_of(data: bytes, at: int = 0) -> bytes:
    """Return the checksum of the frame at an offset."""
    return data[at + FRAME_HEAD_BYTES - 9 : at + FRAME_HEAD_BYTES - 1]


def frames(head: Head, data: bytes, path: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the end of each frame with its payload, up to a torn frame.

    Raises:
        CorruptError: A frame was damaged.
    """
    at = len(bytes(head))
    while at < len(data):
        body = head.body(data, at)
        if body is None:
            if _has_frame_after(head, data, at) or not is_torn(head, data, at):
                raise CorruptError(
                    f"{path} is damaged at byte {at}: the frame there was whole once. The file was not "
                    "changed. Restore a backup, or salvage what is whole with `keepstate repair`.",
                    place=f"{path} at byte {at}",
                )
            return
        at += FRAME_HEAD_BYTES + len(body)
        yield at, body[:-1]


def _has_frame_after(head: Head, data: bytes, at: int) -> bool:
    add_checksum = 0
    while (at := data.find(_MARK, at + 1)) >= 0:
        if head.body(data, at) is not None:
            return True
        # No journal has a good frame head without its body by chance. Many of them are an attack on time.
        add_checksum += head.length(data, at) or 0
        if add_checksum > _MOST_SUMMED * len(data):
            return True
    return False


def is_torn(head: Head, data: bytes, at: int) -> bool:
    """Return whether the rest of the file looks like a write cut short by a crash; see the module."""
    end = at + FRAME_HEAD_BYTES + (head.length(data, at) or 0)
    return end > len(data) or _has_empty_sector(data, at, end)


def _has_empty_sector(data: bytes, start: int, end: int) -> bool:
    """Return whether some sector's part of the frame is all zeros."""
    first = start - start % _SECTOR
    for sector in range(first, end, _SECTOR):
        low, high = max(sector, start), min(sector + _SECTOR, end)
        if data[low:high] == _EMPTY[: high - low]:
            return True
    return False
