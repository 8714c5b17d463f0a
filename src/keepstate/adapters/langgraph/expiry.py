"""Threads that end when nothing was stored to them for long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keepstate.adapters.langgraph.deletion import is_lost, let_go
from keepstate.adapters.langgraph.queries import Reading, Stored
from keepstate.adapters.langgraph.records import THREADS, Names, short_names, thread_of
from keepstate.adapters.langgraph.saver_state import Keeper
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate

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
        """Return the same for what decodes otherwise."""
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
        """Remove a thread that is over, before it begins anew."""
        if await self.is_over(handle, thread):
            await let_go(self._keeper, handle, thread, self._of_old)

    def _of_old(self, found: Sequence[Stored], now_ms: int) -> set[Names]:
        """Return all checkpoints of a thread if the newest one is too old, and else none."""
        newest_ms = max((stored.record.created_ms for stored in found), default=now_ms)
        is_over = self._ttl_ms is not None and newest_ms < now_ms - self._ttl_ms
        return {stored.names for stored in found} if is_over else set()

    async def sweep(self, handle: Keepstate) -> int:
        """Remove all threads that are over, and return how many; and what came to threads too late."""
        removed = 0
        for space in [space async for space in handle.spaces(THREADS)]:
            thread, is_begun = thread_of(space), await _is_begun(handle, space)
            if await self.is_over(handle, thread) if is_begun else await _is_rest(handle, space):
                done = await let_go(self._keeper, handle, thread, self._of_old)
                removed += is_begun and done.left == 0
        return removed


async def _is_begun(handle: Keepstate, space: str) -> bool:
    """Return whether a thread has a checkpoint."""
    store = await handle.opened()
    return bool((await store.scan(handle.stored_name(space), layout.CHECKPOINTS, limit=1)).entries)


async def _is_rest(handle: Keepstate, space: str) -> bool:
    """Return whether something is left of a thread without checkpoints, and nothing that may get one."""
    store, name = await handle.opened(), handle.stored_name(space)
    page = await store.scan(name, layout.PENDING, limit=_SOME)
    found = await store.read(name, [layout.LETTING_GO])
    return (bool(page.entries) or found.entries[0] is not None) and all(
        is_lost(short_names(entry.key)[1], found.now_ms, None) for entry in page.entries
    )
