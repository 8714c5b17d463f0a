"""Copies threads: their history, and the records of their checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from keepstate.adapters.langgraph.queries import Reading, Stored
from keepstate.adapters.langgraph.records import (
    PendingRecord,
    checkpoint_key,
    cut_names,
    packed,
    pending_key,
    pending_prefix,
    read,
    space_of,
    task_of,
)
from keepstate.adapters.langgraph.saver_state import Keeper
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AlreadyExistsError, InvalidError

_BY_BATCH: Final = 200
_BATCH_BYTES: Final = 4 << 20

Puts = list[tuple[bytes, bytes]]


async def copy(keeper: Keeper, handle: Keepstate, source: str, target: str) -> None:
    """Copy all checkpoints of a thread to another one; again, it goes on where it was interrupted.

    Raises:
        AlreadyExistsError: The other has a checkpoint of its own.
    """
    if source == target:
        raise InvalidError(f"thread {source!r} cannot be copied onto itself")
    reading, other = Reading(keeper, handle, source), Reading(keeper, handle, target)
    found = [stored async for stored in reading.records(None)]
    if not found:
        return
    commits = {stored.names[1:]: stored.record.commit for stored in found}
    async for stored in other.records(None):
        if commits.get(stored.names[1:]) != stored.record.commit:
            raise AlreadyExistsError(
                f"thread {target!r} has checkpoint {stored.names.id} already; copy to a new thread"
            )
    executor = keeper.executor(handle, target)
    await handle.space(space_of(source)).history.fork(handle.space(space_of(target)).history)
    batch: Puts = []
    size_bytes = 0
    async for key, value in _entries(reading, found, target):
        if batch and (len(batch) == _BY_BATCH or size_bytes + len(value) > _BATCH_BYTES):
            await _put(executor, batch)
            batch, size_bytes = [], 0
        batch.append((key, value))
        size_bytes += len(value)
    await _put(executor, batch)


async def _entries(reading: Reading, found: list[Stored], target: str) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield what is stored of checkpoints, the oldest first, and before each what was written on it."""
    for stored in reversed(found):
        names = stored.names._replace(thread=target)
        unit = await reading.unit()
        after: bytes | None = None
        while True:
            prefix = pending_prefix(names.line, names.id)
            page = await unit.store.scan(unit.space, prefix, after=after)
            for entry in page.entries:
                written = read(await unit.value(entry), PendingRecord, entry.key)
                yield pending_key(names.line, names.id, task_of(entry.key, written)), packed(written)
            after = page.next
            if after is None:
                break
        record = msgspec.structs.replace(stored.record, names=cut_names(names))
        yield checkpoint_key(names.line, names.id), packed(record)


async def _put(executor: SpaceExecutor, batch: Puts) -> None:
    async def work(unit: Unit) -> None:
        for key, value in batch:
            unit.put(key, value)

    await executor.run(work)
