"""Commits read before they are asked for.

A commit names those before it, so a line of them is read one by one: a round trip each. Whoever has gone far
will go on: then all commits of the space are read, as they stand in the store, by a thousand a round trip.
"""

from __future__ import annotations

from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit

_ALONE: Final = 128
"""So many are read one by one before the others are read as well."""
_BYTES: Final = 16 << 20


class CommitPrefetch:
    """Commits as they are stored, by id, until somebody asks for them."""

    def __init__(self) -> None:
        self._stored: dict[bytes, bytes] = {}
        self._asked = 0
        self._is_done = False

    async def take(self, unit: Unit, id: bytes) -> bytes | None:
        """Return a commit's bytes, if they were read ahead; reads ahead when enough were asked for."""
        self._asked += 1
        if self._asked > _ALONE and not self._is_done:
            self._is_done = True
            await self._read(unit)
        return self._stored.pop(id, None)

    async def _read(self, unit: Unit) -> None:
        size_bytes = 0
        after: bytes | None = None
        while size_bytes < _BYTES:
            page = await unit.store.scan(unit.space, layout.COMMITS, after=after, limit=1_024)
            for entry in page.entries:
                self._stored[entry.key[len(layout.COMMITS) :]] = entry.value
                size_bytes += len(entry.value)
            after = page.next
            if after is None:
                return
