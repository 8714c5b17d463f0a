"""Threads that end when nothing was stored to them for long."""

from __future__ import annotations

from typing import Final

from keepstate.adapters.langgraph.keeping import Keeper
from keepstate.adapters.langgraph.letting_go import delete, is_lost
from keepstate.adapters.langgraph.reading import Reading
from keepstate.adapters.langgraph.records import THREADS, short_names, thread_of
from keepstate.engine import layout
from keepstate.engine.keepstate import Keepstate

_SOME: Final = 64


class Expiry:
    """Tells which threads have outlived their time to live, and removes them.

    Args:
        keeper: What is at hand.
        ttl_ms: The time from the newest checkpoint on; None for ever.
    """

    def __init__(self, keeper: Keeper, ttl_ms: int | None) -> None:
        self._keeper, self._ttl_ms = keeper, ttl_ms

    def with_keeper(self, keeper: Keeper) -> Expiry:
        """Returns the same for what decodes otherwise."""
        return Expiry(keeper, self._ttl_ms)

    async def is_over(self, handle: Keepstate, thread: str) -> bool:
        """Whether nothing was stored to a thread within its time to live, in whatever namespace."""
        if self._ttl_ms is None:
            return False
        reading = Reading(self._keeper, handle, thread)
        since_ms = await (await reading.unit()).now_ms() - self._ttl_ms
        root = await reading.latest("")
        if root is not None and root.record.created_ms >= since_ms:
            return False
        is_there = False
        async for stored in reading.records(None):  # a subgraph may be at work for long
            if stored.record.created_ms >= since_ms:
                return False
            is_there = True
        return is_there

    async def end(self, handle: Keepstate, thread: str) -> None:
        """Removes a thread that is over, before it begins anew."""
        if await self.is_over(handle, thread):
            await delete(self._keeper, handle, thread)

    async def sweep(self, handle: Keepstate) -> int:
        """Removes all threads that are over, and returns how many; and what came to threads too late."""
        removed = 0
        for space in [space async for space in handle.spaces(THREADS)]:
            thread = thread_of(space)
            if await self.is_over(handle, thread):
                await delete(self._keeper, handle, thread)
                removed += 1
            elif await _is_rest(handle, space):
                await delete(self._keeper, handle, thread, unless_begun=True)
        return removed


async def _is_rest(handle: Keepstate, space: str) -> bool:
    """Returns whether of a thread only writes are left whose checkpoints will never be there."""
    store, name = await handle.opened(), handle.namespace + space
    if (await store.scan(name, layout.CHECKPOINTS, limit=1)).entries:
        return False
    page = await store.scan(name, layout.PENDING, limit=_SOME)
    now_ms = (await store.read(name, [])).now_ms
    return bool(page.entries) and all(
        is_lost(short_names(entry.key)[1], now_ms, None) for entry in page.entries
    )
