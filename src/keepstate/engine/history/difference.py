"""How two states differ, in values."""

from __future__ import annotations

from keepstate.engine.history.commits import Difference
from keepstate.engine.history.paths import decoded_or_none, steps_shown
from keepstate.engine.history.session import HistorySession
from keepstate.values.diff import diff
from keepstate.values.merkle import gather


async def differences(session: HistorySession, old: bytes, new: bytes) -> list[Difference]:
    """Return what leads from one state to another."""
    changes = await session.serve(diff(old, new))
    sides = [side for change in changes for side in (change.old, change.new) if side is not None]
    objects = await session.serve(gather(sides))
    return [
        Difference(
            steps_shown(change.path),
            change.kind,
            decoded_or_none(change.old, objects, session.states),
            decoded_or_none(change.new, objects, session.states),
        )
        for change in changes
    ]
