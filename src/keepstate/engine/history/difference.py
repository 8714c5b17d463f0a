"""Differences between two states."""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.engine.history import paths
from keepstate.engine.history.commits import Difference
from keepstate.engine.history.paths import decode_or, decode_steps, value_at
from keepstate.engine.history.session import HistorySession
from keepstate.errors import NotFoundError
from keepstate.values.contents import is_container, open_contents, whole
from keepstate.values.diff import Change, Path, Step, diff, unlike
from keepstate.values.merkle import gather
from keepstate.values.refs import Fetching
from keepstate.values.touched import lowest_difference


async def differences(
    session: HistorySession, old: bytes, new: bytes, path: paths.Path | None = None, limit: int | None = None
) -> list[Difference]:
    """Return the differences from one state to another, or from the value at a path to that of the other.

    Raises:
        NotFoundError: Neither state has the path.
    """
    changes = await session.serve(
        diff(old, new, limit=limit) if path is None else _diff_at(old, new, path, limit)
    )
    sides = [side for change in changes for side in (change.old, change.new) if side is not None]
    objects = await session.serve(gather(sides))
    return [
        Difference(
            decode_steps(change.path),
            decode_steps(change.old_path),
            change.kind,
            decode_or(None, change.old, objects, session.states),
            decode_or(None, change.new, objects, session.states),
        )
        for change in changes
    ]


def _diff_at(old: bytes, new: bytes, path: paths.Path, limit: int | None) -> Fetching[list[Change]]:
    was = yield from _find_or_none(old, path)
    if was is None:
        at, encoding = yield from paths.find_path(new, path)
        return [Change(at, at, "added", None, encoding)]
    now = yield from _find_or_none(new, path)
    if now is None:
        return [Change(was[0], was[0], "removed", was[1], None)]
    return (yield from diff(was[1], now[1], now[0], was[0], limit))


def _find_or_none(encoding: bytes, path: paths.Path) -> Fetching[tuple[Path, bytes] | None]:
    try:
        return (yield from paths.find_path(encoding, path))
    except NotFoundError:
        return None


def path_before(old: bytes, new: bytes, path: Path) -> Fetching[Path | None]:
    """Return the path that a value of the newer state had in the older one; None if the value changed."""
    if old == new:
        return path
    if not path or not (is_container(old) and is_container(new)):
        return None
    before = yield from open_contents(old)
    after = yield from open_contents(new)
    if before.style is not after.style:
        return None
    step, *rest = path
    if isinstance(step, int) and step >= (yield from lowest_difference(old, new)):
        # Equal items may be aligned in many ways; those before the first difference have not moved.
        shift = 0
        for block in (yield from unlike(before, after)):
            if step < block.new_begin:
                break
            if step < block.new_begin + len(block.new):
                if len(block.old) != len(block.new):
                    return None
                shift = block.begin - block.new_begin
                break
            shift = block.begin + len(block.old) - block.new_begin - len(block.new)
        step += shift
    was, now = (yield from before.find(step)), (yield from after.find(path[0]))
    if was is None or now is None:
        return None
    if was.name == now.name:
        return (step, *rest)
    earlier, later = yield from whole((was, now))
    below = yield from path_before(earlier, later, tuple(rest))
    return None if below is None else (step, *below)


def is_changed(old: bytes, new: bytes, path: Sequence[Step]) -> Fetching[bool]:
    """Return whether the values at a path differ in two states, or only one state has a value there."""
    if old == new:
        return False
    was = yield from value_at(old, path)
    now = yield from value_at(new, path)
    return was != now
