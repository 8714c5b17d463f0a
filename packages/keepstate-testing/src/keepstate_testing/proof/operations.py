"""Operations of a recorded history: the calls of clients on a space, and their answers.

Times are nanoseconds of the machine's monotonic clock, which its processes share. Values are stored as
checksums, so a million operations fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias
from zlib import crc32

import msgspec

from keepstate.stores.protocol import Change, Entry, Put, Write

FOREVER: Final = 2**63 - 1
"""The end of an operation whose answer was lost."""


class Saw(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry as a client saw it; the checksum is None where only its key is known."""

    version: int
    created: int
    expires_at_ms: int | None
    checksum: int | None


class Wrote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One write of a batch; the checksum of a deletion is None."""

    key: bytes
    checksum: int | None
    ttl_ms: int | None = None
    stamp: bool = False


class Demand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch's check of a key: of its version, or of its `created`."""

    key: bytes
    version: int | None
    created: int | None = None


class Took(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer that a batch has taken this revision, at this time of the space."""

    revision: int
    now_ms: int


class Refused(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer that a batch was not applied.

    `actual` is the version found under `key`, or the revision of the space if `key` is None. `reason`
    replaces them if the store was not reached or did not accept the batch. `wall_ms` is the client's clock
    at the answer.
    """

    key: bytes | None
    actual: int
    wall_ms: int
    reason: str | None = None


class Attempt(msgspec.Struct):
    """A batch that a client sent. Without an answer it may have applied, then or later, or not."""

    space: str
    began_ns: int
    writes: list[Wrote]
    checks: list[Demand] = []
    at: int | None = None
    token: bytes = b""
    ended_ns: int = FOREVER
    answer: Took | Refused | None = None
    alive_until_ms: int | None = None


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The keys from `low` on and below `high`; without `high`, all from `low` on."""

    low: bytes
    high: bytes | None


class Look(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a read or a scan: the space's revision, and the entries found or absent.

    `now_ms` is the space's time when it looked, `at_ms` the time at which expiry was judged, if that was
    another one. A scan names the `span` in which it has found all that is there.
    """

    space: str
    began_ns: int
    ended_ns: int
    revision: int
    now_ms: int
    found: dict[bytes, Saw | None]
    span: Span | None = None
    at_ms: int | None = None

    @property
    def judged_ms(self) -> int:
        """The time at which expiry was judged."""
        return self.now_ms if self.at_ms is None else self.at_ms


class LogPage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log's answer about the revisions above `after` up to `upto`, as a checksum of its changes."""

    space: str
    after: int
    upto: int
    checksum: int


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A client's note about its own work, for a check that can read it."""

    space: str
    what: str
    about: str = ""
    number: int = 0


class History(msgspec.Struct):
    """All that is written down of one space, in no order."""

    space: str
    attempts: list[Attempt] = []
    looks: list[Look] = []
    pages: list[LogPage] = []
    notes: list[Note] = []

    @property
    def operations(self) -> int:
        """Return how many batches, reads, scans and pages of the log it holds."""
        return len(self.attempts) + len(self.looks) + len(self.pages)


Histories: TypeAlias = dict[str, History]


def checksum(value: bytes) -> int:
    """Return the form of a value in a history."""
    return crc32(value)


def checksum_of_log(changes: Sequence[Change]) -> int:
    """Return the form of changes in a history."""
    return crc32(msgspec.msgpack.encode(changes))


def saw(entry: Entry) -> Saw:
    """Return the form of an entry in a history."""
    return Saw(entry.version, entry.created, entry.expires_at_ms, crc32(entry.value))


def wrote(write: Write) -> Wrote:
    """Return the form of a write in a history."""
    if isinstance(write, Put):
        return Wrote(write.key, crc32(write.value), write.ttl_ms, write.stamp)
    return Wrote(write.key, None)
