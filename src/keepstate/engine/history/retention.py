"""Retention: pruning drops old commits, and collection deletes what no branch or tag leads to.

Pruning deletes nothing. It gives each kept commit that loses a parent its nearest kept ancestors instead. A
branch that another caller creates or moves during the call therefore keeps the commits that it leads to.

Collection runs while others write. It writes `gc/epoch` at revision R. Then it reads all branches, tags and
grafts, and from the log those that changed meanwhile. It marks everything that they lead to, and deletes
unmarked entries older than R, each only if its version is unchanged. Concurrent writers are safe: their
objects were put after R, or are below a branch or tag that their batch checks, or were written ahead of a
batch that checks the epoch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set

import msgspec

from keepstate.engine.history.ancestry import first_parents
from keepstate.engine.history.objects import key_maker
from keepstate.engine.history.record import (
    Graft,
    Grafts,
    Head,
    heads,
    link_grafts,
    put_grafts,
    read_head,
    scan_entries,
)
from keepstate.engine.history.session import CommitPrefetch, HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.grants import checks_for
from keepstate.engine.kernel.large_values import delete_garbage, unexpected_error
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CompactedError, ConflictError, CorruptError
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Entry, Put, Store
from keepstate.values import limits
from keepstate.values.merkle import reach

_BY_BATCH = limits.BATCH_CHECKS // 2
_ATTEMPTS = 8


class Keeping(msgspec.Struct, frozen=True):
    """The commits to keep. A commit is kept if any field says so.

    Attributes:
        last: The number of commits of each branch, by first parents; None for the head alone.
        since_ms: Commits made since this time; None keeps none for their time.
        tagged: Whether tagged commits are kept. If not, their tags are deleted with them.
        commits: These commits.
        archived: All commits that are not among these; None keeps none for that.
    """

    last: int | None
    since_ms: int | None
    tagged: bool
    commits: frozenset[bytes] = frozenset()
    archived: Set[bytes] | None = None


# ---- pruning


async def prune(session: HistorySession, keeping: Keeping) -> int:
    """Write grafts over all commits that are not kept, and return the number of dropped commits.

    Raises:
        ConflictError: A branch or tag moved meanwhile, and its old commits were collected.
        CorruptError: A commit is missing or damaged.
    """
    branches, tags = await _names(session, layout.BRANCHES), await _names(session, layout.TAGS)
    try:
        return await _prune(session, keeping, branches, tags)
    except CorruptError as error:
        now = await _names(session, layout.BRANCHES), await _names(session, layout.TAGS)
        if now == (branches, tags):
            raise
        space = session.unit.space
        raise ConflictError(
            f"branches of {space!r} moved while it was pruned; try again", space=space
        ) from error


async def _names(session: HistorySession, part: bytes) -> dict[str, bytes]:
    return {name: head.commit async for name, head in heads(session.unit, part)}


async def _prune(
    session: HistorySession, keeping: Keeping, branches: Mapping[str, bytes], tagged: Mapping[str, bytes]
) -> int:
    unit = session.unit
    session.ahead = CommitPrefetch()
    kept = set(keeping.commits)
    for commit in branches.values():
        kept |= await _last(session, commit, keeping.last or 1)
    if keeping.tagged:
        kept.update(tagged.values())
    known = await _with_ancestors(session, kept | set(tagged.values()))
    if keeping.since_ms is not None:
        kept |= {id for id, facts in known.items() if facts.created_ms >= keeping.since_ms}
    if keeping.archived is not None:
        kept |= known.keys() - keeping.archived
    for name, commit in tagged.items():
        now = None if commit in kept else await read_head(unit, layout.TAGS, name)
        if now is not None and now.commit == commit:
            unit.delete(layout.named_key(layout.TAGS, name))
    if len(kept) < len(known):
        put_grafts(unit, await _grafts(session, known, kept))
    return len(known) - len(kept)


async def _last(session: HistorySession, head: bytes, count: int) -> set[bytes]:
    ids: set[bytes] = set()
    async for id, _ in first_parents(session, head):
        ids.add(id)
        if len(ids) == count:
            break
    return ids


class _Facts(msgspec.Struct, frozen=True):
    """A commit as pruning sees it: its parents as they are now, its time and its number."""

    parents: Sequence[bytes]
    created_ms: int
    number: int


async def _with_ancestors(session: HistorySession, ids: Iterable[bytes]) -> dict[bytes, _Facts]:
    """Return commits and all their ancestors."""
    found: dict[bytes, _Facts] = {}
    todo = list(ids)
    while todo:
        id = todo.pop()
        if id not in found:
            record = await session.record(id)
            found[id] = _Facts(await session.parents(id), record.created_ms, record.number)
            todo += found[id].parents
    return found


async def _grafts(session: HistorySession, known: Mapping[bytes, _Facts], kept: set[bytes]) -> Grafts:
    before = await session.grafts()
    # Another caller may be naming a dropped commit right now, so a dropped commit keeps its graft.
    grafts = await _still_there(session, {id: before[id] for id in before if id not in kept})
    for id in kept:
        parents = known[id].parents
        if all(parent in kept for parent in parents):
            if id in before:
                grafts[id] = before[id]
            continue
        first, skipped = await _first_kept(session, id, kept)
        others = [near for parent in parents for near in await _nearest(session, parent, kept)]
        near = list(dict.fromkeys([*first, *others]))
        later = before[id].later if id in before else ()
        grafts[id] = Graft(near, skipped, bool(first), known[id].number, later=later)
    return link_grafts(grafts, kept, lambda id: next(iter(known[id].parents), None))


async def _still_there(session: HistorySession, grafts: Grafts) -> Grafts:
    """Return the grafts of commits that were not collected."""
    ids = list(grafts)
    found: Grafts = {}
    for begin in range(0, len(ids), limits.READ_KEYS):
        some = ids[begin : begin + limits.READ_KEYS]
        entries = await session.unit.objects([layout.COMMITS + id for id in some])
        found |= {id: grafts[id] for id, entry in zip(some, entries, strict=True) if entry is not None}
    return found


async def _first_kept(session: HistorySession, id: bytes, kept: set[bytes]) -> tuple[list[bytes], int]:
    """Return the nearest kept first parent, if there is one, and the number of dropped ones before it."""
    skipped = 0
    async for at, _ in first_parents(session, id):
        if at != id:
            if at in kept:
                return [at], skipped
            skipped += 1
        skipped += await session.skipped(at)
    return [], skipped


async def _nearest(session: HistorySession, id: bytes, kept: set[bytes]) -> list[bytes]:
    """Return the kept commits that come first on each path of ancestors."""
    found: list[bytes] = []
    todo, seen = [id], {id}
    while todo:
        at = todo.pop()
        if at in kept:
            found.append(at)
            continue
        for parent in reversed(await session.parents(at)):
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return found


# ---- collection


async def collect_history(store: Store, space: str) -> int:
    """Delete the commits and objects that no branch or tag leads to, and return their number.

    Raises:
        CompactedError: In every attempt, other callers wrote more than the log holds.
        CorruptError: A commit or object is missing or damaged. Nothing was deleted.
    """
    marked: set[bytes] | None = None
    since = 0
    attempt = 1
    while marked is None:
        checks = await checks_for(store, space)
        epoch = (await store.apply([Batch(space, [Put(layout.EPOCH, b"")], checks)]))[0]
        if isinstance(epoch, Conflict):
            return 0  # the space was dropped
        if not isinstance(epoch, Applied):
            raise unexpected_error(epoch, space, "the history")
        since = epoch.revision
        try:
            marked = await _marked(store, space, since)
        except (ConflictError, CompactedError, CorruptError):
            # Another caller pruned, or collected the commits of a branch that was deleted meanwhile.
            if attempt == _ATTEMPTS:
                raise
            attempt += 1
    removed = 0
    garbage: list[Check] = []
    async for entry in _entries(store, space, layout.COMMITS, layout.STATES):
        if entry.version < since and entry.key not in marked:
            garbage.append(Check(entry.key, version=entry.version))
        if len(garbage) == _BY_BATCH:
            removed += await delete_garbage(store, space, garbage, "the history")
            garbage = []
    return removed + await delete_garbage(store, space, garbage, "the history")


async def _entries(store: Store, space: str, *prefixes: bytes) -> AsyncIterator[Entry]:
    for prefix in prefixes:
        async for entry in scan_entries(store, space, prefix):
            yield entry


async def _marked(store: Store, space: str, since: int) -> set[bytes]:
    """Return the keys of everything that a branch or tag led to at any time since a revision."""
    session = HistorySession(Unit(store, space), Records())
    session.ahead = CommitPrefetch()
    # Read before the heads, because a commit that is dropped later may have got another name just before.
    await session.grafts()
    heads: set[bytes] = set()
    read_to = last = since
    for part in (layout.BRANCHES, layout.TAGS):
        after: bytes | None = None
        while True:
            page = await store.scan(space, part, after=after)
            heads |= {_commit(entry.value) for entry in page.entries}
            after, last = page.next, page.revision
            if after is None:
                break
    while read_to < last:
        changes = await store.changes(space, read_to)
        read_to = changes.upto
        for change in changes.items:
            if change.key.startswith((layout.BRANCHES, layout.TAGS)):
                heads |= {_commit(value) for value in (change.old, change.new) if value is not None}
    return await _reached(session, heads)


def _commit(stored: bytes) -> bytes:
    return decode_stored(stored, Head, "a branch or tag").commit


async def _reached(session: HistorySession, heads: set[bytes]) -> set[bytes]:
    todo, commits, objects = list(heads), set(heads), set[bytes]()
    while todo:
        id = todo.pop()
        record = await session.record(id)
        await session.serve(reach([record.root], objects), keep=False)
        for parent in await session.parents(id):
            if parent not in commits:
                commits.add(parent)
                todo.append(parent)
    return {layout.COMMITS + id for id in commits} | set(map(key_maker(session.unit), objects))
