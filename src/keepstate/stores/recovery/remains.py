"""The readable and the damaged parts of a store, in the same form for every kind of file.

Nothing here writes to the files that it reads. The content of a `RecoveredStore` was verified by the store's
checksums. Everything else is described by a `Damage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Entry, Leap


class Damage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the store that is not as written."""

    what: str
    place: str = ""
    """The file and the byte in it, if known."""
    space: str | None = None
    key: bytes | None = None


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
