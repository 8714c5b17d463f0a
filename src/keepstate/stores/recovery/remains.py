"""What can still be read of a damaged store, and what cannot: the same for every kind of file.

Nothing here writes to what it reads. What stands in `RecoveredStore` was verified by the checksums that the
store keeps; everything else is named by a `Damage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from keepstate.stores.protocol import Entry, Leap


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place where the store does not hold what was written."""

    what: str
    place: str = ""
    """The file and the byte in it, where there is one."""
    space: str | None = None
    key: bytes | None = None


class SpaceRemains(msgspec.Struct, frozen=True):
    """How far a space had come: at least `revision`, at `now_ms` by its own clock."""

    name: str
    revision: int
    now_ms: int
    exists: bool
    """Whether it holds something; a dropped one does not, and keeps its revision."""
    leap: Leap | None = None
    """The last leap of its time, None where it is lost."""


class RecoveredStore(Protocol):
    """What is whole of a store's files."""

    @property
    def damages(self) -> Sequence[Damage]:
        """Return what is not whole."""
        ...

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces, also dropped ones, in the order of their names' bytes."""
        ...

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield what is whole of a space, in key order, expired or not."""
        ...

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys asked, None for what is absent or not whole."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...
