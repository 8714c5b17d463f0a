"""Deletes checkpoints of a thread and the data that only they use, and whole threads, while others write.

The order is: a checkpoint's record, the writes on it, the rest of its commit, each in as many batches as
necessary. So a reader that finds a record finds all its data. An entry marks a deletion that has begun; the
next deletion finishes an interrupted one.

Other processes store checkpoints at the same time. So a record is deleted only if it has not changed since
it was chosen, and children are deleted before their parents. A new checkpoint that needs older ones rewrites
its parent's record, and then the deletion chooses again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence, Set
from typing import Final
from uuid import UUID

import msgspec

from keepstate.adapters.langgraph.interrupts import erase, is_own, withdraw_deleted
from keepstate.adapters.langgraph.put import FORKS, LINES, RECORDED_MAIN, fork_name
from keepstate.adapters.langgraph.queries import Stored, ThreadReader, list_threads
from keepstate.adapters.langgraph.records import (
    CheckpointRecord,
    Names,
    checkpoint_key,
    decode,
    names_of,
    short_names,
    space_of,
)
from keepstate.adapters.langgraph.saver_state import SaverState
from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.history.record import Head, heads, put_head
from keepstate.engine.history.retention import Keeping, collect_history, prune
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.grants import checks_for
from keepstate.engine.kernel.large_values import collect_parts
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AttemptsExhaustedError
from keepstate.names import shorten
from keepstate.stores.protocol import Entry, Store

_LOG: Final = logging.getLogger("keepstate.adapters.langgraph")

Choose = Callable[[Sequence[Stored], int], set[Names]]
"""A function that returns which of a thread's checkpoints to delete, given the time."""

_FOREIGN: Final = (layout.DOCUMENTS, layout.HEADS, layout.BLOBS)
_SHARED: Final = (layout.LEASES, layout.TASKS, layout.APPROVALS)
"""The keys that every other use of a space has: without them, the space has only checkpoints. Interrupts have
entries of their own under the latter."""
_BY_BATCH: Final = 400
_ROUNDS: Final = 16
"""The number of times to choose again if others continue from chosen checkpoints; the rest stays."""
_LATE_MS: Final = 3_600_000
"""The longest time from a write to its checkpoint: an older write without a checkpoint has lost it."""
_UUID_TICKS: Final = 10_000
_UUID_EPOCH_MS: Final = 12_219_292_800_000
"""The start of the time in an id, in ms before 1970; it counts units of 100 ns."""


class Deletion(msgspec.Struct, frozen=True):
    """The result of a deletion in one thread.

    Attributes:
        deleted: The number of deleted checkpoints.
        left: The number of remaining ones.
    """

    deleted: int
    left: int


async def delete_checkpoints(state: SaverState, handle: Keepstate, thread: str, choose: Choose) -> Deletion:
    """Delete chosen checkpoints, and the remains of earlier deletions."""
    executor, reader = state.executor(handle, thread), ThreadReader(state, handle, thread)
    gone: set[Names] = set()
    found: Sequence[Stored] = ()
    for _ in range(_ROUNDS):
        found, chosen = await select(reader, choose)
        deleted, is_done = await _delete_records(executor, [one for one in found if one.names in chosen])
        gone |= deleted
        if is_done:
            break
    left = [stored for stored in found if stored.names not in gone]
    store = await handle.opened()
    await _delete_writes(executor, store, [stored.names for stored in left], gone)
    if roots := [names.id for names in gone if names.line == ""]:
        await withdraw_deleted(executor, roots)
    is_begun = gone or (await store.read(executor.stored_name, [layout.LETTING_GO])).entries[0] is not None
    try:
        if is_begun:
            await _finish(state, executor, thread)
        if not left:
            state.summaries.forget(thread)
            checks = await checks_for(store, executor.stored_name)
            await collect_parts(store, executor.stored_name, checks)
    except AttemptsExhaustedError as error:  # the checkpoints are deleted: their remains can wait
        _LOG.warning("remains of old checkpoints of thread %r stay until later: %s", thread, error)
    return Deletion(len(gone), len(left))


async def select(reader: ThreadReader, choose: Choose) -> tuple[list[Stored], set[Names]]:
    """Return a thread's checkpoints, the latest first, and which of them to delete."""
    found = [stored async for stored in reader.records(None)]
    chosen = choose(found, await (await reader.unit()).now_ms())
    return found, chosen - _needed(found, chosen)


def _needed(found: Sequence[Stored], gone: set[Names]) -> set[Names]:
    """Return the chosen checkpoints that others need for their delta channels."""
    by_names = {stored.names: stored for stored in found}
    needed: set[Names] = set()
    for stored in found:
        if stored.names in gone:
            continue
        lacks = set(stored.record.lacks)
        at: Stored | None = stored
        while lacks and at is not None and at.record.parent is not None:
            at = by_names.get(at.names._replace(id=at.record.parent))
            if at is not None:
                needed.add(at.names)
                lacks.difference_update(at.record.snapshots)
    return needed & gone


# ---- writes and records


async def _delete_writes(
    executor: SpaceExecutor, store: Store, left: Sequence[Names], chosen: Set[Names]
) -> None:
    """Delete the writes on deleted checkpoints, and on checkpoints that have been absent for long."""
    now_ms = (await store.read(executor.stored_name, [])).now_ms
    gone = set(map(_in_keys, chosen))
    kept = set(map(_in_keys, left))
    latest = dict(sorted(kept))
    after: bytes | None = None
    while True:
        page = await store.scan(executor.stored_name, layout.PENDING, after=after, limit=_BY_BATCH)
        keys: list[bytes] = []
        for entry in page.entries:
            line, id = short_names(entry.key)
            if (line, id) in gone or ((line, id) not in kept and is_orphaned(id, now_ms, latest.get(line))):
                keys.append(entry.key)
        await _delete(executor, keys)
        after = page.next
        if after is None:
            return


def _in_keys(names: Names) -> tuple[str, str]:
    return short_names(checkpoint_key(names.line, names.id))


def is_orphaned(id: str, now_ms: int, latest: str | None) -> bool:
    """Return whether the checkpoint of writes is absent and will never be stored.

    Args:
        id: The id of the checkpoint.
        now_ms: The time.
        latest: The latest checkpoint of its namespace.
    """
    try:
        parsed = UUID(id)
    except ValueError:
        return latest is not None and id < latest
    if parsed.version != 6:
        return latest is not None and id < latest
    ticks = (parsed.int >> 96 << 28) | (parsed.int >> 80 & 0xFFFF) << 12 | parsed.int >> 64 & 0xFFF
    return now_ms - (ticks // _UUID_TICKS - _UUID_EPOCH_MS) > _LATE_MS


async def _delete(executor: SpaceExecutor, keys: Sequence[bytes]) -> None:
    async def work(unit: Unit) -> None:
        for key in keys:
            unit.delete(key)

    if keys:
        await executor.run(work)


async def _delete_records(executor: SpaceExecutor, chosen: Sequence[Stored]) -> tuple[set[Names], bool]:
    """Delete the records of checkpoints, children before parents, until one has changed.

    Returns:
        The deleted checkpoints, and whether none had changed.
    """
    gone = sorted(chosen, key=lambda stored: stored.record.number, reverse=True)
    deleted: set[Names] = set()
    for begin in range(0, len(gone), _BY_BATCH):
        some = {checkpoint_key(one.names.line, one.names.id): one for one in gone[begin : begin + _BY_BATCH]}

        async def work(unit: Unit, some: dict[bytes, Stored] = some) -> bool:
            present = [entry for entry in await unit.read(*some) if entry is not None]
            if any(entry.version != some[entry.key].version for entry in present):
                return False
            if present:
                unit.put(layout.LETTING_GO, b"")
            for entry in present:
                unit.delete(entry.key)
            return True

        is_unchanged, _ = await executor.run(work)
        if not is_unchanged:
            return deleted, False
        deleted.update(stored.names for stored in some.values())
    return deleted, True


# ---- commits


async def _finish(state: SaverState, executor: SpaceExecutor, thread: str) -> None:
    """Move branches to the remaining checkpoints, graft over the others, and delete unreachable data."""

    async def work(unit: Unit) -> Entry | None:
        session = state.session(executor, unit)
        left = [stored async for stored in _records(unit, thread)]
        main = await _main(unit)
        if await _place_branches(session, left, main):
            return None
        kept = {stored.record.commit for stored in left} | await _others(session, main)
        await prune(session, Keeping(1, None, tagged=True, commits=frozenset(kept)))
        return await unit.get(layout.LETTING_GO) or Entry(layout.LETTING_GO, b"", 0, 0)

    unfinished: Entry | None = None
    while unfinished is None:
        unfinished, _ = await executor.run(work)
    await collect_history(await executor.store(), executor.stored_name)

    async def end(unit: Unit) -> None:
        entry = await unit.get(layout.LETTING_GO)
        if entry is not None and entry.version == unfinished.version:  # no other deletion has begun since
            unit.delete(layout.LETTING_GO)

    await executor.run(end)


async def _records(unit: Unit, thread: str) -> AsyncIterator[Stored]:
    async for entry in unit.scan(layout.CHECKPOINTS):
        record = decode(await unit.value(entry), CheckpointRecord, entry.key)
        yield Stored(names_of(thread, entry.key, record), record, entry.version)


async def _main(unit: Unit) -> str:
    return RECORDED_MAIN if read_rules(await unit.get(layout.RULES)).is_recorded else MAIN


async def _others(session: HistorySession, main: str) -> set[bytes]:
    """Return the commits that are reachable from branches that are not the saver's."""
    todo = [
        head.commit async for name, head in heads(session.unit, layout.BRANCHES) if not _is_mine(name, main)
    ]
    found = set(todo)
    while todo:
        fresh = [parent for parent in await session.parents(todo.pop()) if parent not in found]
        found.update(fresh)
        todo += fresh
    return found


def _is_mine(branch: str, main: str) -> bool:
    return branch == main or branch.startswith((LINES, FORKS))


async def _place_branches(session: HistorySession, left: Sequence[Stored], main: str) -> bool:
    """Point each namespace's branch to its latest checkpoint, and fork branches to the ends of other lines.

    Returns:
        Whether another batch is necessary. New branches are put first, then branches are moved, then others
        are deleted, so every commit stays reachable at all times.
    """
    unit = session.unit
    wanted = await _wanted(session, left, main)
    mine = {name: head async for name, head in heads(unit, layout.BRANCHES) if _is_mine(name, main)}
    there = {name: head.commit for name, head in mine.items()}
    changed = [name for name, head in wanted.items() if there.get(name) != head.commit]
    changed.sort(key=lambda name: name in mine)
    changed += mine.keys() - wanted.keys()
    for name in changed[:_BY_BATCH]:
        key = layout.named_key(layout.BRANCHES, name)
        await unit.get(key)  # so that the batch checks it
        if name in wanted:
            put_head(unit, layout.BRANCHES, name, wanted[name])
        else:
            unit.delete(key)
    return len(changed) > _BY_BATCH


async def _wanted(session: HistorySession, left: Sequence[Stored], main: str) -> dict[str, Head]:
    latest: dict[str, Stored] = {}
    for stored in left:
        known = latest.get(stored.names.line)
        if known is None or stored.names.id > known.names.id:
            latest[stored.names.line] = stored
    reached = await _reached(session, {stored.record.commit for stored in left})
    wanted: dict[str, Head] = {}
    for stored in left:
        head = Head(stored.record.commit, stored.record.number)
        if latest[stored.names.line] is stored:
            wanted[shorten(LINES + stored.names.line) if stored.names.line else main] = head
        elif head.commit not in reached:
            wanted[fork_name(head.commit)] = head
    return wanted


async def _reached(session: HistorySession, commits: Set[bytes]) -> set[bytes]:
    """Return the commits that are ancestors of others of them."""
    reached: set[bytes] = set()
    seen = set(commits)
    todo = list(commits)
    while todo:
        for parent in await session.parents(todo.pop()):
            if parent in commits:
                reached.add(parent)
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return reached


# ---- threads


async def delete_thread(state: SaverState, handle: Keepstate, thread: str) -> None:
    """Delete all checkpoints of a thread, also while others are stored. Other data of its space stays."""
    executor = state.executor(handle, thread)
    state.summaries.forget(thread)
    if await _has_others(await handle.opened(), executor.stored_name):
        await erase(executor)
        await _delete_own(state, executor, thread)
    else:
        await handle.drop(space_of(thread))


async def _has_others(store: Store, space: str) -> bool:
    """Return whether a thread's space has data that is not the saver's."""
    for part in _FOREIGN:
        if (await store.scan(space, part, limit=1)).entries:
            return True
    for part in _SHARED:
        after: bytes | None = None
        while True:
            page = await store.scan(space, part, after=after, limit=_BY_BATCH)
            if not all(is_own(entry.key) for entry in page.entries):
                return True
            after = page.next
            if after is None:
                break
    return False


async def _delete_own(state: SaverState, executor: SpaceExecutor, thread: str) -> None:
    async def work(unit: Unit) -> int:
        count = 0
        unit.put(layout.LETTING_GO, b"")
        for part in (layout.CHECKPOINTS, layout.PENDING):
            page = await unit.store.scan(unit.space, part, limit=_BY_BATCH)
            for entry in page.entries:
                await unit.get(entry.key)
                unit.delete(entry.key)
                count += 1
        return count

    while (await executor.run(work))[0]:
        pass
    await _finish(state, executor, thread)


async def delete_runs(state: SaverState, handle: Keepstate, run_ids: Collection[str]) -> None:
    """Delete the checkpoints of runs, in all threads."""
    runs = set(run_ids)
    if not runs:
        return
    for thread in [thread async for thread in list_threads(handle)]:
        reader = ThreadReader(state, handle, thread)

        def of_runs(found: Sequence[Stored], _now_ms: int, reader: ThreadReader = reader) -> set[Names]:
            by_names = {one.names: reader.body(one).metadata.get("run_id") for one in found}
            return {names for names, run in by_names.items() if run is not None and str(run) in runs}

        await delete_checkpoints(state, handle, thread, of_runs)
