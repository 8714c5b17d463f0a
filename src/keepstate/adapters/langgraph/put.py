"""Stores checkpoints: each is a commit of its thread's history and a record, written in one batch.

Each namespace has a branch that points to its latest checkpoint: `main` for the root. A checkpoint that does
not follow the latest one makes a fork: a run went back in time, or two runs began at the same checkpoint.
The abandoned line then ends in a branch of its own, `fork/…`. So the commit of each checkpoint is reachable
as long as its record exists; a batch that builds on a checkpoint checks that record.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from keepstate.adapters.langgraph.channel_diff import (
    Channel,
    ChannelChange,
    ClockReading,
    ReadCache,
    State,
    StateSummary,
    state_of,
)
from keepstate.adapters.langgraph.interrupts import INTERRUPTED, NewInterrupt, as_interrupts
from keepstate.adapters.langgraph.records import (
    CheckpointRecord,
    Names,
    PendingRecord,
    checkpoint_key,
    cut_names,
    cut_task,
    decode,
    encode,
    is_of,
    line_prefix,
    pending_key,
    short_names,
)
from keepstate.adapters.langgraph.saver_state import SaverState
from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.history.lineage import head_of
from keepstate.engine.history.record import NONCE_BYTES, Head, decode_head, put_head, read_head
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ConflictError
from keepstate.names import shorten
from keepstate.values import limits
from keepstate.values.merkle import MerkleValue, find_shared

_LOG: Final = logging.getLogger("keepstate.adapters.langgraph")

RECORDED_MAIN: Final = "langgraph"
"""The branch of the root namespace if `main` records the documents of the space."""
LINES: Final = "ns/"
FORKS: Final = "fork/"
"""The prefix of branches at the ends of abandoned lines."""

_FORK_DIGITS: Final = 16
_BELIEVED_S: Final = 60.0
"""The longest time for which the store's clock is extrapolated from this process's clock."""


class Putting(msgspec.Struct, frozen=True):
    """A checkpoint to store, as it was when it was passed.

    Attributes:
        names: The thread, namespace and id.
        parent: The id of the previous checkpoint.
        taken: The values of the channels, as differences from `last`.
        last: The checkpoint of the namespace that was stored last.
        body: The encoding of everything else.
        snapshots: Channels whose value is a snapshot of a delta channel.
        lacks: Delta channels without a value here; an older checkpoint has one.
        message: The message of the commit.
        seen: The versions of channels that each node has seen.
        meta: The notes on the commit.
        may_fork: Whether it follows another checkpoint than the latest on purpose.
        is_strict: Whether it is refused if another run has continued or deleted its thread.
        made_ms: The time at which it was made, if that was before now.
    """

    names: Names
    parent: str | None
    taken: dict[str, ChannelChange]
    last: StateSummary | None
    body: bytes
    snapshots: list[str]
    lacks: list[str]
    message: str
    seen: dict[str, Any]
    meta: dict[str, str]
    may_fork: bool
    is_strict: bool = False
    made_ms: int | None = None


class Found(msgspec.Struct, frozen=True):
    """The entries that a batch with a checkpoint builds on; they were read, and are checked."""

    branch: str
    head: Head | None
    own: CheckpointRecord | None
    parent: CheckpointRecord | None
    last: CheckpointRecord | None


class _Made(NamedTuple):
    """The result of a try to store a checkpoint, which counts once the unit is applied."""

    unit: Unit
    reading: ClockReading
    head: Head
    record: CheckpointRecord
    channels: dict[str, Channel]
    is_overtaken: bool


async def put(state: SaverState, handle: Keepstate, putting: Putting) -> None:
    """Store a checkpoint.

    Raises:
        ConflictError: It does not follow the latest checkpoint, and may not fork. Nothing was stored.
    """
    names = putting.names
    executor = state.executor(handle, names.thread)
    nonce, meta = executor.clock.random_bytes(NONCE_BYTES), executor.meta_of(None)
    meta = _with_notes(meta, putting.meta) if meta else putting.meta
    tries: list[Unit] = []

    async def work(unit: Unit) -> _Made | ConflictError:
        begun_s = executor.clock.monotonic_s()
        reading = None if tries else _assume_cached(unit, putting, begun_s)
        session = state.session(executor, unit)
        found = await _find(unit, putting)
        tries.append(unit)
        reading = reading or ClockReading(await unit.now_ms(), begun_s)
        conflict = _conflict(unit, found, putting)
        if putting.is_strict and conflict is not None:
            return conflict  # another attempt would not help
        base = found.parent.commit if found.parent else None
        before = putting.last if _is_unchanged(putting.last, found.last) else None
        made = await _encode_state(state, session, putting, before, base)
        sources = [base] if base else []
        if before is not None and before.commit != base:
            sources.append(before.commit)
        commit, record = await session.write(
            made.value.encoding,
            made.value.objects,
            parents=[base] if base else [],
            sources=sources,
            author=executor.author,
            message=putting.message,
            nonce=nonce,
            made_ms=putting.made_ms,
            meta=meta,
            touched=made.touched if before is not None and before.commit == base else None,
        )
        head = head_of(commit, record)
        await move_branches(unit, found, names, putting.parent, head)
        stored = CheckpointRecord(
            *(commit, head.number, putting.parent, record.created_ms, putting.body),
            snapshots=[*map(state.values.called, putting.snapshots)],
            names=cut_names(names),
            lacks=[*map(state.values.called, putting.lacks)],
        )
        unit.put(checkpoint_key(names.line, names.id), encode(stored))
        if putting.lacks:
            await _touch_parent(unit, putting)
        if state.interrupts is not None and names.line == "":
            await state.interrupts.leave_before(unit, executor, names.id)
        is_overtaken = conflict is not None and found.head is not None
        return _Made(unit, reading, head, stored, made.channels, is_overtaken)

    stored_last, revision = await executor.run(work)
    if isinstance(stored_last, ConflictError):
        raise stored_last
    cache = _cache(stored_last, names, revision)
    summary = StateSummary(names.id, stored_last.record.commit, stored_last.channels, cache, putting.seen)
    state.summaries.put(names.thread, names.line, summary)
    if stored_last.is_overtaken and state.overtaken.is_first(names.thread):
        _warn_of_fork(names.thread)


def _with_notes(own: dict[str, str], notes: dict[str, str]) -> dict[str, str]:
    """Return the application's notes on a commit with those of the saver, if there is room for them."""
    size = sum(len(text.encode()) for pair in (*own.items(), *notes.items()) for text in pair)
    return {**notes, **own} if size <= limits.META_BYTES else own


def _warn_of_fork(thread: str) -> None:
    _LOG.warning(
        "thread %r: two runs have continued one checkpoint, so the latest state lacks what one of them "
        "stored; that is in a branch fork/… of the thread's space. This is said once of each thread. Run one "
        "after the other, or create the saver with on_conflict='raise', which refuses the run that was "
        "overtaken",
        thread,
    )


# ---- reads


def _branch_key(line: str) -> bytes:
    return layout.named_key(layout.BRANCHES, shorten(LINES + line) if line else MAIN)


def _assume_cached(unit: Unit, putting: Putting, at_s: float) -> ClockReading | None:
    """Seed the unit with the entries that the last checkpoint left; a stale entry causes a conflict."""
    last = putting.last
    if last is None or last.cache is None or last.id != putting.parent:
        return None
    cache = last.cache
    passed_s = at_s - cache.reading.at_s
    if cache.store is not unit.store or cache.losses.has_lost_history or passed_s > _BELIEVED_S:
        return None
    own = checkpoint_key(putting.names.line, putting.names.id)
    now_ms = cache.reading.now_ms + int(passed_s * 1000)
    unit.assume_cached({own: None, **cache.entries}, cache.revision, now_ms)
    return cache.reading


def _cache(made: _Made, names: Names, revision: int) -> ReadCache | None:
    """Return the entries that the next checkpoint will find if it follows this one, the latest."""
    unit, branch = made.unit, _branch_key(names.line)
    if branch not in unit.written(branch):
        return None
    keys = layout.RULES, branch, checkpoint_key(names.line, names.id)
    entries = {key: unit.as_applied(key, revision) for key in keys}
    return ReadCache(unit.store, entries, revision, made.reading, unit.losses, made.head, made.record)


async def _find(unit: Unit, putting: Putting) -> Found:
    names, last = putting.names, putting.last
    branch = shorten(LINES + names.line) if names.line else MAIN
    ids = names.id, putting.parent, last.id if last else None
    keys = {id: checkpoint_key(names.line, id) for id in ids if id is not None}
    branch_key = _branch_key(names.line)
    rules, branch_entry, *found = await unit.read(layout.RULES, branch_key, *keys.values())
    # An entry that the last checkpoint left is decoded already.
    cache = last.cache if last is not None else None
    left = {} if cache is None else cache.entries
    if cache is not None and branch_entry is left[branch_key]:
        head: Head | None = cache.head
    else:
        head = decode_head(branch_entry.key, branch_entry.value) if branch_entry else None
    if branch == MAIN and read_rules(rules).is_recorded:
        branch = RECORDED_MAIN
        head = await read_head(unit, layout.BRANCHES, branch)
    records: dict[str | None, CheckpointRecord] = {
        id: cache.record
        if cache is not None and entry is left.get(entry.key)
        else decode(await unit.value(entry), CheckpointRecord, entry.key)
        for id, entry in zip(keys, found, strict=True)
        if entry is not None
    }
    return Found(branch, head, *map(records.get, ids))


async def _touch_parent(unit: Unit, putting: Putting) -> None:
    """Rewrite the record of the previous checkpoint, so that a deletion that chose it chooses again."""
    if putting.parent is not None:
        key = checkpoint_key(putting.names.line, putting.parent)
        entry = await unit.get(key)
        if entry is not None:
            unit.put(key, await unit.value(entry))


def _is_unchanged(last: StateSummary | None, record: CheckpointRecord | None) -> bool:
    return last is not None and record is not None and last.commit == record.commit


async def _encode_state(
    state: SaverState,
    session: HistorySession,
    putting: Putting,
    before: StateSummary | None,
    base: bytes | None,
) -> State:
    values = state.values
    called = {name: values.called(name) for name in putting.taken}
    made = await session.serve(state_of(values, putting.taken, called, before))
    if before is not None or base is None:
        return made
    present = await session.serve(find_shared([(await session.record(base)).root], made.value.objects))
    objects = {name: data for name, data in made.value.objects.items() if name not in present}
    return State(MerkleValue(made.value.encoding, objects), made.channels)


# ---- branches


async def move_branches(unit: Unit, found: Found, names: Names, parent_id: str | None, head: Head) -> None:
    """Point the namespace's branch to the latest checkpoint, and a fork branch to an abandoned line."""
    was, own, parent = found.head, found.own, found.parent
    if own is not None:
        _end_fork(unit, await _fork(unit, own.commit))
    if was is None or (own is not None and was.commit == own.commit):
        put_head(unit, layout.BRANCHES, found.branch, head)
        return
    follows = parent is not None and was.commit == parent.commit
    if follows and parent_id is not None and names.id > parent_id:
        put_head(unit, layout.BRANCHES, found.branch, head)
        return
    if not await _is_latest(unit, names):
        put_head(unit, layout.BRANCHES, fork_name(head.commit), head)
        return
    if not follows:
        put_head(unit, layout.BRANCHES, fork_name(was.commit), was)
        if parent is not None:
            _end_fork(unit, await _fork(unit, parent.commit))
    put_head(unit, layout.BRANCHES, found.branch, head)


async def _is_latest(unit: Unit, names: Names) -> bool:
    page = await unit.store.scan(
        unit.space, line_prefix(layout.CHECKPOINTS, names.line), limit=1, reverse=True
    )
    if not page.entries:
        return True
    await unit.get(page.entries[0].key)  # so that the batch checks that it still exists
    return (
        is_of(short_names(page.entries[0].key)[1], names.id) or short_names(page.entries[0].key)[1] < names.id
    )


def fork_name(commit: bytes) -> str:
    """Return the name of the branch at an abandoned line's last commit."""
    return FORKS + commit.hex()[:_FORK_DIGITS]


async def _fork(unit: Unit, commit: bytes) -> bytes | None:
    """Return the key of the branch at an abandoned line's last commit, if it exists."""
    name = fork_name(commit)
    found = await read_head(unit, layout.BRANCHES, name)
    return layout.named_key(layout.BRANCHES, name) if found and found.commit == commit else None


def _end_fork(unit: Unit, key: bytes | None) -> None:
    if key is not None:
        unit.delete(key)


def _conflict(unit: Unit, found: Found, putting: Putting) -> ConflictError | None:
    """Return the error for a thread that another run continued or deleted since this run began."""
    if found.head is None and putting.parent is None:
        return None
    follows = f"its checkpoint follows {putting.parent or 'the beginning'}"
    if found.head is None:
        what = f"was deleted since this run began: {follows}, which is gone; run again to begin a new thread"
    else:
        heads = found.own and found.own.commit, found.parent and found.parent.commit
        if putting.may_fork or found.head.commit in heads:
            return None
        what = (
            f"has gone on since this run began: {follows}, which is no longer the latest; "
            "load the state and run again, or name the checkpoint to go back to"
        )
    return ConflictError(
        f"thread {putting.names.thread!r} {what}",
        space=unit.name,
        key=checkpoint_key(putting.names.line, putting.names.id),
    )


# ---- pending writes


async def put_writes(
    state: SaverState,
    handle: Keepstate,
    names: Names,
    task: str,
    record: PendingRecord,
    asking: Sequence[NewInterrupt] = (),
) -> None:
    """Store a task's writes on a checkpoint. The first of several ordinary writes of one index counts.

    Args:
        state: The saver's values and caches.
        handle: The handle.
        names: The checkpoint.
        task: The task's id.
        record: The writes.
        asking: The interrupts among them to ask for.
    """
    key = pending_key(names.line, names.id, task)
    executor = state.executor(handle, names.thread)

    async def work(unit: Unit) -> None:
        entry = await unit.get(key)
        writes = {write[0]: write for write in record.writes}
        if entry is not None:
            before = decode(await unit.value(entry), PendingRecord, key)
            kept = {write[0]: write for write in before.writes}
            special = {index: write for index, write in writes.items() if index < 0}
            is_over = INTERRUPTED in kept and (INTERRUPTED in writes or any(index >= 0 for index in writes))
            writes = {**writes, **kept, **special}
            if writes == kept and before.path == record.path and not asking:
                return
            if state.interrupts is not None and names.line == "" and is_over:
                _, value = state.values.load(kept[INTERRUPTED][1], f"writes on {names.id}")
                left = {one.id for one in as_interrupts(value)} - {one.interrupt for one in asking}
                await state.interrupts.leave_task(unit, executor, names, sorted(left))
        unit.put(key, encode(PendingRecord(record.path, [*writes.values()], cut_task(task))))
        if state.interrupts is not None and asking:
            await state.interrupts.ask(unit, executor, names, asking)

    await executor.run(work)
