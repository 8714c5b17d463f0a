"""The pages of a database that may be damaged, read without SQLite, with the write-ahead log on top.

Every page of the file ends with a checksum (see `sqlite.connection`). Every frame of the log has one that
continues from the frame before. So each shows whether it is as written, and a damaged one does not hide those
after it.
Formats: "Database File Format" and "WAL-mode File Format" of SQLite.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from io import FileIO
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import apsw
from apsw import sqlite_extra

from keepstate.stores.recovery.remains import Damage
from keepstate.stores.sqlite.connection import execute_on

_EXTENSION: Final = "cksumvfs"
_PAGE_BYTES: Final = 4096
"""SQLite's default page size, assumed if the file does not show another."""
MAGIC: Final = b"SQLite format 3\0"
_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_BIG_ENDIAN: Final = 1
_FRAME = Struct(">IIIIII")
_MASK: Final = 0xFFFFFFFF
_MOST_STARTS: Final = 4
"""Number of checksums that a frame after damaged ones may continue from; trying all costs their square."""
_LOCK_BYTE: Final = 1 << 30
"""SQLite locks the page with this byte, and never writes it."""


_Checksum: TypeAlias = tuple[int, int]


class _Frame(NamedTuple):
    """A frame's head: its page, the number of pages after a commit (otherwise 0), salts, checksum."""

    page: int
    pages: int
    salts: tuple[int, int]
    checksum: _Checksum


class PageFile:
    """The pages as of the last whole commit. The constructor opens the files; nothing is written.

    Args:
        path: The database, without writers, or a copy.
        name: The name of the database in damages.

    Attributes:
        damages: The damaged parts.
        sums: Number of computed checksums of frames, which is the cost of reading a log.
    """

    def __init__(self, path: str, *, name: str) -> None:
        self.path = name
        self.damages: list[Damage] = []
        self._file: FileIO = FileIO(path)
        self._log: FileIO | None = FileIO(f"{path}-wal") if os.path.exists(f"{path}-wal") else None
        self._checker = apsw.Connection(":memory:")
        default = apsw.vfs_names()[0]
        sqlite_extra.load(self._checker, _EXTENSION)
        apsw.set_default_vfs(default)
        self._execute = execute_on(self._checker)
        self.page_bytes = self._read_page_size()
        size = os.fstat(self._file.fileno()).st_size
        self._overlay: dict[int, int] = {}
        self._sound: dict[int, bool] = {}
        self._bad: set[int] = set()
        self._weights_found: tuple[_Checksum, _Checksum] | None = None
        self.sums = 0
        self.count = -(-size // self.page_bytes)
        self.count = max(self.count, self._read_page_count())
        if self._log is not None:
            self._apply_log(os.fstat(self._log.fileno()).st_size)

    def close(self) -> None:
        """Close the files."""
        self._checker.close()
        self._file.close()
        if self._log is not None:
            self._log.close()

    # ---- pages

    def page(self, number: int) -> bytes:
        """Return a page, sound or not; it is short if the file ends in it."""
        at = self._overlay.get(number)
        if at is not None and self._log is not None:
            return os.pread(self._log.fileno(), self.page_bytes, at)
        return os.pread(self._file.fileno(), self.page_bytes, (number - 1) * self.page_bytes)

    def is_sound(self, number: int) -> bool:
        """Return whether a page is as written."""
        known = self._sound.get(number)
        if known is None:
            page = self.page(number)
            is_begun = number != 1 or page.startswith(MAGIC)  # zeros have a fitting checksum too
            known = self._sound[number] = is_begun and 0 < number <= self.count and self._has_checksum(page)
        return known

    def place(self, number: int) -> str:
        """Return the location of a page for damages."""
        at = self._overlay.get(number)
        if at is not None:
            return f"{self.path}-wal at byte {at}"
        return f"{self.path} at byte {(number - 1) * self.page_bytes}"

    def is_zeroed(self, number: int) -> bool:
        """Return whether a page is all zeros, which fits its checksum. Only a long value has such pages."""
        page = self.page(number)
        return number != _LOCK_BYTE // self.page_bytes + 1 and page.count(0) == self.page_bytes

    def write_image(self, path: str) -> None:
        """Write the database with its log applied to a new file."""
        with open(path, "xb") as image:
            image.writelines(self.page(number) for number in range(1, self.count + 1))

    def _has_checksum(self, page: bytes) -> bool:
        if len(page) != self.page_bytes:
            return False
        return bool(self._execute("SELECT verify_checksum(?)", (page,)).get)

    def _read_page_size(self) -> int:
        """Return the page size in the first page, if that page is sound with that size."""
        told = int.from_bytes(os.pread(self._file.fileno(), 2, 16), "big")
        size = 65_536 if told == 1 else told
        is_size = 512 <= size <= 65_536 and not size & size - 1
        if is_size:
            page = os.pread(self._file.fileno(), size, 0)
            if len(page) == size and self._execute("SELECT verify_checksum(?)", (page,)).get:
                return size
        return _PAGE_BYTES

    def _read_page_count(self) -> int:
        """Return the number of pages in the first page, or 0 if it is not certain."""
        first = self.page(1)
        is_told = self.is_sound(1) and first[24:28] == first[92:96]
        return int.from_bytes(first[28:32], "big") if is_told else 0

    # ---- the log

    def _apply_log(self, size: int) -> None:
        """Use each page's last frame of a whole transaction, and report damaged frames."""
        committed: dict[int, int] = {}
        pending: dict[int, int] = {}
        unsure: list[int] = []
        for at, frame in self._frames(size):
            if frame is None:
                unsure.append(at)
                continue
            self._report_frames(unsure, committed, pending)
            unsure.clear()
            self._use_frame(at, frame, committed, pending)
        if unsure and self._frame(unsure[0]).salts == self._salts:
            self.damages.append(
                Damage("the end of the log is torn or damaged", f"{self.path}-wal at byte {unsure[0]}")
            )
        self._overlay = {page: at for page, at in committed.items() if page <= self.count}
        # A page in the log has its old checksum from the file; the frame's checksum is the valid one.
        self._sound = {page: at not in self._bad for page, at in self._overlay.items()}

    def _use_frame(self, at: int, frame: _Frame, committed: dict[int, int], pending: dict[int, int]) -> None:
        pending[frame.page] = at + _FRAME_HEADER
        if frame.pages:
            committed.update(pending)
            pending.clear()
            self.count = frame.pages

    def _report_frames(self, unsure: list[int], committed: dict[int, int], pending: dict[int, int]) -> None:
        """Report the damaged frames before a whole one; frames of zeros are reported together."""
        zeros = [at for at in unsure if not self._frame(at).page]
        if zeros:
            what = f"{len(zeros)} frames of the log are zeros: it was cut off while it was written to"
            self.damages.append(Damage(what, f"{self.path}-wal at byte {zeros[0]}"))
        for at in unsure:
            if self._frame(at).page:
                self._report_frame(at, committed, pending)

    def _report_frame(self, at: int, committed: dict[int, int], pending: dict[int, int]) -> None:
        """Report a damaged frame; its page is lost unless a later frame has it again."""
        frame = self._frame(at)
        self.damages.append(
            Damage(f"the frame of page {frame.page} is damaged", f"{self.path}-wal at byte {at}")
        )
        self._use_frame(at, frame, committed, pending)
        self._bad.add(at + _FRAME_HEADER)

    def _frames(self, size: int) -> Iterator[tuple[int, _Frame | None]]:
        """Yield each frame's offset with the frame, or None if it is damaged or left from an earlier log."""
        assert self._log is not None
        header = os.pread(self._log.fileno(), _LOG_HEADER, 0)
        if len(header) < _LOG_HEADER:
            return
        words = Struct(">8I").unpack(header)
        self._order, self._salts = "big" if header[3] & _BIG_ENDIAN else "little", (words[4], words[5])
        before: list[_Checksum] = [(words[6], words[7])]
        if self._sum(header[:24], (0, 0)) != before[0] or not any(header):
            self.damages.append(Damage("the head of the log is damaged", f"{self.path}-wal at byte 0"))
            self._order = sys.byteorder
            before.append(self._sum(header[:24], (0, 0)))
            self._salts = self._first_salts(size)
        is_after_whole = True
        for at in self._places(size):
            frame = self._frame(at)
            if not (frame.page or any(frame.salts)):
                before, is_after_whole = [], False  # a gap: its frames are unknown
                yield at, None
                continue
            content = self._content(at)
            sums = [self._sum(content, start) for start in before]
            is_chained = frame.checksum in sums
            is_own = frame.salts == self._salts
            if is_chained and (is_own or is_after_whole):
                before, is_after_whole = [frame.checksum], True
                yield at, frame
                continue
            mended = self._correct_head(frame, content, sums) if is_own or is_after_whole else None
            before, is_after_whole = [frame.checksum, *sums[: _MOST_STARTS - 1]], mended is not None
            if mended is not None:
                self.damages.append(
                    Damage("a frame's head has a bit turned", f"{self.path}-wal at byte {at}")
                )
            yield at, mended

    def _places(self, size: int) -> range:
        frame_bytes = _FRAME_HEADER + self.page_bytes
        return range(_LOG_HEADER, size - frame_bytes + 1, frame_bytes)

    def _first_salts(self, size: int) -> tuple[int, int]:
        """Return the salts of the first frame that is not zeros, for a log with a lost head."""
        found = (self._frame(at).salts for at in self._places(size))
        return next((salts for salts in found if any(salts)), (0, 0))

    def _frame(self, at: int) -> _Frame:
        assert self._log is not None
        page, pages, *rest = _FRAME.unpack(os.pread(self._log.fileno(), _FRAME_HEADER, at))
        return _Frame(page, pages, (rest[0], rest[1]), (rest[2], rest[3]))

    def _content(self, at: int) -> bytes:
        assert self._log is not None
        data = os.pread(self._log.fileno(), _FRAME_HEADER + self.page_bytes, at)
        return data[:8] + data[_FRAME_HEADER:]

    def _sum(self, data: bytes, start: _Checksum) -> _Checksum:
        self.sums += 1
        words = self._words(data)
        first, second = start
        for at in range(0, len(words), 2):
            first = first + words[at] + second & _MASK
            second = second + words[at + 1] + first & _MASK
        return first, second

    def _words(self, data: bytes) -> array[int]:
        words = array("I", data)
        if sys.byteorder != self._order:
            words.byteswap()
        return words

    def _correct_head(self, frame: _Frame, content: bytes, sums: list[_Checksum]) -> _Frame | None:
        """Return the corrected frame if one flipped bit in its head explains its checksum, otherwise None.

        A checksum is a sum of the words, each with a weight of its own, so a flipped bit adds that bit's
        share.
        """
        if (found := next((one for one in sums if _is_near(one, frame.checksum)), None)) is not None:
            return frame._replace(checksum=found)
        words = self._words(content[:8])
        for bit in range(64):
            head = bytearray(content[:8])
            head[bit // 8] ^= 1 << bit % 8
            place = bit // 32
            by = self._words(bytes(head))[place] - words[place]
            first, second = self._weights(len(content))[place]
            added = by * first & _MASK, by * second & _MASK
            for one in sums:
                if ((one[0] + added[0]) & _MASK, (one[1] + added[1]) & _MASK) == frame.checksum:
                    page, pages = Struct(">II").unpack(head)
                    return frame._replace(page=page, pages=pages)
        return None

    def _weights(self, size_bytes: int) -> tuple[_Checksum, _Checksum]:
        """Return the share of a one in the first and the second word of a frame in its checksum."""
        if self._weights_found is None:
            one = (1).to_bytes(4, "little" if self._order == "little" else "big")
            rest = bytes(size_bytes - 8)
            first, second = self._sum(one + bytes(4) + rest, (0, 0)), self._sum(bytes(4) + one + rest, (0, 0))
            self._weights_found = first, second
        return self._weights_found


def _is_near(one: _Checksum, other: _Checksum) -> bool:
    """Return whether two checksums differ in one bit."""
    return (one[0] ^ other[0]).bit_count() + (one[1] ^ other[1]).bit_count() == 1
