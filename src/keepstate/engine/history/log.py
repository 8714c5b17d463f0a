"""Logs: a commit and its ancestors, the latest or the earliest first, perhaps only some of them.

The latest first, the order is that of generations. The earliest first, each commit of the line of first
parents comes after the commits that it merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

import msgspec

from keepstate.engine.history import paths
from keepstate.engine.history.ancestry import At, at, down_to, jump_from, parent_of, up_from
from keepstate.engine.history.difference import is_changed
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.engine.history.revisions import Found
from keepstate.engine.history.session import CommitPrefetch, HistorySession
from keepstate.values.touched import MarkedPath

_AT_ONCE = 1_024
"""Number of commits that are looked at before a page is returned, even if it is empty."""
_WINDOW, _LARGEST_WINDOW = 64, 1 << 20
_NEW, _OLD = 1, 2


class LogFilter(msgspec.Struct, frozen=True):
    """The commits to list: those for which everything holds that is given.

    Attributes:
        path: The value at this path differs from that in every parent.
        author: The author is this one.
        text: The message contains this text, in any case.
        meta: The notes have these keys with these values.
    """

    path: paths.Path | None = None
    author: str | None = None
    text: str | None = None
    meta: Mapping[str, str] = {}

    def fits(self, record: CommitRecord) -> bool:
        """Return whether a record has the author, the text and the notes."""
        return (
            (self.author is None or record.author == self.author)
            and (self.text is None or self.text.casefold() in record.message.casefold())
            and all(record.meta.get(key) == value for key, value in self.meta.items())
        )


class LogEntry(msgspec.Struct, frozen=True):
    """A listed commit, and its number if it is on the line of first parents."""

    place: At
    number: int | None


class _Selection:
    """Decides which commits are listed.

    Args:
        filter: What is listed.
        id: The commit in whose state the path of the filter is looked up.
    """

    def __init__(self, filter: LogFilter, id: bytes) -> None:
        self._filter, self._id = filter, id
        self._path: tuple[int | bytes, ...] | None = None
        self._place: MarkedPath | None = None

    @property
    def has_path(self) -> bool:
        """True if only changes at a path are listed."""
        return self._filter.path is not None

    async def open(self, session: HistorySession) -> None:
        """Look up the path."""
        if self._filter.path is not None and self._place is None:
            record = await session.record(self._id)
            self._path = await session.serve(paths.locate(record.root, self._filter.path))
            self._place = MarkedPath(self._path)

    async def fits(self, session: HistorySession, place: At) -> bool:
        """Return whether a commit is listed."""
        if not self._filter.fits(place.record):
            return False
        if self._path is None or self._place is None:
            return True
        if await session.graft(place.id) is None and not self._place.is_in(place.record.own_touched()):
            return False
        await session.record(place.id)  # loads the objects that it carries, also in a later session
        olds = [(await session.record(parent)).root for parent in await session.parents(place.id)]
        for old in olds or [EMPTY_STATE]:
            if not await session.serve(is_changed(old, place.record.root, self._path)):
                return False
        return True

    async def jump(self, session: HistorySession, place: At) -> tuple[bytes, int] | None:
        """Return a first parent such that no commit after it, down from this one, is listed."""
        record = place.record
        if self._place is None or record.merges or self._place.is_in(record.stretch_touched()):
            return None
        return await jump_from(session, place)


class Log:
    """A commit and all its ancestors, each after all its descendants. It can be continued later.

    Args:
        found: The commit.
        filter: What is listed.
    """

    def __init__(self, found: Found, filter: LogFilter) -> None:
        self._selection = _Selection(filter, found.id)
        self._heap, self._seen = [(-found.record.generation, found.id)], {found.id}
        self._next = found.id if found.number is not None else None
        self._ahead = None if self._selection.has_path else CommitPrefetch()
        self._taken: list[LogEntry] = []

    async def take(self, count: int, session: HistorySession) -> tuple[list[LogEntry], bool]:
        """Return the next commits, and whether there may be more. A failed call can be repeated."""
        await self._selection.open(session)
        # The next commits may have been pruned and collected since the last call.
        if self._heap:
            session.read_loosely(self._heap[0][1])
        session.ahead = self._ahead
        looked = 0
        while self._heap and len(self._taken) < count and looked < _AT_ONCE:
            looked += 1
            await self._step(session)
        taken, self._taken = self._taken, []
        return taken, bool(self._heap)

    async def _step(self, session: HistorySession) -> None:
        place = await at(session, self._heap[0][1])
        is_listed = await self._selection.fits(session, place)
        jump = await self._selection.jump(session, place)
        if jump is not None:
            first: bytes | None = jump[0]
            parents = [await at(session, *jump)]
        else:
            first = await session.first_parent(place.id)
            parents = [await at(session, parent) for parent in await session.parents(place.id)]
        heappop(self._heap)  # nothing below is interrupted
        number = None
        if place.id == self._next:
            number, self._next = place.number, first
        if is_listed:
            self._taken.append(LogEntry(place, number))
        for parent in parents:
            if parent.id not in self._seen:
                self._seen.add(parent.id)
                heappush(self._heap, (-parent.record.generation, parent.id))


class ReverseLog:
    """A commit and all its ancestors, the earliest first. It can be continued later.

    Args:
        found: The commit.
        first: The number, in the line of first parents, of the commit to start with; None for the earliest.
        filter: What is listed.
    """

    def __init__(self, found: Found, first: int | None, filter: LogFilter) -> None:
        self._selection = _Selection(filter, found.id)
        self._head, self._has_numbers = found.at, found.number is not None
        self._number, self._window = first or 1, _WINDOW

    async def take(self, count: int, session: HistorySession) -> tuple[list[LogEntry], bool]:
        """Return the next commits, of any number, and whether there may be more."""
        await self._selection.open(session)
        session.read_loosely(self._head.id)
        window = self._window if self._selection.has_path else min(count, self._window)
        bottom = await up_from(session, self._head, self._number)
        top = await down_to(session, self._head, max(bottom.number, self._number + window - 1))
        if top is None:
            return [], False
        line = await self._line(session, top, bottom.number)
        taken: list[LogEntry] = []
        for place in reversed(line):
            if await session.parents(place.id) not in ([], [await session.first_parent(place.id)]):
                taken += [LogEntry(one, None) for one in await self._merged(session, place)]
            if await self._selection.fits(session, place):
                taken.append(LogEntry(place, place.number if self._has_numbers else None))
        # A long window without a change at the path costs little more than a short one.
        grows = self._selection.has_path and not taken
        self._window = min(4 * self._window, _LARGEST_WINDOW) if grows else _WINDOW
        self._number = top.number + 1
        return taken, top.id != self._head.id

    async def _line(self, session: HistorySession, top: At, low: int) -> list[At]:
        """Return the commits of a line from one down to a number, but for stretches without listed ones."""
        line: list[At] = []
        place: At | None = top
        while place is not None and place.number >= low:
            jump = await self._selection.jump(session, place)
            if jump is not None and jump[1] >= low:
                place = await at(session, *jump)
                continue
            line.append(place)
            place = await parent_of(session, place)
        return line

    async def _merged(self, session: HistorySession, place: At) -> list[At]:
        """Return the listed commits that a merge brought into its line, the earliest first."""
        first = await session.first_parent(place.id)
        heap: list[tuple[int, bytes]] = []
        marks: dict[bytes, int] = {}

        async def add(id: bytes, mark: int) -> None:
            if id not in marks:
                heappush(heap, (-(await session.record(id)).generation, id))
            marks[id] = marks.get(id, 0) | mark

        for parent in await session.parents(place.id):
            await add(parent, _OLD if parent == first else _NEW)
        found: list[At] = []
        while any(marks[id] == _NEW for _, id in heap):
            _, id = heappop(heap)
            if marks[id] == _NEW:
                one = await at(session, id)
                if await self._selection.fits(session, one):
                    found.append(one)
            for parent in await session.parents(id):
                await add(parent, marks[id])
        return found[::-1]
