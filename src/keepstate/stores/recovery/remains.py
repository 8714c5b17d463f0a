"""The readable and the damaged parts of a store, in the same form for every kind of file.

Nothing here writes to the files that it reads. The content of a `RecoveredStore` was verified by the store's
checksums. Everything else is described by a `Damage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from keepstate.stores.clock_leaps import LEAP_MS
from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Entry, Leap

_MINUTE_MS: Final = 60_000


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the store that is not as written."""

    what: str
    place: str = ""
    """The file and the byte in it, if known."""
    space: str | None = None
    key: bytes | None = None


class RevisionTimes:
    """The times of the revisions in a space's log: the first revision of each minute."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}

    def add(self, revision: int, at_ms: int) -> None:
        """Add a revision of the log, in any order."""
        minute = at_ms // _MINUTE_MS
        self._first[minute] = min(revision, self._first.get(minute, revision))

    def split(self, at_ms: int) -> tuple[int, int | None]:
        """Return the last revision known to be up to a time, or 0, and the first known to be later."""
        before = [revision for minute, revision in self._first.items() if minute * _MINUTE_MS <= at_ms]
        after = [revision for minute, revision in self._first.items() if minute * _MINUTE_MS > at_ms]
        return max(before, default=0), min(after, default=None)


class SpaceRemains(msgspec.Struct, frozen=True):
    """The recovered state of a space: at least `revision`, at `now_ms` by its own clock."""

    name: str
    revision: int
    now_ms: int
    exists: bool
    """Whether the space is not empty. A dropped space is empty and keeps its revision."""
    leap: Leap | None = None
    """The last leap of its time, or None if that is lost."""
    sizes: PartSizes | None = None
    """The sizes of its parts as stored, None if they are lost or the store keeps none in its files."""
    times: RevisionTimes | None = None
    """The times of the revisions in its log, None if the log was not read."""

    def clock_bounds(self, clock_ms: int) -> tuple[int, int | None]:
        """Return the last revision known to be by a right clock, and the first by one that was ahead.

        A time up to an hour ahead counts as right. A leap to such a time is not why the space is ahead.
        """
        right_ms = clock_ms + LEAP_MS
        right_until, wrong_since = (self.times or RevisionTimes()).split(right_ms)
        if self.leap is not None and self.leap.to_ms <= right_ms:
            right_until = max(right_until, self.leap.revision)
        elif self.leap is not None:
            wrong_since = min(self.leap.revision, wrong_since or self.leap.revision)
            if self.leap.from_ms <= right_ms:
                right_until = self.leap.revision - 1
        return right_until, wrong_since


class RecoveredStore(Protocol):
    """The whole parts of a store's files."""

    @property
    def damages(self) -> Sequence[Damage]:
        """Return the damages."""
        ...

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces, dropped ones included, in the order of their names' bytes."""
        ...

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield the whole entries of a space, in key order, expired ones included."""
        ...

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys, None for absent and damaged ones."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...
