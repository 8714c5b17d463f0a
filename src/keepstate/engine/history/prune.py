"""Lets go of old commits. Each kept one that loses a parent gets its nearest kept ancestors in its place.

Nothing is deleted here: what no branch or tag leads to any more is collected. So a branch that somebody makes
or moves meanwhile, and that leads to what is let go of here, keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from keepstate.engine.history.ancestry import first_parents
from keepstate.engine.history.grafts import Graft, Grafts, put_grafts
from keepstate.engine.history.heads import heads, read_head
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.errors import ConflictError, CorruptError
from keepstate.values import limits


class Keeping(msgspec.Struct, frozen=True):
    """What is kept.

    Attributes:
        last: So many commits of each branch, by first parents; None keeps none for their number.
        since_ms: What was made from then on; None keeps none for their time.
        tagged: Whether what has a tag is kept; else the tags go with their commits.
        commits: These as well.
        archived: What is not among these as well; None keeps nothing for that.
    """

    last: int | None
    since_ms: int | None
    tagged: bool
    commits: frozenset[bytes] = frozenset()
    archived: Set[bytes] | None = None


async def prune(session: HistorySession, keeping: Keeping) -> int:
    """Graft over all that is not kept, and return how many commits that is.

    Raises:
        ConflictError: What a branch or tag led to was collected, as that moved on meanwhile.
        CorruptError: A commit is missing or damaged.
    """
    branches, tags = await _names(session, layout.BRANCHES), await _names(session, layout.TAGS)
    try:
        return await _pruned(session, keeping, branches, tags)
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


async def _pruned(
    session: HistorySession, keeping: Keeping, branches: Mapping[str, bytes], tagged: Mapping[str, bytes]
) -> int:
    unit = session.unit
    kept = set(keeping.commits)
    for commit in branches.values():
        kept |= await _last(session, commit, keeping.last or 1)
    if keeping.tagged:
        kept.update(tagged.values())
    there = await _all(session, kept | set(tagged.values()))
    if keeping.since_ms is not None:
        kept |= {id for id in there if (await session.record(id)).created_ms >= keeping.since_ms}
    if keeping.archived is not None:
        kept |= there - keeping.archived
    for name, commit in tagged.items():
        now = None if commit in kept else await read_head(unit, layout.TAGS, name)
        if now is not None and now.commit == commit:
            unit.delete(layout.named_key(layout.TAGS, name))
    if len(kept) < len(there):
        put_grafts(unit, await _grafts(session, kept))
    return len(there) - len(kept)


async def _last(session: HistorySession, head: bytes, count: int) -> set[bytes]:
    ids: set[bytes] = set()
    async for id, _ in first_parents(session, head):
        ids.add(id)
        if len(ids) == count:
            break
    return ids


async def _all(session: HistorySession, ids: Set[bytes]) -> set[bytes]:
    """Return commits and all before them."""
    todo, seen = list(ids), set(ids)
    while todo:
        for parent in await session.parents(todo.pop()):
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return seen


async def _grafts(session: HistorySession, kept: set[bytes]) -> Grafts:
    before = await session.grafts()
    # Somebody may just now give another name to a commit that is let go of, and that has lost parents before.
    grafts = await _still_there(session, {id: before[id] for id in before if id not in kept})
    for id in kept:
        parents = await session.parents(id)
        if all(parent in kept for parent in parents):
            if id in before:
                grafts[id] = before[id]
            continue
        first, skipped = await _first_kept(session, id, kept)
        others = [near for parent in parents for near in await _nearest(session, parent, kept)]
        grafts[id] = Graft(list(dict.fromkeys([*first, *others])), skipped, goes_on=bool(first))
    return grafts


async def _still_there(session: HistorySession, grafts: Grafts) -> Grafts:
    """Return the grafts of commits that were not collected."""
    ids = list(grafts)
    there: Grafts = {}
    for begin in range(0, len(ids), limits.READ_KEYS):
        some = ids[begin : begin + limits.READ_KEYS]
        entries = await session.unit.objects([layout.COMMITS + id for id in some])
        there |= {id: grafts[id] for id, entry in zip(some, entries, strict=True) if entry is not None}
    return there


async def _first_kept(session: HistorySession, id: bytes, kept: set[bytes]) -> tuple[list[bytes], int]:
    """Return the nearest kept first parent, if there is one, and how many were passed over."""
    skipped = 0
    async for at, _ in first_parents(session, id):
        if at != id:
            if at in kept:
                return [at], skipped
            skipped += 1
        skipped += await session.skipped(at)
    return [], skipped


async def _nearest(session: HistorySession, id: bytes, kept: set[bytes]) -> list[bytes]:
    """Return the kept commits that are met first on every way back."""
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
