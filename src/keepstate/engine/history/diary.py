"""What happened on a branch, in order: a list on a branch of its own, written along with what it tells of.

One batch has both. So it is as durable as the commits, moves with no rollback, and shows in none of their
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepstate.engine.history.committing import admit_order, commit_onto
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.paths import find
from keepstate.engine.history.record import EMPTY_STATE
from keepstate.engine.history.writing import Appending
from keepstate.engine.scope import Scope
from keepstate.values.merkle import Planted, gather

DIARIES: Final = ".events/"
"""What the names of such branches start with."""
ENTRIES: Final = "events"
"""The one key of their states."""


class Diary:
    """What happened on one branch.

    Args:
        scope: Where its history is.
        branch: The branch.
    """

    def __init__(self, scope: Scope, branch: str) -> None:
        self._scope, self.branch = scope, DIARIES + branch
        self._appending = Appending()
        self._known: tuple[bytes, list[Any]] | None = None
        """What was read last, and the commit that has it."""
        self._noted: tuple[bytes | None, bytes, list[Planted]] | None = None

    async def note(self, ledger: Ledger, entries: Sequence[object], author: str | None) -> None:
        """Writes entries at its end; `applied` is to be called when the batch has."""
        order = admit_order(self._scope, self.branch, "", author)
        head = await ledger.branch(self.branch)
        base = head.commit if head else None
        root = (await ledger.record(base)).root if base else EMPTY_STATE
        planted = [self._scope.home.states.plant(entry) for entry in entries]
        state = await ledger.serve(self._appending.appended(root, (ENTRIES,), planted))
        outcome = await commit_onto(ledger, order, base, state)
        self._noted = base, outcome.id, planted

    def applied(self) -> None:
        """Takes what was noted last for written."""
        if self._noted is None:
            return
        before, now, planted = self._noted
        self._noted = None
        if self._known is not None and self._known[0] == before:
            codec = self._scope.home.states
            fresh = [codec.assemble(entry.encoding, entry.objects) for entry in planted]
            self._known = now, [*self._known[1], *fresh]

    async def read(self, ledger: Ledger) -> list[Any]:
        """Returns all that was noted, in order."""
        head = await ledger.branch(self.branch)
        if head is None:
            return []
        if self._known is None or self._known[0] != head.commit:
            record = await ledger.record(head.commit)
            _, encoding = await ledger.serve(find(record.root, (ENTRIES,)))
            objects = await ledger.serve(gather([encoding]))
            self._known = head.commit, self._scope.home.states.assemble(encoding, objects)
        return list(self._known[1])
