"""The journal file: durable frames are appended, read back on opening, and rewritten when it has grown.

Invariants: a frame counts only after the system confirmed that it is on the disk. A file that cannot be
parsed is not changed. After a failed sync nothing is written, because the content of the disk is unknown.
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
from keepstate.stores.file.durable_mark import (
    NO_FRAME,
    End,
    MarkFile,
    cut_off_error,
    removed_error,
    replaced_error,
)
from keepstate.stores.file.frames import Format, Head, crc_of, frames
from keepstate.stores.file.io import Files, storage_error
from keepstate.values.compression import compress, decompress

_SEED_BYTES: Final = 8
_FRAME_BYTES: Final = 64 << 10
"""Size of a frame in a rewritten journal, and so the most that one damage loses, except for larger values."""
_LEAST_GROWTH_BYTES: Final = 4 << 20
ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
"""The start of a compressed payload; no payload of JSON or msgpack items has it (RFC 8878, section 3.1.1)."""
_log = logging.getLogger("keepstate.stores")


_REPLAY_ERRORS: Final = (
    msgspec.MsgspecError,
    ValueError,
    LookupError,
    TypeError,
    RecursionError,
    AssertionError,
)
"""Errors of decoding a whole frame whose items keepstate did not write."""


class Journal:
    """One open journal file.

    Args:
        path: The file, absolute and without links; created if it is absent.
        files: The operating system.
        clock: The source of seeds.
        mark_file: The note of the journal's durable length.
    """

    def __init__(self, path: str, files: Files, clock: Clock, mark_file: MarkFile) -> None:
        self.path, self._files, self._clock, self._mark_file = path, files, clock, mark_file
        self._head = self._next_head = Head("msgpack", b"")
        self._end: End | None = None
        self._descriptor = -1
        self._size_bytes = 0
        self._snapshot_bytes = 0
        self._broken: str | None = None

    @property
    def format(self) -> Format:
        """The format of the journal's frames."""
        return self._head.format

    # ---- opening and closing

    def open(self, replay: Callable[[items.Item], None], form: Format) -> None:
        """Read the journal, cut off a torn end, and make the rest durable.

        Raises:
            CorruptError: The file was removed, is damaged or is not a journal. It was not changed.
            UnsupportedError: A later keepstate wrote it.
        """
        try:
            data = self._read()
            if not data:
                self._create(form)
                return
            self._load(data, Head.of(data, self.path), replay)
            with suppress(FileNotFoundError):
                self._files.remove(self._next_path)  # left by a crash in a rewrite
            self._settle()
        except OSError as error:
            self.close()
            raise storage_error(error, self.path) from error
        except BaseException:
            self.close()
            raise

    def _create(self, form: Format) -> None:
        noted = self._mark_file.read()
        if noted is not None:
            end = noted.ends[0]
            raise cut_off_error(self.path, 0, end) if self._descriptor >= 0 else removed_error(self.path, end)
        self.rewrite([], form)

    def reread(self, replay: Callable[[items.Item], None]) -> None:
        """Read the journal again after an interrupt; the whole frames on the disk are the state.

        Raises:
            CorruptError: The file was removed or replaced since, or is damaged.
        """
        self.close()
        try:
            data = self._read()
            head = Head.of(data, self.path) if data else None
            if head is None or head.seed not in (self._head.seed, self._next_head.seed):
                raise self._replaced_error()
            self._load(data, head, replay)
        except OSError as error:
            raise storage_error(error, self.path) from error
        self._settle()

    def _settle(self) -> None:
        """Make the name durable, which an interrupted rewrite may have skipped, and note the end."""
        self._sync_folder()
        if self._end is not None:
            self._mark_file.raise_to(self._end)

    def _load(self, data: bytes, head: Head, replay: Callable[[items.Item], None]) -> None:
        self._head = self._next_head = head
        self._size_bytes = self._snapshot_bytes = len(bytes(head))
        noted_end = self._noted_end(head)
        self._end = End(head.seed, self._size_bytes, NO_FRAME)
        is_found = noted_end in (None, self._end)
        for size_bytes, payload in frames(head, data, self.path):
            self._replay(payload, replay, size_bytes)
            self._end = End(head.seed, size_bytes, crc_of(data, self._size_bytes))
            self._size_bytes = size_bytes
            is_found = is_found or self._end == noted_end
        if noted_end is not None and not is_found:
            raise cut_off_error(self.path, self._size_bytes, noted_end)
        if self._size_bytes < len(data):
            _log.warning(
                "%s ended at byte %d with %d bytes of a write that a crash cut short. They were cut off.",
                self.path,
                self._size_bytes,
                len(data) - self._size_bytes,
            )
            self._files.truncate(self._descriptor, self._size_bytes)
        self._files.sync(self._descriptor)

    def _noted_end(self, head: Head) -> End | None:
        """Return the noted end of this journal, or None."""
        noted = self._mark_file.read()
        noted_end = None if noted is None else noted.end_of(head.seed)
        if noted is not None and noted.is_exact and noted_end is None:
            raise replaced_error(self.path)
        return noted_end

    def _read(self) -> bytes:
        try:
            self._descriptor = self._files.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return b""
        return self._files.read(self._descriptor)

    def _replay(self, payload: memoryview, replay: Callable[[items.Item], None], end: int) -> None:
        location = f"{self.path} at byte {self._size_bytes}"
        try:
            for item in decode_items(payload, self.format):
                if isinstance(item, items.SnapshotEnd):
                    self._snapshot_bytes = end
                else:
                    replay(item)
        except (*_REPLAY_ERRORS, KeepstateError) as error:
            raise CorruptError(
                f"{location} has a whole frame with invalid items ({error}). The file was not changed. "
                "Restore a backup, or report this.",
                place=location,
            ) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)

    # ---- writing

    def append(self, given: Iterable[items.Item]) -> None:
        """Append items as one frame, and return when it is on the disk.

        Raises:
            StoreFullError: There is no room. Nothing was written.
            OutcomeUnknownError: The disk failed. It may or may not hold the frame.
            CorruptError: The file was removed, replaced or cut off. The frame is not acknowledged.
            StorageError: An earlier failure closed the journal for writing.
        """
        if self._broken is not None:
            raise StorageError(
                f"{self.path} takes no more writes: {self._broken}. Close the store and open it again."
            )
        self._require_length(self._size_bytes)
        frame = self._head.frame(encode_items(list(given), self.format), self._size_bytes)
        try:
            self._write(self._descriptor, frame, self._size_bytes)
        except OSError as error:
            self._truncate_back()
            raise storage_error(error, self.path) from error
        self._sync()
        self._require_length(self._size_bytes + len(frame))
        self._size_bytes += len(frame)
        self._end = End(self._head.seed, self._size_bytes, crc_of(frame))
        self._mark_file.raise_to(self._end)

    def _write(self, descriptor: int, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            taken = self._files.write(descriptor, rest, at)
            rest, at = rest[taken:], at + taken

    def _truncate_back(self) -> None:
        try:
            self._files.truncate(self._descriptor, self._size_bytes)
        except OSError as error:
            self._broken = f"a partial write could not be cut off ({error.strerror})"

    def _sync(self) -> None:
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            # A second sync would prove nothing: the system may have dropped what it could not write.
            self._broken = f"the disk failed ({error.strerror})"
            raise OutcomeUnknownError(
                f"The disk failed while {self.path} was made durable ({error.strerror}). It may or may not "
                "hold the last batches. The journal takes no more writes. Open it again to find out."
            ) from error
        if not self._files.is_at(self._descriptor, self.path):
            raise self._replaced_error()

    def _require_length(self, size_bytes: int) -> None:
        """Raise `CorruptError` if another program has changed the length of the file.

        A write beyond the end of a truncated file fills the gap with zeros, and the length is right again. So
        the last byte before the write is read too: the head and each frame end with a line feed.
        """
        found = self._files.size_bytes(self._descriptor)
        last = self._files.read_at(self._descriptor, self._size_bytes - 1, 1)
        if found == size_bytes and last == b"\n":
            return
        self._broken = "another program cut it off or wrote to it"
        raise CorruptError(
            f"{self.path} was cut off or written to by another program while open ({found} bytes instead of "
            f"{size_bytes}). No further write is acknowledged. Find that program, close the store, and save "
            "what is whole with `keepstate repair`.",
            place=f"{self.path} at byte {min(found, size_bytes)}",
        )

    def _replaced_error(self) -> CorruptError:
        self._broken = "it was removed or replaced while open"
        return CorruptError(
            f"{self.path} was removed or replaced while open. Writes since then are lost. Find the program "
            "that did this, and open the store again.",
            place=self.path,
        )

    # ---- rewriting

    @property
    def has_grown(self) -> bool:
        """Return whether a rewrite is worth its cost, by the bytes appended since the last one."""
        growth = self._size_bytes - self._snapshot_bytes
        return growth > max(_LEAST_GROWTH_BYTES, 2 * self._snapshot_bytes)

    def postpone(self) -> None:
        """Postpone the next rewrite until the journal has grown by as much again."""
        self._snapshot_bytes = self._size_bytes

    def rewrite(self, given: Iterable[items.Item], form: Format) -> None:
        """Replace the journal, atomically and durably, by a new one that starts with these items.

        Raises:
            StorageError: The rewrite failed. The journal is unchanged.
        """
        head = self._next_head = Head(form, self._clock.random_bytes(_SEED_BYTES))
        descriptor = -1
        try:
            descriptor = self._create_next()
            end = self._write_snapshot(descriptor, head, given)
            self._files.sync(descriptor)
            self._mark_file.announce(end, self._end)
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

    def _create_next(self) -> int:
        """Create the file that will replace the journal, removing any file of that name."""
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
    """Encode items as the payload of a frame."""
    payload = json_form.encode(given) if form.startswith("json") else items.encode(given)
    return (compress(payload) or payload) if form.endswith("zstd") else payload


def decode_items(payload: memoryview, form: Format) -> list[items.Item]:
    """Decode the items of a frame's payload.

    Raises:
        msgspec.MsgspecError: The payload does not hold items of a journal.
        CorruptError: The payload cannot be decompressed.
    """
    if form.endswith("zstd") and bytes(payload[:4]) == ZSTD_MAGIC:
        payload = memoryview(decompress(bytes(payload)))
    return json_form.decode(payload) if form.startswith("json") else items.decode(payload)


def _chunks(given: Iterable[items.Item]) -> Iterator[list[items.Item]]:
    """Yield chunks of items, each for one frame."""
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
            return len(item.space) if isinstance(item, items.SpaceHead | items.RetryOutcome) else 0
