"""Whole threads: copies of them, and their expiry when nothing was stored for long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from keepstate.adapters.langgraph.deletion import delete_checkpoints, is_orphaned
from keepstate.adapters.langgraph.queries import Stored, ThreadReader
from keepstate.adapters.langgraph.records import (
    THREADS,
    Names,
    checkpoint_key,
    cut_names,
    encode,
    pending_key,
    short_names,
    space_of,
    task_of,
    thread_of,
)
from keepstate.adapters.langgraph.saver_state import SaverState
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AlreadyExistsError, InvalidError

_BY_BATCH: Final = 200
_BATCH_BYTES: Final = 4 << 20
_SOME: Final = 64

Puts = list[tuple[bytes, bytes]]


# ---- copies


async def copy(state: SaverState, handle: Keepstate, source: str, target: str) -> None:
    """Copy all checkpoints of a thread to another one; an interrupted copy can be repeated.

    Raises:
        AlreadyExistsError: The other thread has a checkpoint of its own.
    """
    if source == target:
        raise InvalidError(f"thread {source!r} cannot be copied onto itself")
    reader, other = ThreadReader(state, handle, source), ThreadReader(state, handle, target)
    found = [stored async for stored in reader.records(None)]
    if not found:
        return
    commits = {stored.names[1:]: stored.record.commit for stored in found}
    async for stored in other.records(None):
        if commits.get(stored.names[1:]) != stored.record.commit:
            raise AlreadyExistsError(
                f"thread {target!r} already has checkpoint {stored.names.id}; copy to a new thread"
            )
    executor = state.executor(handle, target)
    await handle.space(space_of(source)).history.fork(handle.space(space_of(target)).history)
    batch: Puts = []
    size_bytes = 0
    async for key, value in _entries(reader, found, target):
        if batch and (len(batch) == _BY_BATCH or size_bytes + len(value) > _BATCH_BYTES):
            await _put(executor, batch)
            batch, size_bytes = [], 0
        batch.append((key, value))
        size_bytes += len(value)
    await _put(executor, batch)


async def _entries(
    reader: ThreadReader, found: list[Stored], target: str
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the entries of checkpoints, the oldest first, each after the writes on it."""
    for stored in reversed(found):
        names = stored.names._replace(thread=target)
        async for key, written in reader.writes(names):
            yield pending_key(names.line, names.id, task_of(key, written)), encode(written)
        record = msgspec.structs.replace(stored.record, names=cut_names(names))
        yield checkpoint_key(names.line, names.id), encode(record)


async def _put(executor: SpaceExecutor, batch: Puts) -> None:
    async def work(unit: Unit) -> None:
        for key, value in batch:
            unit.put(key, value)

    await executor.run(work)


# ---- expiry


class Expiry:
    """The time to live of threads.

    Args:
        ttl_ms: The time to live after the newest checkpoint; None for no limit.
    """

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    async def is_over(self, state: SaverState, handle: Keepstate, thread: str) -> bool:
        """Return whether no namespace of a thread has a checkpoint within the time to live."""
        if self._ttl_ms is None:
            return False
        reader = ThreadReader(state, handle, thread)
        since_ms = await (await reader.unit()).now_ms() - self._ttl_ms
        root = await reader.latest("")
        if root is not None and root.record.created_ms >= since_ms:
            return False
        is_there = False
        async for stored in reader.records(None):  # a subgraph may work for long
            if stored.record.created_ms >= since_ms:
                return False
            is_there = True
        return is_there

    async def end(self, state: SaverState, handle: Keepstate, thread: str) -> None:
        """Remove an expired thread before it begins again."""
        if await self.is_over(state, handle, thread):
            await delete_checkpoints(state, handle, thread, self._expired)

    def _expired(self, found: Sequence[Stored], now_ms: int) -> set[Names]:
        """Return all checkpoints of a thread if the newest one is too old, and none otherwise."""
        newest_ms = max((stored.record.created_ms for stored in found), default=now_ms)
        is_over = self._ttl_ms is not None and newest_ms < now_ms - self._ttl_ms
        return {stored.names for stored in found} if is_over else set()

    async def sweep(self, state: SaverState, handle: Keepstate) -> int:
        """Remove all expired threads, and writes that came after them. Return the number of threads."""
        removed = 0
        for space in [space async for space in handle.spaces(THREADS)]:
            thread, is_begun = thread_of(space), await _is_begun(handle, space)
            if await self.is_over(state, handle, thread) if is_begun else await _is_rest(handle, space):
                done = await delete_checkpoints(state, handle, thread, self._expired)
                removed += is_begun and done.left == 0
        return removed


async def _is_begun(handle: Keepstate, space: str) -> bool:
    """Return whether a thread has a checkpoint."""
    store = await handle.opened()
    return bool((await store.scan(handle.stored_name(space), layout.CHECKPOINTS, limit=1)).entries)


async def _is_rest(handle: Keepstate, space: str) -> bool:
    """Return whether a thread without checkpoints has data, and no write that may still get a checkpoint."""
    store, name = await handle.opened(), handle.stored_name(space)
    page = await store.scan(name, layout.PENDING, limit=_SOME)
    found = await store.read(name, [layout.LETTING_GO])
    return (bool(page.entries) or found.entries[0] is not None) and all(
        is_orphaned(short_names(entry.key)[1], found.now_ms, None) for entry in page.entries
    )
