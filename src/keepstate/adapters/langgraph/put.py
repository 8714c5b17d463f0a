"""Stores checkpoints: each is a commit of its thread's history, and a record beside it, in one batch.

A namespace has a branch, which always stands on its latest checkpoint: `main` for the root. Where a
checkpoint follows another one than the latest, somebody has gone back in time, or two runs have begun at the
same place: the line that is left then ends in a branch of its own, `fork/…`. So each checkpoint's commit lies
on a branch for as long as its record is there; a batch that builds on one checks that record.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepstate.adapters.langgraph.channel_diff import Moment, Seen, State, StateSummary, Taken, state_of
from keepstate.adapters.langgraph.records import (
    CheckpointRecord,
    Names,
    PendingRecord,
    checkpoint_key,
    cut_names,
    cut_task,
    is_of,
    line_prefix,
    packed,
    pending_key,
    read,
    short_names,
)
from keepstate.adapters.langgraph.saver_state import Keeper
from keepstate.engine.history.record import MAIN, NONCE_BYTES, Head, decode_head, put_head, read_head
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ConflictError
from keepstate.names import shorten
from keepstate.values.merkle import MerkleValue, shared

RECORDED_MAIN: Final = "langgraph"
"""The branch of the root namespace where `main` follows the documents of the space."""
LINES: Final = "ns/"
FORKS: Final = "fork/"
"""What the names of branches begin with that end the lines which were left."""

_FORK_DIGITS: Final = 16
_BELIEVED_S: Final = 60.0
"""So long the store's time is told by this process's; then it is asked again."""


class Putting(msgspec.Struct, frozen=True):
    """A checkpoint on its way into the store, as it was when it was passed.

    Attributes:
        names: Its thread, namespace and id.
        parent: The id of the one before it.
        taken: The values of its channels, told by how they differ from `standing`.
        standing: What was stored last of the namespace.
        body: All else, encoded.
        snapshots: Channels whose value is a snapshot of a delta channel.
        lacks: Delta channels that have no value here, but one in a checkpoint before.
        message: What the commit says.
        may_fork: Whether it may follow another checkpoint than the latest.
        is_strict: Whether the thread must still be there if it follows any.
        made_ms: When it was made, if that was before now.
    """

    names: Names
    parent: str | None
    taken: dict[str, Taken]
    standing: StateSummary | None
    body: bytes
    snapshots: list[str]
    lacks: list[str]
    message: str
    may_fork: bool
    is_strict: bool = False
    made_ms: int | None = None


class Found(msgspec.Struct, frozen=True):
    """What a batch that stores a checkpoint stands on: entries that were read, and are checked."""

    branch: str
    head: Head | None
    own: CheckpointRecord | None
    parent: CheckpointRecord | None
    standing: CheckpointRecord | None


async def put(keeper: Keeper, handle: Keepstate, putting: Putting) -> None:
    """Store a checkpoint.

    Raises:
        ConflictError: It does not follow the latest one, and may not fork; nothing was stored.
    """
    names = putting.names
    executor = keeper.executor(handle, names.thread)
    nonce = executor.clock.random_bytes(NONCE_BYTES)
    tries: list[tuple[Unit, Moment]] = []

    async def work(unit: Unit) -> StateSummary | ConflictError:
        begun_s = executor.clock.monotonic_s()
        moment = None if tries else _suppose(unit, putting, begun_s)
        session = keeper.session(executor, unit)
        found = await _find(unit, putting)
        tries.append((unit, moment or Moment(await unit.now_ms(), begun_s)))
        if putting.is_strict and (error := _refused(unit, found, putting)) is not None:
            return error  # to try again would not help
        base = found.parent.commit if found.parent else None
        before = putting.standing if _still_stands(putting.standing, found.standing) else None
        state = await _state(keeper, session, putting, before, base)
        sources = [base] if base else []
        if before is not None and before.commit != base:
            sources.append(before.commit)
        commit, record = await session.write(
            state.planted.encoding,
            state.planted.objects,
            parents=[base] if base else [],
            sources=sources,
            author=executor.author,
            message=putting.message,
            nonce=nonce,
            made_ms=putting.made_ms,
        )
        head = Head(commit, found.parent.number + 1 if found.parent else 1)
        await _stand(unit, found, putting, head)
        told = CheckpointRecord(
            *(commit, head.number, putting.parent, record.created_ms, putting.body),
            snapshots=[*map(keeper.values.called, putting.snapshots)],
            names=cut_names(names),
            lacks=[*map(keeper.values.called, putting.lacks)],
        )
        unit.put(checkpoint_key(names.line, names.id), packed(told))
        if putting.lacks:
            await _keep_parent(unit, putting)
        return StateSummary(names.id, commit, state.channels)

    standing, revision = await executor.run(work)
    if isinstance(standing, ConflictError):
        raise standing
    seen = _seen(*tries[-1], putting.names, revision)
    keeper.summaries.put(names.thread, names.line, msgspec.structs.replace(standing, seen=seen))


# ---- what is there


def _branch_key(line: str) -> bytes:
    return layout.named_key(layout.BRANCHES, shorten(LINES + line) if line else MAIN)


def _suppose(unit: Unit, putting: Putting, at_s: float) -> Moment | None:
    """Take what the last checkpoint left for what is there; if it is not, the batch is refused."""
    standing = putting.standing
    if standing is None or standing.seen is None or standing.id != putting.parent:
        return None
    seen = standing.seen
    passed_s = at_s - seen.moment.at_s
    if seen.store is not unit.store or seen.losses.has_lost_history or passed_s > _BELIEVED_S:
        return None
    own = checkpoint_key(putting.names.line, putting.names.id)
    unit.assume_cached({own: None, **seen.entries}, seen.revision, seen.moment.now_ms + int(passed_s * 1000))
    return seen.moment


def _seen(unit: Unit, moment: Moment, names: Names, revision: int) -> Seen | None:
    """Return what the next checkpoint will find if it follows this one, and this is the latest."""
    branch = _branch_key(names.line)
    if branch not in unit.written(branch):
        return None
    keys = layout.RECORDED, branch, checkpoint_key(names.line, names.id)
    return Seen(
        unit.store, {key: unit.as_applied(key, revision) for key in keys}, revision, moment, unit.losses
    )


async def _find(unit: Unit, putting: Putting) -> Found:
    names, standing = putting.names, putting.standing
    branch = shorten(LINES + names.line) if names.line else MAIN
    ids = names.id, putting.parent, standing.id if standing else None
    keys = {id: checkpoint_key(names.line, id) for id in ids if id is not None}
    recorded, stands, *found = await unit.read(layout.RECORDED, _branch_key(names.line), *keys.values())
    head = decode_head(stands.key, stands.value) if stands else None
    if branch == MAIN and recorded is not None:
        branch = RECORDED_MAIN
        head = await read_head(unit, layout.BRANCHES, branch)
    records: dict[str | None, CheckpointRecord] = {
        id: read(await unit.value(entry), CheckpointRecord, entry.key)
        for id, entry in zip(keys, found, strict=True)
        if entry is not None
    }
    return Found(branch, head, *map(records.get, ids))


async def _keep_parent(unit: Unit, putting: Putting) -> None:
    """Rewrite the record of the previous checkpoint, so that a deletion that has chosen it chooses again."""
    if putting.parent is not None:
        key = checkpoint_key(putting.names.line, putting.parent)
        entry = await unit.get(key)
        if entry is not None:
            unit.put(key, await unit.value(entry))


def _still_stands(standing: StateSummary | None, record: CheckpointRecord | None) -> bool:
    return standing is not None and record is not None and standing.commit == record.commit


async def _state(
    keeper: Keeper, session: HistorySession, putting: Putting, before: StateSummary | None, base: bytes | None
) -> State:
    values = keeper.values
    called = {name: values.called(name) for name in putting.taken}
    state = await session.serve(state_of(values, putting.taken, called, before))
    if before is not None or base is None:
        return state
    there = await session.serve(shared([(await session.record(base)).root], state.planted.objects))
    objects = {name: data for name, data in state.planted.objects.items() if name not in there}
    return State(MerkleValue(state.planted.encoding, objects), state.channels)


# ---- branches


async def _stand(unit: Unit, found: Found, putting: Putting, head: Head) -> None:
    """Put the namespace's branch on it if it is the latest, and a branch on what would else be lost."""
    was, own, parent = found.head, found.own, found.parent
    if own is not None:
        _end_fork(unit, await _fork(unit, own.commit))
    if was is None or (own is not None and was.commit == own.commit):
        put_head(unit, layout.BRANCHES, found.branch, head)
        return
    follows = parent is not None and was.commit == parent.commit
    if follows and putting.parent is not None and putting.names.id > putting.parent:
        put_head(unit, layout.BRANCHES, found.branch, head)
        return
    if not await _is_latest(unit, putting.names):
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
    await unit.get(page.entries[0].key)  # so that the batch checks that it is still there
    return (
        is_of(short_names(page.entries[0].key)[1], names.id) or short_names(page.entries[0].key)[1] < names.id
    )


def fork_name(commit: bytes) -> str:
    """Return the branch that ends a line with this commit."""
    return FORKS + commit.hex()[:_FORK_DIGITS]


async def _fork(unit: Unit, commit: bytes) -> bytes | None:
    """Return the key of the branch that ends a line with this commit, if there is one."""
    name = fork_name(commit)
    found = await read_head(unit, layout.BRANCHES, name)
    return layout.named_key(layout.BRANCHES, name) if found and found.commit == commit else None


def _end_fork(unit: Unit, key: bytes | None) -> None:
    if key is not None:
        unit.delete(key)


def _refused(unit: Unit, found: Found, putting: Putting) -> ConflictError | None:
    """Return the error for a thread that another run continued or deleted since this run began."""
    if found.head is None and putting.parent is None:
        return None
    follows = f"its checkpoint follows {putting.parent or 'the beginning'}"
    if found.head is None:
        what = f"was deleted since this run began: {follows}, which is gone; run again to begin it anew"
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
    keeper: Keeper, handle: Keepstate, names: Names, task: str, record: PendingRecord
) -> None:
    """Store what a task has written on a checkpoint: of ordinary writes the first one counts."""
    key = pending_key(names.line, names.id, task)
    executor = keeper.executor(handle, names.thread)

    async def work(unit: Unit) -> None:
        entry = await unit.get(key)
        writes = {write[0]: write for write in record.writes}
        if entry is not None:
            before = read(await unit.value(entry), PendingRecord, key)
            kept = {write[0]: write for write in before.writes}
            special = {place: write for place, write in writes.items() if place < 0}
            writes = {**writes, **kept, **special}
            if writes == kept and before.path == record.path:
                return
        unit.put(key, packed(PendingRecord(record.path, [*writes.values()], cut_task(task))))

    await executor.run(work)
