"""The base of the parts of a history. It runs their work as a unit of the space, or in a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from keepstate.engine.history.archive import Archive
from keepstate.engine.history.commit_request import CommitRequest, CommitResult, commit_turn
from keepstate.engine.history.commits import Commit, commit_of
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.observation import current
from keepstate.engine.kernel.unit import Unit

T = TypeVar("T")


class HistoryPart:
    """A part of the interface of a history, with the caches that all parts of one history share."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._records = executor, Records()
        self._archive = Archive(executor)

    async def _read(self, work: Callable[[HistorySession], Awaitable[T]]) -> T:
        """Run work that only reads, with access to archived commits."""
        return await self._run(work, self._archive)

    async def _run(self, work: Callable[[HistorySession], Awaitable[T]], archive: Archive | None = None) -> T:
        async def joined(unit: Unit) -> T:
            return await work(HistorySession.of(self._executor, unit, self._records, archive))

        return (await self._executor.run(joined))[0]

    async def _commit(
        self,
        work: Callable[[HistorySession], Awaitable[CommitResult]],
        request: CommitRequest,
        *,
        once: bool = False,
    ) -> Commit:
        """Run work that commits, again while other callers move the branch, unless `once`."""

        async def joined(unit: Unit) -> tuple[Unit, CommitResult]:
            return unit, await work(HistorySession.of(self._executor, unit, self._records))

        if once:
            (unit, own), _ = await self._executor.run(joined, attempts=1, supposes=True)
        else:
            (unit, own), _ = await self._executor.serialized(commit_turn(request.branch), joined)
        result = unit.recorded or own
        if (operation := current()) is not None and not self._executor.gathers:
            operation.commit = result.id.hex()
        return commit_of(result.id, result.record, result.number, request.branch)
