"""The journal file: frames appended and made durable, read back on opening, rewritten when it has grown.

Invariants: a frame counts only when the system has said that it is on the disk; a file that is not understood
is not touched; after a failed sync nothing is written any more, for what the disk holds is not known.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

import msgspec

from keepstate._clock import Clock
from keepstate.errors import CorruptError, KeepstateError, OutcomeUnknownError, StorageError
from keepstate.stores.file import items, json_form
from keepstate.stores.file.durable_mark import NO_FRAME, End, Note, cut_off, removed, replaced
from keepstate.stores.file.faults import storage_error
from keepstate.stores.file.frames import Format, Head, crc_of, frames
from keepstate.stores.file.io import Files
from keepstate.values.compression import compress, decompress

_SEED_BYTES: Final = 8
_FRAME_BYTES: Final = 64 << 10
"""What damage to one place of a rewritten journal costs at the most, but for a larger value."""
_LEAST_GROWTH_BYTES: Final = 4 << 20
ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
"""A compressed payload begins with it; no payload of JSON or msgpack items does (RFC 8878, section 3.1.1)."""
_log = logging.getLogger("keepstate.stores")


_NONSENSE: Final = (msgspec.MsgspecError, ValueError, LookupError, TypeError, RecursionError, AssertionError)
"""What a frame's items raise that are whole and that nobody wrote."""


class Journal:
    """One opened journal file.

    Args:
        path: Where it stands, absolute and without links; made if it is not there.
        files: The operating system.
        clock: Where seeds come from.
        note: Where it is noted how much of it is durable.
    """

    def __init__(self, path: str, files: Files, clock: Clock, note: Note) -> None:
        self.path, self._files, self._clock, self._note = path, files, clock, note
        self._head = self._next_head = Head("msgpack", b"")
        self._end: End | None = None
        self._descriptor = -1
        self._size_bytes = 0
        self._snapshot_bytes = 0
        self._broken: str | None = None

    @property
    def format(self) -> Format:
        """How its frames are written."""
        return self._head.format

    # ---- opening and closing

    def open(self, replay: Callable[[items.Item], None], form: Format) -> None:
        """Read all that is there, cuts off what was torn, and make the rest durable.

        Raises:
            CorruptError: The file is damaged or no journal, and was not touched; or it was removed.
            UnsupportedError: A later keepstate wrote it.
        """
        try:
            data = self._read()
            if not data:
                self._begin(form)
                return
            self._take_up(data, Head.of(data, self.path), replay)
            with suppress(FileNotFoundError):
                self._files.remove(self._next_path)  # left by a crash; it never was the journal
            self._settle()
        except OSError as error:
            self.close()
            raise storage_error(error, self.path) from error
        except BaseException:
            self.close()
            raise

    def _begin(self, form: Format) -> None:
        noted = self._note.read()
        if noted is not None:
            end = noted.ends[0]
            raise cut_off(self.path, 0, end) if self._descriptor >= 0 else removed(self.path, end)
        self.rewrite([], form)

    def reread(self, replay: Callable[[items.Item], None]) -> None:
        """Read all again after an interrupt: what stands whole on the disk is what was written.

        Raises:
            CorruptError: The file was removed or replaced meanwhile, or is damaged.
        """
        self.close()
        try:
            data = self._read()
            head = Head.of(data, self.path) if data else None
            if head is None or head.seed not in (self._head.seed, self._next_head.seed):
                raise self._gone()
            self._take_up(data, head, replay)
        except OSError as error:
            raise storage_error(error, self.path) from error
        self._settle()

    def _settle(self) -> None:
        """Make the name durable, which may have been kept from a rewrite, and note the end."""
        self._sync_folder()
        if self._end is not None:
            self._note.raise_to(self._end)

    def _take_up(self, data: bytes, head: Head, replay: Callable[[items.Item], None]) -> None:
        self._head = self._next_head = head
        self._size_bytes = self._snapshot_bytes = len(bytes(head))
        promised = self._promised(head)
        self._end = End(head.seed, self._size_bytes, NO_FRAME)
        is_kept = promised in (None, self._end)
        for size_bytes, payload in frames(head, data, self.path):
            self._replay(payload, replay, size_bytes)
            self._end = End(head.seed, size_bytes, crc_of(data, self._size_bytes))
            self._size_bytes = size_bytes
            is_kept = is_kept or self._end == promised
        if promised is not None and not is_kept:
            raise cut_off(self.path, self._size_bytes, promised)
        if self._size_bytes < len(data):
            _log.warning(
                "%s ended at byte %d with %d bytes of a write that a crash cut short; they are cut off",
                self.path,
                self._size_bytes,
                len(data) - self._size_bytes,
            )
            self._files.truncate(self._descriptor, self._size_bytes)
        self._files.sync(self._descriptor)

    def _promised(self, head: Head) -> End | None:
        """Return what was noted of this journal."""
        noted = self._note.read()
        promised = None if noted is None else noted.end_of(head.seed)
        if noted is not None and noted.is_exact and promised is None:
            raise replaced(self.path)
        return promised

    def _read(self) -> bytes:
        try:
            self._descriptor = self._files.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return b""
        return self._files.read(self._descriptor)

    def _replay(self, payload: memoryview, replay: Callable[[items.Item], None], end: int) -> None:
        place = f"{self.path} at byte {self._size_bytes}"
        try:
            for item in decode_items(payload, self.format):
                if isinstance(item, items.SnapshotEnd):
                    self._snapshot_bytes = end
                else:
                    replay(item)
        except (*_NONSENSE, KeepstateError) as error:
            raise CorruptError(
                f"{place} stands what is whole but makes no sense ({error}); the file was not touched: "
                "restore a backup, or report it",
                place=place,
            ) from error

    def close(self) -> None:
        """Let go of the file; twice is once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    # ---- writing

    def append(self, given: Iterable[items.Item]) -> None:
        """Return when the items are on the disk, as one frame.

        Raises:
            StoreFullError: There is no room; nothing was written.
            OutcomeUnknownError: The disk failed; whether it holds the frame is not known.
            CorruptError: The file was removed, replaced or cut off; the frame is not acknowledged.
            StorageError: An earlier failure closed the journal for writing.
        """
        if self._broken is not None:
            raise StorageError(
                f"{self.path} takes no more writes, for {self._broken}: close it and open it again"
            )
        self._refuse_cut_off(self._size_bytes)
        frame = self._head.frame(encode_items(list(given), self.format), self._size_bytes)
        try:
            self._write(self._descriptor, frame, self._size_bytes)
        except OSError as error:
            self._cut_back()
            raise storage_error(error, self.path) from error
        self._sync()
        self._refuse_cut_off(self._size_bytes + len(frame))
        self._size_bytes += len(frame)
        self._end = End(self._head.seed, self._size_bytes, crc_of(frame))
        self._note.raise_to(self._end)

    def _write(self, descriptor: int, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            taken = self._files.write(descriptor, rest, at)
            rest, at = rest[taken:], at + taken

    def _cut_back(self) -> None:
        try:
            self._files.truncate(self._descriptor, self._size_bytes)
        except OSError as error:
            self._broken = f"half a write could not be cut off again ({error.strerror})"

    def _sync(self) -> None:
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            # To ask again would be no use: the system may have dropped what it could not write.
            self._broken = f"the disk failed ({error.strerror})"
            raise OutcomeUnknownError(
                f"the disk failed while {self.path} was made durable ({error.strerror}); whether it holds "
                "the last batches shows when it is opened again; until then it takes no more writes"
            ) from error
        if not self._files.is_at(self._descriptor, self.path):
            raise self._gone()

    def _refuse_cut_off(self, size_bytes: int) -> None:
        """Raise `CorruptError` if another program has changed the length of the file.

        A write behind the end of a file that was cut off fills the gap with zeros, and the length is right
        again. So the last byte before it is read too: each frame, and the head, ends with a line feed.
        """
        found = self._files.size_bytes(self._descriptor)
        last = self._files.read_at(self._descriptor, self._size_bytes - 1, 1)
        if found == size_bytes and last == b"\n":
            return
        self._broken = "another program cut it off or wrote to it"
        raise CorruptError(
            f"{self.path} was cut off or written to by another program while open ({found} bytes instead of "
            f"{size_bytes}); nothing more is acknowledged: find what does that, close the store, and save "
            "what is whole by `keepstate repair`",
            place=f"{self.path} at byte {min(found, size_bytes)}",
        )

    def _gone(self) -> CorruptError:
        self._broken = "it was removed or replaced while open"
        return CorruptError(
            f"{self.path} was removed or replaced while open; what was written since then is lost: find "
            "what does that, and open it again",
            place=self.path,
        )

    # ---- rewriting

    @property
    def has_grown(self) -> bool:
        """Return whether so much was appended that writing the present state anew is worth its cost."""
        growth = self._size_bytes - self._snapshot_bytes
        return growth > max(_LEAST_GROWTH_BYTES, 2 * self._snapshot_bytes)

    def put_off(self) -> None:
        """Let the journal grow as much again before it counts as grown."""
        self._snapshot_bytes = self._size_bytes

    def rewrite(self, given: Iterable[items.Item], form: Format) -> None:
        """Replace the journal by a new one that starts with these items, at once and for good.

        Raises:
            StorageError: It did not work; the journal is as it was.
        """
        head = self._next_head = Head(form, self._clock.random_bytes(_SEED_BYTES))
        descriptor = -1
        try:
            descriptor = self._make_next()
            end = self._write_snapshot(descriptor, head, given)
            self._files.sync(descriptor)
            self._note.announce(end, self._end)
            self._files.replace(self.path, self._next_path)
        except BaseException as error:
            if descriptor >= 0:
                self._files.close(descriptor)
            with suppress(OSError):
                self._files.remove(self._next_path)
            if isinstance(error, OSError):
                raise storage_error(error, self.path) from error
            raise
        self.close()
        self._descriptor, self._head = descriptor, head
        self._size_bytes = self._snapshot_bytes = end.size_bytes
        self._end = end
        self._settle()

    def _make_next(self) -> int:
        """Make the file that is to take the journal's place: a new one, whatever has its name."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            return self._files.open(self._next_path, flags)
        except FileExistsError:
            self._files.remove(self._next_path)
            return self._files.open(self._next_path, flags)

    def _write_snapshot(self, descriptor: int, head: Head, given: Iterable[items.Item]) -> End:
        at, crc = len(bytes(head)), b""
        self._write(descriptor, bytes(head), 0)
        for chunk in _chunks(chain(given, [items.SnapshotEnd()])):
            frame = head.frame(encode_items(chunk, head.format), at)
            self._write(descriptor, frame, at)
            at, crc = at + len(frame), crc_of(frame)
        return End(head.seed, at, crc)

    def _sync_folder(self) -> None:
        try:
            self._files.sync_folder(os.path.dirname(self.path))
        except OSError as error:
            self._broken = f"its new name could not be made durable ({error.strerror})"
            raise storage_error(error, self.path) from error

    @property
    def _next_path(self) -> str:
        return f"{self.path}.new"


def encode_items(given: list[items.Item], form: Format) -> bytes:
    """Return the payload of a frame."""
    payload = json_form.encode(given) if form.startswith("json") else items.encode(given)
    return (compress(payload) or payload) if form.endswith("zstd") else payload


def decode_items(payload: memoryview, form: Format) -> list[items.Item]:
    """Return the items of a frame's payload.

    Raises:
        msgspec.MsgspecError: They are not items of a journal.
        CorruptError: They cannot be decompressed.
    """
    if form.endswith("zstd") and bytes(payload[:4]) == ZSTD_MAGIC:
        payload = memoryview(decompress(bytes(payload)))
    return json_form.decode(payload) if form.startswith("json") else items.decode(payload)


def _chunks(given: Iterable[items.Item]) -> Iterator[list[items.Item]]:
    """Yield items by so many as make a frame."""
    chunk: list[items.Item] = []
    size_bytes = 0
    for item in given:
        chunk.append(item)
        size_bytes += _weight(item)
        if size_bytes >= _FRAME_BYTES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


def _weight(item: items.Item) -> int:
    match item:
        case items.Entries():
            return sum(len(key) + len(value) for key, value, *_ in item.entries)
        case items.Logged():
            return item.size_bytes
        case _:
            return len(item.space) if isinstance(item, items.SpaceHead | items.Kept) else 0
