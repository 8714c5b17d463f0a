"""How much of a journal is durable, noted beside it: one that was cut off must not pass for a short one.

Frames tell a torn end from a damaged one, but not that frames are missing: a journal cut between two of them
is whole. So each flush, once it is durable, notes in the lock file where its frame ends, and who opens the
journal looks for that frame. What follows it is the only thing that a crash may have torn. The first note
is made when the journal's name is durable too: a journal that is noted and not there was removed.

Nobody waits until a note is on the disk: it is exact after a crash of processes. One from before the machine
last started may be any older one. Of the same journal it is a lower bound, for a journal only grows; one that
was written anew since then has another seed, and the note says nothing of it. While a journal is written anew
the note names both, so that it is right whichever stands there after a crash.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final
from zlib import crc32

import msgspec

from keepstate.errors import CorruptError
from keepstate.stores.file.lock import HOLDER_BYTES, ProcessLock
from keepstate.stores.machine import UNKNOWN_START, machine_start

_END: Final = rb"([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})"
_NOTED: Final = re.compile(rb"durable %s or %s since ([0-9a-f-]{36}) ([0-9a-f]{8})\n" % (_END, _END))
_NOTE_BYTES: Final = 149
assert HOLDER_BYTES + _NOTE_BYTES <= 512  # of one sector nothing is torn


NO_FRAME: Final = b"0" * 8


class End(msgspec.Struct, frozen=True):
    """Where the last durable frame of a journal ends."""

    seed: bytes
    size_bytes: int
    crc: bytes
    """The frame's, as its head has it."""

    def __bytes__(self) -> bytes:
        return b"%s %016x %s" % (self.seed.hex().encode(), self.size_bytes, self.crc)


class DurableMark(msgspec.Struct, frozen=True):
    """What a note says."""

    ends: tuple[End, End]
    """Of the journal, and of the one that takes its place; twice the same where there is but one."""
    is_exact: bool
    """Whether the machine has not started anew since then."""

    @classmethod
    def of(cls, line: bytes) -> DurableMark | None:
        """Return what a line says, or None if it is no note."""
        found = _NOTED.match(line)
        if found is None or crc32(found[0][:-10]) != int(found[8], 16):
            return None
        first, second = (
            End(bytes.fromhex(seed.decode()), int(size, 16), crc)
            for seed, size, crc in (found.groups()[:3], found.groups()[3:6])
        )
        return cls((first, second), found[7] == machine_start() != UNKNOWN_START)

    def end_of(self, seed: bytes) -> End | None:
        """Return what must be there of a journal; None if the note does not tell of this one."""
        return next((end for end in self.ends if end.seed == seed), None)


class Note:
    """The note of one journal, in the lock file that the process holds."""

    def __init__(self, lock: ProcessLock, journal: str) -> None:
        self._lock, self._journal = lock, journal
        self._start = machine_start()

    def read(self) -> DurableMark | None:
        """Return what is noted, if something is."""
        if self._lock.descriptor is None:
            return None
        return DurableMark.of(os.pread(self._lock.descriptor, _NOTE_BYTES, HOLDER_BYTES))

    def raise_to(self, end: End) -> None:
        """Note what is durable, or stays with an older note, which is true as well."""
        with suppress(OSError):
            self._write(end, end)

    def announce(self, following: End, now: End | None) -> None:
        """Note that the journal is about to be replaced, if a note stands there; raises `OSError`."""
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


def note_beside(journal: str) -> DurableMark | None:
    """Return what is noted of a journal that somebody else may hold."""
    try:
        # A pipe in its place would hold the reader for ever.
        descriptor = os.open(f"{journal}.lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            told = file.read(HOLDER_BYTES + _NOTE_BYTES) or b""
    except OSError:
        return None
    return DurableMark.of(told[HOLDER_BYTES:])


def cut_off(path: str, whole_bytes: int, end: End) -> CorruptError:
    """Return the error for a journal that lacks what was acknowledged."""
    what = (
        f"was cut off at byte {whole_bytes}, and {path}.lock notes {end.size_bytes} bytes that were durable"
    )
    if whole_bytes >= end.size_bytes:
        what = f"was replaced: another frame ends at byte {end.size_bytes} than {path}.lock notes"
    return _lost(path, what, min(whole_bytes, end.size_bytes))


def replaced(path: str) -> CorruptError:
    """Return the error for another journal in the place of the one that is noted."""
    return _lost(path, f"was replaced: {path}.lock notes another journal", 0)


def removed(path: str, end: End) -> CorruptError:
    """Return the error for a journal that is not there, although a note tells of it."""
    return CorruptError(
        f"{path} was removed, and {path}.lock notes {end.size_bytes} bytes of it that were durable; nothing "
        f"was made: put it or a backup back; to begin with an empty store, remove {path}.lock while nobody "
        "has it open",
        place=path,
    )


def _lost(path: str, what: str, at: int) -> CorruptError:
    return CorruptError(
        f"{path} {what}; the file was not touched: salvage what is whole (`keepstate repair`) or restore a "
        f"backup; where it is one already, remove {path}.lock while nobody has it open",
        place=f"{path} at byte {at}",
    )
