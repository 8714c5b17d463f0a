"""Walks over commits and their ancestors, ordered by generation, never by time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from heapq import heappop, heappush

from keepstate.engine.history.record import CommitRecord
from keepstate.engine.history.session import CommitPrefetch, HistorySession

_OURS, _THEIRS, _BELOW = 1, 2, 4


async def first_parents(session: HistorySession, id: bytes) -> AsyncIterator[tuple[bytes, CommitRecord]]:
    """Yield a commit, its first parent, the first parent of that, and so on."""
    while True:
        yield id, await session.record(id)
        parent = await session.first_parent(id)
        if parent is None:
            return
        id = parent


async def depth(session: HistorySession, id: bytes) -> int:
    """Return the number of a commit in its line of first parents."""
    count = 0
    async for at, _ in first_parents(session, id):
        count += 1 + await session.skipped(at)
    return count


class Walk:
    """A walk from a commit over all its ancestors, each after all its descendants. It can be continued later.

    Args:
        id: The commit.
        number: Its number by first parents, if known.
    """

    def __init__(self, id: bytes, number: int | None) -> None:
        self._heap, self._seen = [(0, id)], {id}
        self._next, self._number = id, number
        self._ahead = CommitPrefetch()

    async def take(self, count: int, session: HistorySession) -> list[tuple[bytes, CommitRecord, int | None]]:
        """Return the next commits, with the number of those on the line of first parents; none at the end."""
        # The next commits may have been pruned and collected since the last call.
        session.read_loosely(self._next)
        session.ahead = self._ahead
        taken: list[tuple[bytes, CommitRecord, int | None]] = []
        while self._heap and len(taken) < count:
            _, id = heappop(self._heap)
            record = await session.record(id)
            first, skipped = await session.first_parent(id), await session.skipped(id)
            taken.append((id, record, self._number_of(id, first, skipped)))
            for parent in await session.parents(id):
                if parent not in self._seen:
                    self._seen.add(parent)
                    heappush(self._heap, (-(await session.record(parent)).generation, parent))
        return taken

    def _number_of(self, id: bytes, first: bytes | None, skipped: int) -> int | None:
        if id != self._next or self._number is None:
            return None
        number = self._number
        self._number -= 1 + skipped
        self._next = first or b""
        return number


async def is_ancestor(session: HistorySession, id: bytes, head: bytes) -> bool:
    """Return whether a commit is the head or one of its ancestors."""
    generation = (await session.record(id)).generation
    todo, seen = [head], {head}
    while todo:
        at = todo.pop()
        if at == id:
            return True
        record = await session.record(at)
        if record.generation <= generation:
            continue
        for parent in await session.parents(at):
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return False


async def merge_bases(session: HistorySession, ours: bytes, theirs: bytes) -> list[bytes]:
    """Return the latest common ancestors; none of them is an ancestor of another."""
    marks = {ours: _OURS}
    marks[theirs] = marks.get(theirs, 0) | _THEIRS
    heap = [(-(await session.record(id)).generation, id) for id in marks]
    heap.sort()
    bases: list[bytes] = []
    # A commit is taken after all its descendants, so its marks are complete.
    while any(not marks[id] & _BELOW for _, id in heap):
        _, id = heappop(heap)
        mark = marks[id]
        if mark == _OURS | _THEIRS:
            bases.append(id)
            mark |= _BELOW
        for parent in await session.parents(id):
            if parent not in marks:
                heappush(heap, (-(await session.record(parent)).generation, parent))
                marks[parent] = 0
            marks[parent] |= mark
    return sorted(bases)
