"""Collects what no branch or tag leads to any more, beside live writers.

The collector writes `gc/epoch` at revision R and looks at all branches, tags and grafts there have been from
then on until it had read them all: the log tells what changed meanwhile. It marks what they lead to, and
deletes what is unmarked and of a version below R, each under its exact version. What is written meanwhile is
safe: its objects were put after R, or lie below a branch or tag that its batch checks, or came ahead of a
batch that checks the epoch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from keepstate.engine.history.heads import Head
from keepstate.engine.history.objects import key_maker
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CompactedError, ConflictError, CorruptError, KeepstateError
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Entry, Put, Store
from keepstate.values import limits
from keepstate.values.merkle import reach

_BY_BATCH = limits.BATCH_CHECKS // 2
_ATTEMPTS = 8


async def collect_history(store: Store, space: str) -> int:
    """Delete what no branch or tag leads to, and return how many commits and objects that were.

    Raises:
        CompactedError: More was written meanwhile than the log keeps, again and again.
        CorruptError: A commit or object is missing, or damaged; nothing was deleted.
    """
    marked: set[bytes] | None = None
    since = 0
    attempt = 1
    while marked is None:
        epoch = (await store.apply([Batch(space, [Put(layout.EPOCH, b"")])]))[0]
        if not isinstance(epoch, Applied):
            raise _unexpected(epoch, space)
        since = epoch.revision
        try:
            marked = await _marked(store, space, since)
        except (ConflictError, CompactedError, CorruptError):
            # Somebody pruned, or collected what a branch led to that was deleted since.
            if attempt == _ATTEMPTS:
                raise
            attempt += 1
    removed = 0
    garbage: list[Check] = []
    async for entry in _entries(store, space, layout.COMMITS, layout.STATES):
        if entry.version < since and entry.key not in marked:
            garbage.append(Check(entry.key, version=entry.version))
        if len(garbage) == _BY_BATCH:
            removed += await _delete(store, space, garbage)
            garbage = []
    return removed + await _delete(store, space, garbage)


async def _entries(store: Store, space: str, *prefixes: bytes) -> AsyncIterator[Entry]:
    for prefix in prefixes:
        after: bytes | None = None
        while True:
            page = await store.scan(space, prefix, after=after)
            for entry in page.entries:
                yield entry
            after = page.next
            if after is None:
                break


# ---- marking


async def _marked(store: Store, space: str, since: int) -> set[bytes]:
    """Return the keys of all that a branch or tag led to at any time since a revision."""
    session = HistorySession(Unit(store, space), Records())
    # Read before heads are: what somebody lets go of later may have got another name just before.
    await session.grafts()
    heads: set[bytes] = set()
    told_to = last = since
    for part in (layout.BRANCHES, layout.TAGS):
        after: bytes | None = None
        while True:
            page = await store.scan(space, part, after=after)
            heads |= {_commit(entry.value) for entry in page.entries}
            after, last = page.next, page.revision
            if after is None:
                break
    while told_to < last:
        changes = await store.changes(space, told_to)
        told_to = changes.upto
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


# ---- deleting


async def _delete(store: Store, space: str, garbage: list[Check]) -> int:
    left = {check.key: check for check in garbage}
    while left:
        batch = Batch(space, [Delete(key) for key in left], list(left.values()))
        outcome = (await store.apply([batch]))[0]
        if isinstance(outcome, Applied):
            return len(left)
        if not isinstance(outcome, Conflict) or outcome.key is None:
            raise _unexpected(outcome, space)
        del left[outcome.key]  # put again meanwhile: in use, or gone already
    return 0


def _unexpected(outcome: object, space: str) -> KeepstateError:
    if isinstance(outcome, KeepstateError):
        return outcome
    return KeepstateError(f"collecting the history of {space!r} met {outcome!r}; try again")
