"""What keeps a history in order: its size, its soundness, and letting go of what is old."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from os import PathLike
from typing import TypeVar

import msgspec

from keepstate.engine.history.archive import Archive, put_path
from keepstate.engine.history.archive_file import confirm_file
from keepstate.engine.history.bundle import Bundle, read_bundle, write_bundle
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    admit_order,
    commit_turn,
    squash,
)
from keepstate.engine.history.commits import (
    Commit,
    HistoryStats,
    Pruned,
    Verified,
    commit_of,
)
from keepstate.engine.history.garbage import collect_history
from keepstate.engine.history.heads import MAIN
from keepstate.engine.history.prune import Keeping, prune
from keepstate.engine.history.revisions import Revision, find_commit
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.history.survey import survey, verify
from keepstate.engine.history.transfer import brought_in, taken_out
from keepstate.engine.kernel.arguments import check_flag, check_path, require_instance
from keepstate.engine.kernel.executor import ATTEMPTS, Executor
from keepstate.engine.kernel.times import to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import AttemptsExhaustedError, InvalidError
from keepstate.values import limits

T = TypeVar("T")

_HEADS = limits.BATCH_WRITES // 2
"""So many branches and tags are brought in by one batch."""


class Upkeep:
    """The part of a history that concerns all of it."""

    def __init__(self, executor: Executor) -> None:
        self._executor, self._records = executor, Records()
        self._archive = Archive(executor)

    async def stats(self) -> HistoryStats:
        """Return how large the history is; what is written meanwhile may be counted or not."""
        self._executor.require_outside_transaction("counting a history")
        return await survey(await self._executor.store(), self._executor.stored_name)

    async def verify(self) -> Verified:
        """Compare every byte that branches and tags lead to with its name, and return what is damaged."""
        self._executor.require_outside_transaction("verifying a history")
        store = await self._executor.store()
        return await verify(Unit(store, self._executor.stored_name))

    async def squash(
        self, branch: str = MAIN, *, since: Revision, message: str = "", author: str | None = None
    ) -> Commit:
        """Put one commit in place of all on a branch that come after another; its state stays.

        The commits are left to whoever else leads to them, and else collected.

        Args:
            branch: The branch.
            since: The last commit to be left as it is; one of the branch's first parents.
            message: What for; it says how many there were if it is not given.
            author: Who commits.

        Raises:
            NotFoundError: `since` is none of the branch's first parents.
        """
        request = admit_order(self._executor, branch, message, author)

        async def work(session: HistorySession) -> CommitResult:
            return await squash(session, request, await find_commit(session, since))

        return await self._moved(work, request)

    # ---- retention

    async def prune(
        self,
        *,
        keep_last: int | None = None,
        older_than: datetime | timedelta | None = None,
        keep_tagged: bool = True,
    ) -> Pruned:
        """Let go of old commits, and delete what nothing leads to any more. It may run beside writers.

        What is kept goes on to say who came before it: its nearest kept ancestors. `main#37` stays the same
        commit, or raises `PrunedError`. The heads of branches are always kept.

        Args:
            keep_last: Keeps so many commits of each branch, by first parents.
            older_than: Keeps what was made since then, or within that time from now.
            keep_tagged: Keeps what has a tag; else tags of what is let go of are removed.

        Raises:
            InvalidError: Neither `keep_last` nor `older_than` is given.
        """
        self._executor.require_outside_transaction("pruning")
        keeping = await self._keeping(keep_last, older_than, keep_tagged)
        commits = await self._run(lambda session: prune(session, keeping))
        return Pruned(commits, await self.collect())

    async def _keeping(
        self, keep_last: int | None, older_than: datetime | timedelta | None, tagged: object
    ) -> Keeping:
        if keep_last is None and older_than is None:
            raise InvalidError("pruning needs `keep_last` or `older_than`, what is to be kept")
        if keep_last is not None:
            limits.admit_count("keep_last", keep_last)
        keep_tagged = check_flag("keep_tagged", tagged)
        if older_than is None:
            return Keeping(keep_last, None, keep_tagged)
        since_ms = await self._run(lambda session: _since(session, older_than))
        return Keeping(keep_last, since_ms, keep_tagged)

    async def collect(self) -> int:
        """Delete what no branch or tag leads to, and return how many commits and objects that were.

        It may run beside writers, and beside another one of its kind.
        """
        self._executor.require_outside_transaction("collecting")
        self._records = Records()
        return await collect_history(await self._executor.store(), self._executor.stored_name)

    async def archive(
        self,
        path: str | PathLike[str],
        *,
        keep_last: int | None = None,
        older_than: datetime | timedelta | None = None,
        keep_tagged: bool = True,
    ) -> Pruned:
        """Move old commits into a file; `at`, `checkout`, `log`, `diff` and `blame` read them from there.

        The file is on the disk before anything is deleted. The space names it by its whole path; where there
        is no such file, the history is a pruned one. Given again, the same file takes more. Several may
        archive at once. Memory is used for all of it. What was archived is read and not built on: it is no
        `to` of a `rollback`.

        Args:
            path: The file, a bundle; the space's own archive is added to, any other must not be there.
            keep_last: As for `prune`.
            older_than: As for `prune`.
            keep_tagged: As for `prune`.

        Raises:
            AlreadyExistsError: Another file is there.
            PrunedError: An earlier archive of the space is not here.
            InvalidError: Neither `keep_last` nor `older_than` is given, or the file's folder is not there.
            UnsupportedError: The file's file system knows no locks.
        """
        self._executor.require_outside_transaction("archiving a history")
        keeping = await self._keeping(keep_last, older_than, keep_tagged)
        file = os.path.abspath(check_path("path", path))
        confirm_file(file)

        for _ in range(ATTEMPTS):
            commits = await self._moved_into(file, keeping)
            if commits is not None:
                return Pruned(commits, await self.collect())
        raise AttemptsExhaustedError(
            f"other callers archived the history of {self._executor.name!r} {ATTEMPTS} times meanwhile; "
            "let one caller archive it",
            attempts=ATTEMPTS,
        )

    async def _moved_into(self, file: str, keeping: Keeping) -> int | None:
        """Return how many commits were moved into a file; None if somebody else archived meanwhile."""
        now = await self._run(taken_out)
        before, _ = await self._executor.run(lambda unit: self._archive.before(unit, file, now))
        whole = await self._archive.keep(file, now, before)

        async def work(session: HistorySession) -> int | None:
            if not await put_path(session.unit, file, before):
                return None
            return await prune(session, msgspec.structs.replace(keeping, archived=whole.commits.keys()))

        return await self._run(work)

    # ---- in and out

    async def export_bundle(self, path: str | PathLike[str]) -> int:
        """Write the whole history into one file, and return how many commits it has.

        The file is written whole or not at all; one that is there is replaced. Memory is used for all of it.
        """
        self._executor.require_outside_transaction("exporting a history")
        file = check_path("path", path)
        bundle = await self._run(taken_out)
        await self._executor.runner.call(write_bundle, bundle, file)
        return len(bundle.commits)

    async def import_bundle(self, path: str | PathLike[str]) -> int:
        """Bring the history of a file in, compared byte by byte with its names, and return its commits.

        Raises:
            InvalidError: There is no such file, or it is no bundle.
            CorruptError: It is damaged, or lacks something; nothing was written.
            AlreadyExistsError: A branch or tag of the same name stands on another commit.
        """
        bundle = await self._executor.runner.call(read_bundle, check_path("path", path))
        return await self._bring_in(bundle)

    # ---- running

    async def _bring_in(self, bundle: Bundle) -> int:
        """Write a history, in as many batches as its branches and tags need, and return its commits."""
        most = None if self._executor.gathers else _HEADS
        while not await self._run(lambda session: brought_in(session, bundle, most)):
            pass
        return len(bundle.commits)

    def _session(self, unit: Unit, archive: Archive | None = None) -> HistorySession:
        executor = self._executor
        return HistorySession(
            unit, self._records, states=executor.home.states, record=executor.record, archive=archive
        )

    async def _look(self, work: Callable[[HistorySession], Awaitable[T]]) -> T:
        """Return the answer of work that only reads, also of what was archived."""

        async def joined(unit: Unit) -> T:
            return await work(self._session(unit, self._archive))

        return (await self._executor.run(joined))[0]

    async def _run(self, work: Callable[[HistorySession], Awaitable[T]]) -> T:
        async def joined(unit: Unit) -> T:
            return await work(self._session(unit))

        return (await self._executor.run(joined))[0]

    async def _moved(
        self,
        work: Callable[[HistorySession], Awaitable[CommitResult]],
        request: CommitRequest,
        *,
        once: bool = False,
    ) -> Commit:
        """Return what the branch is on after work, repeated while others move it; or not repeated."""

        async def joined(unit: Unit) -> tuple[Unit, CommitResult]:
            return unit, await work(self._session(unit))

        if once:
            (unit, told), _ = await self._executor.run(joined, attempts=1)
        else:
            (unit, told), _ = await self._executor.serialized(commit_turn(request.branch), joined)
        outcome = unit.recorded or told
        return commit_of(outcome.id, outcome.record, outcome.number, request.branch)


async def _since(session: HistorySession, older_than: datetime | timedelta) -> int:
    if isinstance(older_than, timedelta):
        if older_than < timedelta():
            raise InvalidError(f"`older_than` is {older_than}; give a time that has passed, not one to come")
        return await session.unit.now_ms() - older_than // timedelta(milliseconds=1)
    require_instance("older_than", older_than, datetime, timedelta)
    if older_than.tzinfo is None:
        raise InvalidError(f"`older_than` is {older_than!r}; give an aware datetime or a timedelta")
    return to_milliseconds(older_than)
