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

_decoder: Final = msgspec.msgpack.Decoder(dict[bytes, tuple[int, int]])


class PartSizes:
    """The number of entries and bytes of each part."""

    __slots__ = ("_parts",)

    def __init__(self, parts: dict[bytes, tuple[int, int]] | None = None) -> None:
        self._parts: dict[bytes, tuple[int, int]] = {} if parts is None else parts

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
        return cls(_decoder.decode(stored) if stored else None)

    def encode(self) -> bytes:
        """Encode the sizes for storing; parts that are empty now are included."""
        return msgspec.msgpack.encode(self._parts)

    def count(self, key: bytes, entries: int, size_bytes: int) -> None:
        """Add entries and bytes to the part of a key, or subtract them."""
        part, parts = part_of(key), self._parts
        known = parts.get(part)
        if known is None:
            if len(parts) >= limits.COUNTED_PARTS:
                part = key[:1]
            known = parts.get(part, (0, 0))
        parts[part] = known[0] + entries, known[1] + size_bytes

    def without(self, expired: Iterable[tuple[bytes, int]]) -> Mapping[bytes, PartSize]:
        """Return the parts that are not empty, without expired entries: keys and lengths of values."""
        left = PartSizes(dict(self._parts))
        for key, value_bytes in expired:
            left.count(key, -1, -len(key) - value_bytes)
        return {part: PartSize(*size) for part, size in left._parts.items() if size[0]}

    def emptied(self) -> PartSizes:
        """Return the same parts without entries, to count entries again by the same rule."""
        return PartSizes(dict.fromkeys(self._parts, (0, 0)))

    def differing(self, other: PartSizes) -> list[bytes]:
        """Return the parts of which another count has a different size."""
        mine, theirs, none = self._parts, other._parts, (0, 0)
        return [part for part in sorted({*mine, *theirs}) if mine.get(part, none) != theirs.get(part, none)]
