"""Who gave a part of a state the value that it has."""

from __future__ import annotations

from keepstate.engine.history import paths
from keepstate.engine.history.revisions import Found
from keepstate.engine.history.session import HistorySession
from keepstate.values.contents import is_container, open_contents, whole
from keepstate.values.diff import Path, unlike
from keepstate.values.refs import Fetching


async def blame(session: HistorySession, found: Found, path: paths.Path) -> tuple[Found, bool]:
    """Return the commit that gave what lies at a path its value, and whether none before it can have.

    A list's item is followed to where it stood before.
    """
    way, _ = await session.serve(paths.find_path(found.record.root, path))
    while True:
        older = await _older(session, found, way)
        if older is None:
            return found, await session.graft(found.id) is None
        found, way = older


async def _older(session: HistorySession, found: Found, way: Path) -> tuple[Found, Path] | None:
    """Return a parent that has the same value, and where."""
    first = await session.first_parent(found.id)
    for parent in await session.parents(found.id):
        record = await session.record(parent)
        there = await session.serve(_followed(record.root, found.record.root, way))
        if there is not None:
            number = found.number
            if number is not None:
                number = None if parent != first else number - 1 - await session.skipped(found.id)
            return Found(parent, record, number, found.branch, found.is_held), there
    return None


def _followed(old: bytes, new: bytes, way: Path) -> Fetching[Path | None]:
    """Return where in an older value that lay which lies at `way` in the newer; None if it was another."""
    if old == new:
        return way
    if not way or not (is_container(old) and is_container(new)):
        return None
    before = yield from open_contents(old)
    after = yield from open_contents(new)
    if before.style is not after.style:
        return None
    place, *rest = way
    if isinstance(place, int):
        shift = 0
        for block in (yield from unlike(before, after)):
            if place < block.new_begin:
                break
            if place < block.new_begin + len(block.new):
                if len(block.old) != len(block.new):
                    return None
                shift = block.begin - block.new_begin
                break
            shift = block.begin + len(block.old) - block.new_begin - len(block.new)
        place += shift
    was, now = (yield from before.find(place)), (yield from after.find(way[0]))
    if was is None or now is None:
        return None
    if was.name == now.name:
        return (place, *rest)
    earlier, later = yield from whole((was, now))
    below = yield from _followed(earlier, later, tuple(rest))
    return None if below is None else (place, *below)
