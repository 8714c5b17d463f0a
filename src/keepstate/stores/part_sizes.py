"""Sizes of the parts of one space, kept up to date by its store with every write and removal.

Invariant: which part a key counts for depends on the key and on the parts that are known already. A part is
never forgotten, so an entry is subtracted from the part to which it was added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from keepstate.stores.protocol import Entry, PartSize
from keepstate.values import limits
from keepstate.values.key import part_of

_NUMBERS: Final = 2
_decoder: Final = msgspec.msgpack.Decoder(dict[bytes, list[int]])


class PartSizes:
    """The number of entries and bytes of each part."""

    __slots__ = ("_most", "_parts")

    def __init__(
        self, parts: dict[bytes, list[int]] | None = None, *, most: int = limits.COUNTED_PARTS
    ) -> None:
        self._parts: dict[bytes, list[int]] = {} if parts is None else parts
        self._most = most

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> PartSizes:
        """Count entries."""
        sizes = cls()
        for entry in entries:
            sizes.count(entry.key, 1, len(entry.key) + len(entry.value))
        return sizes

    @classmethod
    def decode(cls, stored: bytes) -> PartSizes:
        """Decode sizes that `encode` returned.

        Raises:
            msgspec.MsgspecError: The bytes are not sizes.
        """
        parts = _decoder.decode(stored) if stored else {}
        if any(len(size) != _NUMBERS for size in parts.values()):
            raise msgspec.ValidationError("a part has a number of entries and of bytes")
        return cls(parts)

    def encode(self) -> bytes:
        """Encode the sizes for storing; parts that are empty now are included."""
        return msgspec.msgpack.encode(self._parts)

    def count(self, key: bytes, entries: int, size_bytes: int) -> None:
        """Add entries and bytes to the part of a key, or subtract them."""
        part = part_of(key)
        size = self._parts.get(part)
        if size is None:
            size = self._size_of_new(part)
        size[0] += entries
        size[1] += size_bytes

    def _size_of_new(self, part: bytes) -> list[int]:
        if len(self._parts) >= self._most:
            part = part[:1]
        return self._parts.setdefault(part, [0, 0])

    def without(self, expired: Iterable[tuple[bytes, int]]) -> Mapping[bytes, PartSize]:
        """Return the parts that are not empty, without expired entries: keys and lengths of values."""
        left = PartSizes({part: [*size] for part, size in self._parts.items()})
        for key, value_bytes in expired:
            left.count(key, -1, -len(key) - value_bytes)
        return {part: PartSize(*size) for part, size in left._parts.items() if size[0]}

    def emptied(self) -> PartSizes:
        """Return the same parts without entries, to count entries again by the same rule.

        An entry of any other part counts for its section. It does so if the store knew 64 parts when it came,
        of which some may be empty now, and unknown to a reader.
        """
        return PartSizes({part: [0, 0] for part in self._parts}, most=0)

    def differing(self, other: PartSizes) -> list[bytes]:
        """Return the parts of which another count has a different size."""
        mine, theirs, none = self._parts, other._parts, [0, 0]
        return [part for part in sorted({*mine, *theirs}) if mine.get(part, none) != theirs.get(part, none)]
