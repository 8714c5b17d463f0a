"""What jumps and marks must come to: the same questions, answered by looking at every commit on the way."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from keepstate.engine.history import blame as by_marks
from keepstate.engine.history import paths
from keepstate.engine.history.ancestry import first_parents
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.engine.history.revisions import Found
from keepstate.engine.history.session import HistorySession
from keepstate.values.diff import Step

_OURS, _THEIRS, _BELOW = 1, 2, 4


async def line(session: HistorySession, id: bytes) -> list[tuple[bytes, CommitRecord]]:
    """Return a commit and its kept first parents."""
    return [pair async for pair in first_parents(session, id)]


async def ancestors(session: HistorySession, id: bytes) -> set[bytes]:
    """Return a commit and all that it descends from."""
    todo, seen = [id], {id}
    while todo:
        new = set(await session.parents(todo.pop())) - seen
        seen |= new
        todo += new
    return seen


async def log(session: HistorySession, id: bytes) -> list[bytes]:
    """Return a commit and all its ancestors: the line, and directly after each merge what it brought."""
    found: list[bytes] = []
    at: bytes | None = id
    while at is not None:
        first = await session.first_parent(at)
        before = set[bytes]() if first is None else await ancestors(session, first)
        brought = await ancestors(session, at) - before - {at}
        generations = {one: (await session.record(one)).generation for one in brought}
        found += [at, *sorted(brought, key=lambda one: (-generations[one], one))]
        at = first
    return found


async def blame(session: HistorySession, found: Found, path: Any) -> tuple[bytes, bool]:
    """Return who gave a value, by a comparison of each commit with its parents."""
    encoded, _ = await session.serve(paths.find_path(found.record.root, path))
    while True:
        older = await by_marks._older(session, found, encoded)
        if older is None:
            return found.id, await session.graft(found.id) is None
        found, encoded = older


async def changes(session: HistorySession, id: bytes, path: Sequence[Step]) -> list[tuple[bytes, bool]]:
    """Return the commits of a line whose value is not that of the first parent."""
    found: list[tuple[bytes, bool]] = []
    whole = await line(session, id)
    for place, (at, record) in enumerate(whole):
        old = whole[place + 1][1].root if place + 1 < len(whole) else EMPTY_STATE
        if await session.serve(paths.value_at(old, path)) != await session.serve(
            paths.value_at(record.root, path)
        ):
            found.append((at, await session.graft(at) is None))
    return found


async def changed(session: HistorySession, id: bytes, path: Sequence[Step]) -> bool:
    """Return whether a commit's value is not that of any parent."""
    now = await session.serve(paths.value_at((await session.record(id)).root, path))
    olds = [(await session.record(parent)).root for parent in await session.parents(id)] or [EMPTY_STATE]
    return all([await session.serve(paths.value_at(old, path)) != now for old in olds])


async def bases(session: HistorySession, ours: bytes, theirs: bytes) -> list[bytes]:
    """Return the best common ancestors, by marking each ancestor after all its descendants."""
    marks = {ours: _OURS}
    marks[theirs] = marks.get(theirs, 0) | _THEIRS
    heap = [(-(await session.record(id)).generation, id) for id in marks]
    heapify(heap)
    found: list[bytes] = []
    while any(not marks[id] & _BELOW for _, id in heap):
        _, id = heappop(heap)
        mark = marks[id]
        if mark == _OURS | _THEIRS:
            found.append(id)
            mark |= _BELOW
        for parent in await session.parents(id):
            if parent not in marks:
                heappush(heap, (-(await session.record(parent)).generation, parent))
                marks[parent] = 0
            marks[parent] |= mark
    return sorted(found)
