"""Keeps the rules of a space in each batch that changes documents, and records the space if they say so.

A batch of a space without rules costs one check more. What makes commits is imported with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from keepstate._deferral import defer_imports
from keepstate.engine.documents.write_rules import KnownRules, SpaceRules, apply_rules
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, InvalidError
from keepstate.stores.protocol import Applied, Check

if TYPE_CHECKING:
    from keepstate.engine.history import objects as _objects
    from keepstate.engine.history.recording import commits as _commits
else:
    defer_imports(globals(), _commits="keepstate.engine.history.recording.commits")


class Recorder:
    """Keeps the rules of one space, and adds commits to its batches if the rules say that it is recorded.

    Args:
        cache: Returns a cache of objects.
    """

    def __init__(self, cache: Callable[[], _objects.ObjectCache]) -> None:
        self._space, self._cache = SpaceRules(), cache
        self._commits: _commits.RecordedCommits | None = None

    async def commit(self, executor: Executor, unit: Unit) -> Applied | None:
        """Apply a unit that changes documents, with a commit if the space is recorded.

        Raises:
            ConflictError: An entry that the unit has read or checks has changed. Nothing was applied.
            InvalidError: It writes a record of an indexed collection without its index entries.
        """
        space, has_read = self._space, unit.has_read(layout.RULES)
        if has_read:
            space.last = KnownRules.of(unit.as_read(layout.RULES), unit.losses)
        known = space.last if has_read or not space.last.is_void else KnownRules()
        rules = known.rules
        if not (space.is_recorded or executor.record or rules.is_recorded):
            try:
                apply_rules(unit, unit, rules)
            except InvalidError:
                if has_read or not known.version:
                    raise
                space.last = KnownRules()  # the space may have been dropped meanwhile
                await unit.get(layout.RULES)
                return await self.commit(executor, unit)
            if not has_read:
                unit.add_check(Check(layout.RULES, version=known.version))
            try:
                return await unit.commit()
            except ConflictError as conflict:
                if conflict.key != layout.RULES or has_read:
                    raise
            unit.drop_checks(layout.RULES)
        if self._commits is None:
            self._commits = _commits.RecordedCommits(space, self._cache())
        return await self._commits.commit(executor, unit)
