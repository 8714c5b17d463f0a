"""The commits that gave a part of a state its value: the last one, and all of a line.

The walk jumps over stretches whose marks say that they did not touch the part; see `lineage`. The marks may
say so much too often, so a commit that may have changed the part is compared with its parents.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.engine.history import paths
from keepstate.engine.history.ancestry import At, at, jump_from, parent_of
from keepstate.engine.history.difference import is_changed, path_before
from keepstate.engine.history.record import EMPTY_STATE
from keepstate.engine.history.revisions import Found, on_line
from keepstate.engine.history.session import HistorySession
from keepstate.values.diff import Path, Step
from keepstate.values.touched import MarkedPath


async def blame(session: HistorySession, found: Found, path: paths.Path) -> tuple[Found, bool]:
    """Return the commit that gave the value at a path its content, and whether that is certain.

    An item of a list is followed as its index changes.
    """
    encoded, _ = await session.serve(paths.find_path(found.record.root, path))
    while True:
        below = await step_over(session, found.at, MarkedPath(encoded))
        if below is not None:
            number = None if found.number is None else below.number
            found = Found(below.id, below.record, number, found.branch, found.is_held)
            continue
        older = await _older(session, found, encoded)
        if older is None:
            return found, await session.graft(found.id) is None
        found, encoded = older


async def step_over(session: HistorySession, place: At, wanted: MarkedPath) -> At | None:
    """Return a first parent since which nothing has changed at a path, or None if the commit may have.

    Nothing is stepped over where a line was pruned.
    """
    if not wanted.is_in(place.record.stretch_touched()):
        jump = await jump_from(session, place)
        if jump is not None:
            return await at(session, *jump)
    if not wanted.is_in(place.record.own_touched()) and await session.graft(place.id) is None:
        return await parent_of(session, place)
    return None


async def _older(session: HistorySession, found: Found, path: Path) -> tuple[Found, Path] | None:
    """Return a parent that has the same value, and the path of the value there."""
    first = await session.first_parent(found.id)
    for parent in await session.parents(found.id):
        record = await session.record(parent)
        old_path = await session.serve(path_before(record.root, found.record.root, path))
        if old_path is not None:
            number = None if found.number is None or parent != first else record.number
            return Found(parent, record, number, found.branch, found.is_held), old_path
    return None


# ---- all changes of a line


class Changes:
    """The commits of a line of first parents that changed the value at a path. The walk can be continued.

    Args:
        found: The commit to start from.
        path: The encoded path. An index of a list stays the same index.
    """

    def __init__(self, found: Found, path: Sequence[Step]) -> None:
        self._path, self._place = tuple(path), MarkedPath(path)
        self._next: Found | None = found
        self._taken: list[tuple[Found, bool]] = []

    async def take(self, count: int, session: HistorySession) -> list[tuple[Found, bool]]:
        """Return the next changes, each with whether the commit is certain; fewer at the end."""
        while self._next is not None and len(self._taken) < count:
            found = self._next
            session.read_loosely(found.id)
            below = await step_over(session, found.at, self._place)
            if below is None:
                below = await parent_of(session, found.at)
                await session.record(found.id)  # loads the objects that it carries, also in a later session
                old = EMPTY_STATE if below is None else below.record.root
                if await session.serve(is_changed(old, found.record.root, self._path)):
                    self._taken.append((found, await session.graft(found.id) is None))
            self._next = None if below is None else on_line(found, below)
        taken, self._taken = self._taken, []
        return taken
