"""Sorted indexes in memory: the keys of a space, and the spaces of a store by name.

Keys are in chunks, so adding and removing a key costs the same at a million keys as at a thousand. A single
sorted list would move half of its items for each new key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Protocol, TypeVar

_CHUNK = 1024


class MayExist(Protocol):
    """A space that may be empty."""

    @property
    def exists(self) -> bool:
        """Return whether a batch was applied since the space was new or last dropped."""
        ...


S = TypeVar("S", bound=MayExist)


class KeyIndex:
    """An ordered set of keys."""

    __slots__ = ("_chunks", "_lasts")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._lasts: list[bytes] = []

    def add(self, key: bytes) -> None:
        """Add a key that is absent."""
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        if key > self._lasts[-1]:  # stamped keys and counters come in order
            index = len(self._chunks) - 1
            self._chunks[index].append(key)
            self._lasts[index] = key
        else:
            index = bisect_left(self._lasts, key)
            insort(self._chunks[index], key)
        if len(self._chunks[index]) > 2 * _CHUNK:
            self._split(index)

    def _split(self, index: int) -> None:
        chunk = self._chunks[index]
        half = len(chunk) // 2
        self._chunks[index : index + 1] = [chunk[:half], chunk[half:]]
        self._lasts[index : index + 1] = [chunk[half - 1], chunk[-1]]

    def remove(self, key: bytes) -> None:
        """Remove a key that is present."""
        index = bisect_left(self._lasts, key)
        chunk = self._chunks[index]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._lasts[index] = chunk[-1]
        else:
            del self._chunks[index], self._lasts[index]

    def upwards(self, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
        """Yield keys that start with `prefix` and lie above `after`, lowest first."""
        start = prefix if after is None else after + b"\0"  # the least key above `after`
        for index in range(bisect_left(self._lasts, start), len(self._chunks)):
            chunk = self._chunks[index]
            for i in range(bisect_left(chunk, start), len(chunk)):
                if not chunk[i].startswith(prefix):
                    return
                yield chunk[i]

    def downwards(self, prefix: bytes, after: bytes | None) -> Iterator[bytes]:
        """Yield keys that start with `prefix` and lie below `after`, highest first."""
        for index in range(self._last_chunk(prefix, after), -1, -1):
            chunk = self._chunks[index]
            for i in range(self._last_position(chunk, prefix, after), -1, -1):
                if not chunk[i].startswith(prefix):
                    return
                yield chunk[i]

    def _last_chunk(self, prefix: bytes, after: bytes | None) -> int:
        top = len(self._chunks) - 1
        if after is not None:
            return min(bisect_left(self._lasts, after), top)
        return min(bisect_right(self._lasts, prefix, key=lambda key: key[: len(prefix)]), top)

    @staticmethod
    def _last_position(chunk: list[bytes], prefix: bytes, after: bytes | None) -> int:
        if after is not None:
            return bisect_left(chunk, after) - 1
        return bisect_right(chunk, prefix, key=lambda key: key[: len(prefix)]) - 1


class SpaceTable(dict[str, S]):
    """Spaces by name. None is ever removed, so the names are sorted once and not for each page."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        """The names at the last listing, sorted."""

    def page(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """Return the names of spaces that are not empty, in the order of their UTF-8 bytes."""
        if len(self._names) != len(self):
            names = [*self._names, *islice(self, len(self._names), None)]  # the new ones come last in a dict
            names.sort()
            self._names = names  # at once, so that an interrupt does no harm
        names = self._names
        start = bisect_left(names, prefix)
        if after is not None:
            start = max(start, bisect_right(names, after))
        found: list[str] = []
        for index in range(start, len(names)):
            name = names[index]
            if len(found) == limit or not name.startswith(prefix):
                break
            if self[name].exists:
                found.append(name)
        return found
