"""Logs: a commit and its ancestors, the latest or the earliest first, perhaps only some of them.

A log follows the line of first parents. Directly after a merge come the commits that it brought into the
line: the ancestors of its other parents that are not ancestors of its first one, by generation. Each commit
is therefore listed before its parents, and the earliest first is exactly the opposite order. The place of a
commit in a log is found in few reads, and a page begins there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from keepstate.engine.history import paths
from keepstate.engine.history.ancestry import (
    At,
    MergedCommits,
    at,
    down_to,
    is_ancestor,
    jump_from,
    parent_of,
    up_from,
)
from keepstate.engine.history.difference import is_changed
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.engine.history.revisions import Found
from keepstate.engine.history.session import CommitPrefetch, HistorySession
from keepstate.values.touched import MarkedPath

_AT_ONCE: Final = 1_024
"""Number of commits that are looked at before a page is returned, even if it is empty."""
_WINDOW: Final = 64
_LARGEST_WINDOW: Final = 1 << 20

_Key: TypeAlias = tuple[int, bytes]
"""The order of a line's commit and those that it merged: a negative generation, then the id."""


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
        """Return a first parent such that no commit after it, down from this one, is listed or a merge."""
        record = place.record
        if self._place is None or record.merges or self._place.is_in(record.stretch_touched()):
            return None
        return await jump_from(session, place)


class LogRange(msgspec.Struct, frozen=True):
    """The part of a log that a page begins with.

    Attributes:
        line: The commit of the line of first parents.
        passed: If given, only those of the line's commit and the ones that it merged follow that are listed
            after this.
    """

    line: At
    passed: _Key | None = None


async def start_after(session: HistorySession, found: Found, last: At) -> LogRange | None:
    """Return the place directly after a commit in the log of `found`; None if the log does not have it.

    The commit that merged it is searched from the earliest that may have done so, in steps that double.
    """
    key = _key_of(last)
    line = await down_to(session, found.at, last.number)
    if line is not None and line.id == last.id:
        return LogRange(line, key)
    high = low = await _lowest_above(session, found.at, last.record.generation)
    step = 1
    while not await is_ancestor(session, last.id, high.id):
        if high.id == found.id:
            return None
        low = high
        high = await up_from(session, found.at, high.number + step)
        step *= 2
    while low.number + 1 < high.number:
        middle = await up_from(session, found.at, (low.number + high.number) // 2)
        if middle.id == high.id:  # what is between was pruned
            middle = await up_from(session, found.at, low.number + 1)
            if middle.id == high.id:
                break
        if await is_ancestor(session, last.id, middle.id):
            high = middle
        else:
            low = middle
    return LogRange(high, key)


async def _lowest_above(session: HistorySession, head: At, generation: int) -> At:
    """Return the last commit of a line, from its head on, whose generation is above another one."""
    place = head
    while True:
        jump = await jump_from(session, place)
        lower = None if jump is None else await at(session, *jump)
        if lower is None or lower.record.generation <= generation:
            lower = await parent_of(session, place)
        if lower is None or lower.record.generation <= generation:
            return place
        place = lower


def _key_of(place: At) -> _Key:
    return -place.record.generation, place.id


class Log:
    """A commit and all its ancestors, the latest first. It can be continued later.

    Args:
        found: The commit.
        start: The place to begin at.
        filter: What is listed.
    """

    def __init__(self, found: Found, start: LogRange, filter: LogFilter) -> None:
        self._selection = _Selection(filter, found.id)
        self._has_numbers = found.number is not None
        self._line: At | None = start.line
        self._passed = start.passed
        self._merged: MergedCommits | None = None
        self._ahead = None if self._selection.has_path else CommitPrefetch()

    async def take(self, count: int, session: HistorySession) -> tuple[list[LogEntry], bool]:
        """Return the next commits, and whether there may be more. A failed call can be repeated."""
        line, passed = self._line, self._passed
        merged, self._merged = self._merged, None  # a walk that fails begins again
        if line is None:
            return [], False
        await self._selection.open(session)
        # The next commits may have been pruned and collected since the last call.
        session.read_loosely(line.id)
        session.ahead = self._ahead
        taken: list[LogEntry] = []
        looked = 0
        while line is not None and len(taken) < count and looked < _AT_ONCE:
            looked += 1
            jump = None if merged is not None else await self._selection.jump(session, line)
            if jump is not None:
                line, passed = await at(session, *jump), None
                continue
            if merged is None:
                if passed is None and await self._selection.fits(session, line):
                    taken.append(LogEntry(line, line.number if self._has_numbers else None))
                passed = passed or _key_of(line)
                merged = await MergedCommits.of(session, line)
            one = None if merged is None else await merged.next(session, self._selection.jump)
            if one is None:
                line, passed, merged = await parent_of(session, line), None, None
            elif passed is None or _key_of(one) > passed:
                passed = _key_of(one)
                if await self._selection.fits(session, one):
                    taken.append(LogEntry(one, None))
        self._line, self._passed, self._merged = line, passed, merged
        return taken, line is not None


class ReverseLog:
    """A commit and all its ancestors, the earliest first. It can be continued later.

    Args:
        found: The commit.
        start: The place to begin at; None for the earliest commit.
        filter: What is listed.
    """

    def __init__(self, found: Found, start: LogRange | None, filter: LogFilter) -> None:
        self._selection = _Selection(filter, found.id)
        self._head, self._has_numbers = found.at, found.number is not None
        self._number, self._window = 1 if start is None else start.line.number, _WINDOW
        self._passed = None if start is None else start.passed

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
            passed = self._passed if place.number == self._number else None
            for one in await self._group(session, place):
                if (passed is None or _key_of(one) < passed) and await self._selection.fits(session, one):
                    number = one.number if self._has_numbers and one.id == place.id else None
                    taken.append(LogEntry(one, number))
        # A long window without a change at the path costs little more than a short one.
        grows = self._selection.has_path and not taken
        self._window = min(4 * self._window, _LARGEST_WINDOW) if grows else _WINDOW
        self._number, self._passed = top.number + 1, None
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

    async def _group(self, session: HistorySession, place: At) -> list[At]:
        """Return a commit of the line after those that it merged, the earliest first."""
        group = [place]
        merged = await MergedCommits.of(session, place)
        while merged is not None and (one := await merged.next(session, self._selection.jump)) is not None:
            group.append(one)
        return group[::-1]
