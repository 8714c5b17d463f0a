"""Copies a whole history out of a space, and into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from keepstate.engine.history.bundle import Bundle
from keepstate.engine.history.objects import pack_object
from keepstate.engine.history.record import Head, heads, put_grafts, put_head, read_head
from keepstate.engine.history.session import CommitPrefetch, HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.stored import describe
from keepstate.errors import AlreadyExistsError
from keepstate.values import limits
from keepstate.values.merkle import reach

_Named: TypeAlias = tuple[bytes, str, Head]
"""The key prefix of branches or tags, the name, and the head."""


async def export_history(session: HistorySession) -> Bundle:
    """Return everything that branches and tags lead to, in its stored form."""
    session.objects.uses_cache = False
    bundle = Bundle(branches=await _heads(session, layout.BRANCHES), tags=await _heads(session, layout.TAGS))
    grafts = await session.grafts()
    session.ahead = CommitPrefetch()
    todo = [head.commit for head in (*bundle.branches.values(), *bundle.tags.values())]
    known: set[bytes] = set()
    while todo:
        id = todo.pop()
        if id in bundle.commits:
            continue
        record = await session.record(id)
        bundle.commits[id] = record.encoding()
        if id in grafts:
            bundle.grafts[id] = grafts[id]
        roots = record.roots()
        await session.serve(reach([record.root], known, bundle.taking(roots)), keep=False)
        known.difference_update(roots)  # another commit may not carry them
        todo += await session.parents(id)
    return bundle


async def _heads(session: HistorySession, part: bytes) -> dict[str, Head]:
    # Each is read again, so that the unit depends on it: a missing object is damage only if no head moved.
    names = [name async for name, _ in heads(session.unit, part)]
    found = [(name, await read_head(session.unit, part, name)) for name in names]
    return {name: head for name, head in found if head is not None}


async def import_history(session: HistorySession, bundle: Bundle, most: int | None = None) -> bool:
    """Write a history, and return whether it is complete. If not, call again to continue.

    The branch `main` comes last. What existing branches and tags lead to is not written again.

    Args:
        session: The session to write to.
        bundle: The history.
        most: The largest number of branches and tags to write.

    Raises:
        AlreadyExistsError: A branch or tag exists and is on another commit.
    """
    absent = await _absent(session, bundle)
    now = absent[:most]
    new = bundle if len(now) == len(bundle.branches) + len(bundle.tags) else _part(bundle, now, absent)
    for part, name, head in now:
        if part is layout.BRANCHES:
            await session.reject_recorded(name)
        put_head(session.unit, part, name, head)
    for object_name, (_, data) in new.objects.items():
        session.objects.put(object_name, data)
    for id, record in new.commits.items():
        session.unit.put_object(layout.COMMITS + id, pack_object(record))
    grafts = await session.grafts()
    fresh = {id: graft for id, graft in bundle.linked().items() if id in new.grafts and id not in grafts}
    if grafts:  # the next graft on a line may be one of these
        fresh = {id: msgspec.structs.replace(graft, below=b"") for id, graft in fresh.items()}
    if fresh:
        put_grafts(session.unit, {**grafts, **fresh})
    return len(now) == len(absent)


async def _absent(session: HistorySession, bundle: Bundle) -> list[_Named]:
    """Return the branches and tags that do not exist, `main` last. The batch depends on the others."""
    named = _named(bundle)
    keys = [layout.named_key(part, name) for part, name, _ in named]
    for begin in range(0, len(keys), limits.READ_KEYS):
        await session.unit.read(*keys[begin : begin + limits.READ_KEYS])
    absent: list[_Named] = []
    for key, (part, name, head) in zip(keys, named, strict=True):
        known = await read_head(session.unit, part, name)
        if known is None:
            absent.append((part, name, head))
        elif known.commit != head.commit:
            raise AlreadyExistsError(
                f"{describe(key)} of {session.unit.space!r} is on another commit; "
                "import the history into another space"
            )
    return sorted(absent, key=lambda one: one[:2] == (layout.BRANCHES, MAIN))


def _named(bundle: Bundle) -> list[_Named]:
    return [
        (part, name, head)
        for part, heads in ((layout.BRANCHES, bundle.branches), (layout.TAGS, bundle.tags))
        for name, head in heads.items()
    ]


def _part(bundle: Bundle, now: Sequence[_Named], absent: Sequence[_Named]) -> Bundle:
    """Return everything that some branches and tags lead to, except commits that the space already has."""
    missing = {one[:2] for one in absent}
    present = [head.commit for part, name, head in _named(bundle) if (part, name) not in missing]
    return bundle.below([head.commit for _, _, head in now], bundle.ancestors(present))
