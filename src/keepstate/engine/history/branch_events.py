"""What happened on a branch, in order: a list on a branch of its own, written along with what it tells of.

One batch has both. So it is as durable as the commits, moves with no rollback, and shows in none of their
states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from keepstate.engine.history.commit_request import admit_order, commit_onto
from keepstate.engine.history.paths import find
from keepstate.engine.history.record import EMPTY_STATE
from keepstate.engine.history.session import HistorySession
from keepstate.engine.history.state_encoding import Appending
from keepstate.engine.kernel.executor import Executor
from keepstate.values.merkle import MerkleValue, gather

DIARIES: Final = ".events/"
"""What the names of such branches start with."""
ENTRIES: Final = "events"
"""The one key of their states."""


class BranchEventLog:
    """What happened on one branch.

    Args:
        executor: Where its history is.
        branch: The branch.
    """

    def __init__(self, executor: Executor, branch: str) -> None:
        self._executor, self.branch = executor, DIARIES + branch
        self._appending = Appending()
        self._known: tuple[bytes, list[Any]] | None = None
        """What was read last, and the commit that has it."""
        self._noted: tuple[bytes | None, bytes, list[MerkleValue]] | None = None

    async def note(self, session: HistorySession, entries: Sequence[object], author: str | None) -> None:
        """Write entries at its end; `applied` is to be called when the batch has."""
        request = admit_order(self._executor, self.branch, "", author)
        head = await session.branch(self.branch)
        base = head.commit if head else None
        root = (await session.record(base)).root if base else EMPTY_STATE
        planted = [self._executor.home.states.to_merkle(entry) for entry in entries]
        state = await session.serve(self._appending.appended(root, (ENTRIES,), planted))
        outcome = await commit_onto(session, request, base, state)
        self._noted = base, outcome.id, planted

    def applied(self) -> None:
        """Take what was noted last for written."""
        if self._noted is None:
            return
        before, now, planted = self._noted
        self._noted = None
        if self._known is not None and self._known[0] == before:
            codec = self._executor.home.states
            fresh = [codec.assemble(entry.encoding, entry.objects) for entry in planted]
            self._known = now, [*self._known[1], *fresh]

    async def read(self, session: HistorySession) -> list[Any]:
        """Return all that was noted, in order."""
        head = await session.branch(self.branch)
        if head is None:
            return []
        if self._known is None or self._known[0] != head.commit:
            record = await session.record(head.commit)
            _, encoding = await session.serve(find(record.root, (ENTRIES,)))
            objects = await session.serve(gather([encoding]))
            self._known = head.commit, self._executor.home.states.assemble(encoding, objects)
        return list(self._known[1])
