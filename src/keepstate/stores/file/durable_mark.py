"""The durable length of a journal, noted next to it, so that a truncated journal is never taken for whole.

Frames tell a torn end from a damaged one, but they do not show that frames are missing: a journal cut between
two frames is whole. So after each durable flush the lock file notes where its frame ends, and the next
opening looks for that frame. Only bytes after it may have been torn by a crash. The first note is made once
the journal's name is durable too, so a journal that is noted and absent was removed.

A note is not synced: it is exact after a crash of processes. A note from before the machine's last start may
be any older one. For the same journal it is a lower bound, because a journal only grows. A journal that was
rewritten since has another seed, and the note does not apply to it. During a rewrite the note names both
journals, so it is right for either of them after a crash.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final
from zlib import crc32

import msgspec

from keepstate.errors import CorruptError
from keepstate.stores.file.io import HOLDER_BYTES, ProcessLock
from keepstate.stores.local_files import UNKNOWN_START, machine_start

_END: Final = rb"([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})"
_NOTED: Final = re.compile(rb"durable %s or %s since ([0-9a-f-]{36}) ([0-9a-f]{8})\n" % (_END, _END))
_NOTE_BYTES: Final = 149
assert HOLDER_BYTES + _NOTE_BYTES <= 512  # one sector is never torn


NO_FRAME: Final = b"0" * 8


class End(msgspec.Struct, frozen=True):
    """The end of the last durable frame of a journal."""

    seed: bytes
    size_bytes: int
    crc: bytes
    """The checksum of the frame, as in its head."""

    def __bytes__(self) -> bytes:
        return b"%s %016x %s" % (self.seed.hex().encode(), self.size_bytes, self.crc)


class DurableMark(msgspec.Struct, frozen=True):
    """The content of a note."""

    ends: tuple[End, End]
    """The ends of the journal and of its replacement; twice the same if there is no replacement."""
    is_exact: bool
    """Whether the machine has not restarted since the note."""

    @classmethod
    def of(cls, line: bytes) -> DurableMark | None:
        """Parse a line; return None if it is not a note."""
        found = _NOTED.match(line)
        if found is None or crc32(found[0][:-10]) != int(found[8], 16):
            return None
        first, second = (
            End(bytes.fromhex(seed.decode()), int(size, 16), crc)
            for seed, size, crc in (found.groups()[:3], found.groups()[3:6])
        )
        return cls((first, second), found[7] == machine_start() != UNKNOWN_START)

    def end_of(self, seed: bytes) -> End | None:
        """Return the noted end of the journal with this seed; None if the note belongs to another journal."""
        return next((end for end in self.ends if end.seed == seed), None)


class MarkFile:
    """The note of one journal, stored in the lock file that this process holds."""

    def __init__(self, lock: ProcessLock, journal: str) -> None:
        self._lock, self._journal = lock, journal
        self._start = machine_start()

    def read(self) -> DurableMark | None:
        """Return the note, or None if there is none."""
        if self._lock.descriptor is None:
            return None
        return DurableMark.of(os.pread(self._lock.descriptor, _NOTE_BYTES, HOLDER_BYTES))

    def raise_to(self, end: End) -> None:
        """Note a durable end. If that fails, the older note stays, which is true as well."""
        with suppress(OSError):
            self._write(end, end)

    def announce(self, following: End, now: End | None) -> None:
        """Note, if there is a note, that the journal is about to be replaced; raises `OSError`."""
        if self.read() is not None:
            self._write(now or following, following)

    def _write(self, end: End, following: End) -> None:
        if self._lock.descriptor is not None:
            now = bytes(end)
            line = b"durable %s or %s since %s" % (
                now,
                now if following is end else bytes(following),
                self._start,
            )
            os.pwrite(self._lock.descriptor, b"%s %08x\n" % (line, crc32(line)), HOLDER_BYTES)


def read_mark_file(journal: str) -> DurableMark | None:
    """Return the note of a journal that another process may hold, or None."""
    try:
        # Without O_NONBLOCK a pipe of this name would block the reader forever.
        descriptor = os.open(f"{journal}.lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            line = file.read(HOLDER_BYTES + _NOTE_BYTES) or b""
    except OSError:
        return None
    return DurableMark.of(line[HOLDER_BYTES:])


def cut_off_error(path: str, whole_bytes: int, end: End) -> CorruptError:
    """Return the error for a journal without frames that were acknowledged."""
    noted = f"{path}.lock notes {end.size_bytes} bytes that were durable"
    what = f"was cut off at byte {whole_bytes}, and {noted}"
    if whole_bytes >= end.size_bytes:
        what = f"was replaced: the frame that ends at byte {end.size_bytes} is not the noted one"
    return _lost_error(path, what, min(whole_bytes, end.size_bytes))


def replaced_error(path: str) -> CorruptError:
    """Return the error for a journal that is not the noted one."""
    return _lost_error(path, f"was replaced: {path}.lock notes another journal", 0)


def removed_error(path: str, end: End) -> CorruptError:
    """Return the error for a journal that is absent although it is noted."""
    return CorruptError(
        f"{path} was removed: {path}.lock notes {end.size_bytes} bytes of it that were durable. Nothing "
        f"was created. Put the file or a backup back. To begin with an empty store, remove {path}.lock "
        "while no process has the store open.",
        place=path,
    )


def _lost_error(path: str, what: str, at: int) -> CorruptError:
    return CorruptError(
        f"{path} {what}. The file was not changed. Salvage what is whole (`keepstate repair`) or restore a "
        f"backup. If it is a backup already, remove {path}.lock while no process has the store open.",
        place=f"{path} at byte {at}",
    )
