"""How much a space holds, measured by reading it."""

from __future__ import annotations

from dataclasses import dataclass

from keepstate.stores.protocol import Store
from keepstate.values.key import BY_KEY, OBJECTS, WITH_VALUES


@dataclass(frozen=True, slots=True)
class SpaceSize:
    """How much a space holds; its log, and what the store needs around each entry, come on top.

    Attributes:
        entries: How many entries, those of queues, events and history included.
        size_bytes: Of their keys and values as they are stored.
    """

    entries: int
    size_bytes: int


async def measure(store: Store, space: str) -> SpaceSize:
    """Return how much a space holds."""
    entries = size_bytes = 0
    for section in (OBJECTS, BY_KEY, WITH_VALUES):
        after: bytes | None = None
        while True:
            page = await store.scan(space, bytes([section]), after=after)
            entries += len(page.entries)
            size_bytes += sum(len(entry.key) + len(entry.value) for entry in page.entries)
            after = page.next
            if after is None:
                break
    return SpaceSize(entries, size_bytes)
