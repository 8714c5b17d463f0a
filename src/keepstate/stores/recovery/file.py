"""Reader of a damaged journal: it recovers every whole frame, whatever lies between them.

A frame holds the writes of a flush, so the keys of a lost frame have the values from before it. A single
flipped bit in the first line or in a frame's head is corrected, because the checksums show which bit it was.

A lost first line is derived from the frames, and so are their offsets if bytes before them were removed.
A frame's checksums start from the journal's seed and the frame's offset, and its body's from its head's. So a
frame shows by itself that it is whole. A CRC can be computed backwards from its end to its start: that gives
the checksum of the seed if the offset is known, and the offset if the seed is known.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple, cast
from zlib import crc32

import msgspec

from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.clock_leaps import detect_leap
from keepstate.stores.file import items
from keepstate.stores.file.durable_mark import DurableMark, End, read_mark_file
from keepstate.stores.file.frames import FRAME_HEAD_BYTES, Format, Head, crc_of, is_torn
from keepstate.stores.file.journal import ZSTD_MAGIC, decode_items
from keepstate.stores.protocol import Entry, Leap
from keepstate.stores.recovery.remains import Damage, RevisionTimes, SpaceRemains
from keepstate.values.compression import decompress

_FRAME_HEAD: Final = re.compile(rb"frame ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})\n")
_ONES: Final = 0xFFFFFFFF
_FARTHEST: Final = 1 << 20
"""The largest shift of a frame in bytes; each offset up to it is tried."""
_MOST_SEARCHES: Final = 3
_MOST_MOVES: Final = 64
_ENOUGH: Final = 16
"""Number of frames that decide the seed's checksum; two that agree are not a coincidence."""


_LONGEST_HEAD: Final = 128
_MARK: Final = b"frame "


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
    while (at := data.find(_MARK, at + 1)) >= 0:
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


class _Space:
    """The state of a space by the recovered frames."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.revision = self.floor = self.now_ms = 0
        self.leap: Leap | None = None
        self.times = RevisionTimes()


class JournalRemains:
    """The whole parts of a journal.

    Args:
        path: The journal; it is read once, and not locked.

    Raises:
        CorruptError: The file does not start like a journal, and its first line cannot be derived from
            frames.
        UnsupportedError: A later keepstate wrote it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.damages: list[Damage] = []
        self._spaces: dict[str, _Space] = {}
        self._ends: dict[int, bytes] = {}
        self._torn_at = sys.maxsize
        noted = read_mark_file(path)  # before the journal is read, because the journal may grow
        with open(path, "rb") as file:
            data = file.read()
        if data:
            head = self._head(data, noted)
            data = self._realign(data, head)
            self._read(data, head)
            self._compare(noted, data, head)
        elif noted is not None:
            self._report_missing(noted.ends[0], 0)

    # ---- recovered content

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces, dropped ones included, in the order of their names' bytes."""
        return [
            SpaceRemains(
                name,
                space.revision,
                space.now_ms,
                space.revision > space.floor,
                space.leap,
                times=space.times,
            )
            for name, space in sorted(self._spaces.items(), key=lambda item: item[0].encode())
        ]

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield the whole entries of a space, in key order."""
        found = self._spaces[space].entries
        for key in sorted(found):
            yield found[key]

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys, None for absent ones."""
        found = self._spaces[space].entries
        return [found.get(key) for key in keys]

    def close(self) -> None:
        """Release the content."""
        self._spaces.clear()

    # ---- frames

    def _head(self, data: bytes, noted: DurableMark | None) -> Head:
        try:
            return Head.of(data, self.path)
        except CorruptError:
            line = data[:_LONGEST_HEAD]
            for turned in _flip_bits(line, data.find(b"\n") + 1 or _LONGEST_HEAD):
                try:
                    head = Head.of(turned, self.path)
                except (CorruptError, UnsupportedError):
                    continue
                self.damages.append(Damage("the first line has a bit turned", f"{self.path} at byte 0"))
                return head
            if (found := head_from_frames(data)) is None:
                raise
            self.damages.append(
                Damage("the first line is damaged; the frames tell what it said", self._at(0))
            )
            seeds = [end.seed for end in noted.ends] if noted is not None else []
            known = (seed for seed in seeds if crc32(seed) == crc32(found.seed))
            return Head(found.format, next(known, found.seed))

    def _realign(self, data: bytes, head: Head) -> bytes:
        """Return the journal with shifted frames at their original offsets."""
        data, moves = realign(data, head)
        gone = 0
        for move in moves:
            what = f"the frames from here on were written {abs(move.by)} bytes "
            what += (
                "farther on: bytes before them are gone" if move.by > 0 else "before: others are in between"
            )
            self.damages.append(Damage(what, self._at(move.at - gone)))
            gone += move.by
        return data

    def _read(self, data: bytes, head: Head) -> None:
        at = len(bytes(head))
        while at < len(data):
            whole = head.body(data, at)
            body = whole or self._correct_head(data, head, at)
            if body is None:
                at = self._skip(data, head, at)
                continue
            self._replay_frame(body[:-1], head, at)
            crc = crc_of(data, at)
            at += FRAME_HEAD_BYTES + len(body)
            if whole:
                self._ends[at] = crc

    def _compare(self, noted: DurableMark | None, data: bytes, head: Head) -> None:
        """Report a missing end, or a journal that was replaced."""
        end = None if noted is None else noted.end_of(head.seed)
        if noted is not None and end is None:
            if noted.is_exact and read_mark_file(self.path) == noted:
                self.damages.append(Damage("another journal stood here and was replaced", self._at(0)))
        elif end is not None and end.size_bytes > (whole := min(self._torn_at, len(data))):
            self._report_missing(end, whole)
        elif end is not None and self._ends.get(end.size_bytes, end.crc) != end.crc:
            self.damages.append(Damage("another frame stood here and was replaced", self._at(end.size_bytes)))

    def _report_missing(self, end: End, whole_bytes: int) -> None:
        what = f"{end.size_bytes - whole_bytes} bytes that were durable were cut off; what they wrote is lost"
        self.damages.append(Damage(what, self._at(whole_bytes)))

    def _correct_head(self, data: bytes, head: Head, at: int) -> memoryview | None:
        """Return the body of a frame after correcting a flipped bit in its head, or None."""
        for turned in _flip_bits(data[at : at + FRAME_HEAD_BYTES], FRAME_HEAD_BYTES):
            body = head.body_under(turned, data, at)
            if body is not None:
                self.damages.append(Damage("a frame's head has a bit turned", f"{self.path} at byte {at}"))
                return body
        return None

    def _skip(self, data: bytes, head: Head, at: int) -> int:
        """Report a damaged part, and return the offset of the next whole frame."""
        following = at
        while (following := data.find(_MARK, following + 1)) >= 0:
            if head.body(data, following) is not None:
                break
        if following >= 0 or not is_torn(head, data, at):
            end = len(data) if following < 0 else following
            self.damages.append(
                Damage(f"{end - at} bytes of frames are damaged; what they wrote is lost", self._at(at))
            )
        else:
            self._torn_at = at
        return len(data) if following < 0 else following

    def _replay_frame(self, payload: memoryview, head: Head, at: int) -> None:
        try:
            found = decode_items(payload, head.format)
        except (msgspec.MsgspecError, CorruptError) as error:
            self.damages.append(Damage(f"a frame is whole but makes no sense: {error}", self._at(at)))
            return
        for item in found:
            if isinstance(item, items.Revision | items.SpaceHead | items.Entries | items.Logged):
                self._apply(item, self._spaces.setdefault(item.space, _Space()), at)

    def _apply(
        self, item: items.Revision | items.SpaceHead | items.Entries | items.Logged, space: _Space, at: int
    ) -> None:
        match item:
            case items.Revision():
                if item.revision != space.revision + 1:
                    lost = f"revisions from {space.revision + 1} up to {item.revision - 1}"
                    what = f"{lost} are lost: what they wrote or deleted is as it was before them"
                    self.damages.append(Damage(what, self._at(at), item.space))
                self._install(item, space)
            case items.SpaceHead():
                space.revision, space.floor, space.now_ms = item.revision, item.floor, item.now_ms
                space.leap = item.leap
            case items.Entries():
                for entry in item.entries:
                    space.entries[entry[0]] = Entry(*entry)
            case items.Logged():
                # This adds something only if the head of a snapshot is lost.
                space.revision = max(space.revision, item.revision)
                space.now_ms = max(space.now_ms, item.now_ms)
                space.times.add(item.revision, item.now_ms)

    @staticmethod
    def _install(item: items.Revision, space: _Space) -> None:
        record = item.record()
        if record.dropped:
            space.entries.clear()
            space.floor = record.revision
        for entry in record.entries:
            space.entries[entry.key] = entry
        for key in record.deleted:
            space.entries.pop(key, None)
        space.leap = detect_leap(record.revision, space.now_ms, record.now_ms) or space.leap
        space.revision, space.now_ms = record.revision, record.now_ms
        space.times.add(record.revision, record.now_ms)

    def _at(self, at: int) -> str:
        return f"{self.path} at byte {at}"


def _flip_bits(data: bytes, size: int) -> Iterator[bytes]:
    """Yield the data with each bit of its first `size` bytes flipped, one at a time."""
    for bit in range(8 * min(size, len(data))):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        yield bytes(turned)
