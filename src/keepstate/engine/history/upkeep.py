"""The size, integrity and retention of a history, as callers see them."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from os import PathLike

import msgspec

from keepstate.engine.history.archive import confirm_file, put_path
from keepstate.engine.history.commits import HistoryStats, Pruned, Verified
from keepstate.engine.history.part import HistoryPart
from keepstate.engine.history.retention import Keeping, collect_history, prune
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.history.transfer import export_history
from keepstate.engine.history.verification import survey, verify
from keepstate.engine.kernel.arguments import check_flag, check_path, require_instance
from keepstate.engine.kernel.executor import ATTEMPTS
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import AttemptsExhaustedError, InvalidError
from keepstate.values import limits


class Upkeep(HistoryPart):
    """Counts, verifies and prunes a history."""

    # ---- size and integrity

    async def stats(self) -> HistoryStats:
        """Return the size of the history. Concurrent writes may or may not be counted."""
        self._executor.require_outside_transaction("counting a history")
        return await survey(await self._executor.store(), self._executor.stored_name)

    async def verify(self) -> Verified:
        """Compare every commit and object that branches and tags lead to with its name; return the damage."""
        self._executor.require_outside_transaction("verifying a history")
        store = await self._executor.store()
        return await verify(Unit(store, self._executor.stored_name))

    # ---- retention

    async def prune(
        self,
        *,
        keep_last: int | None = None,
        older_than: datetime | timedelta | None = None,
        keep_tagged: bool = True,
    ) -> Pruned:
        """Drop old commits, and delete what no branch or tag leads to. Writers may run at the same time.

        The parents of a kept commit are then its nearest kept ancestors. `main#37` remains the same commit,
        or raises `PrunedError`. The heads of branches are always kept.

        Args:
            keep_last: The number of commits to keep of each branch, by first parents.
            older_than: Keep commits made since this time, or within this duration before now.
            keep_tagged: Whether to keep tagged commits. If not, the tags of dropped commits are deleted.

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
            raise InvalidError("pruning needs `keep_last` or `older_than`, which say what to keep")
        if keep_last is not None:
            limits.admit_count("keep_last", keep_last)
        keep_tagged = check_flag("keep_tagged", tagged)
        if older_than is None:
            return Keeping(keep_last, None, keep_tagged)
        since_ms = await self._run(lambda session: _since_ms(session, older_than))
        return Keeping(keep_last, since_ms, keep_tagged)

    async def collect(self) -> int:
        """Delete the commits and objects that no branch or tag leads to, and return their number.

        Writers and other collectors may run at the same time.
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
        """Move old commits into a file. `at`, `checkout`, `log`, `diff` and `blame` read them from there.

        The file is on disk before anything is deleted. The space stores the absolute path of the file; on a
        machine without the file, the history reads as pruned. Later calls add to the same file. Several
        processes may archive at once. The whole history is held in memory. Archived commits can be read but
        not built on: `rollback` does not accept one.

        Args:
            path: The file, a bundle. It must be the archive of this space, or not exist.
            keep_last: As for `prune`.
            older_than: As for `prune`.
            keep_tagged: As for `prune`.

        Raises:
            AlreadyExistsError: The file exists and belongs to another history.
            PrunedError: An earlier archive of the space is not on this machine.
            InvalidError: Neither `keep_last` nor `older_than` is given, or the folder does not exist.
            UnsupportedError: The file system does not support locks.
        """
        self._executor.require_outside_transaction("archiving a history")
        keeping = await self._keeping(keep_last, older_than, keep_tagged)
        file = os.path.abspath(check_path("path", path))
        confirm_file(file)

        for _ in range(ATTEMPTS):
            commits = await self._archive_once(file, keeping)
            if commits is not None:
                return Pruned(commits, await self.collect())
        raise AttemptsExhaustedError(
            f"other callers archived the history of {self._executor.name!r} {ATTEMPTS} times meanwhile; "
            "let one caller archive it",
            attempts=ATTEMPTS,
        )

    async def _archive_once(self, file: str, keeping: Keeping) -> int | None:
        """Move commits into a file. Return their number, or None if another caller archived meanwhile."""
        now = await self._run(export_history)
        before, _ = await self._executor.run(lambda unit: self._archive.before(unit, file, now))
        whole = await self._archive.write(file, now, before)

        async def work(session: HistorySession) -> int | None:
            if not await put_path(session.unit, file, before):
                return None
            return await prune(session, msgspec.structs.replace(keeping, archived=whole.commits.keys()))

        return await self._run(work)


async def _since_ms(session: HistorySession, older_than: datetime | timedelta) -> int:
    if isinstance(older_than, timedelta):
        if older_than < timedelta():
            raise InvalidError(f"`older_than` is {older_than}; pass a duration that is not negative")
        return await session.unit.now_ms() - older_than // timedelta(milliseconds=1)
    require_instance("older_than", older_than, datetime, timedelta)
    if older_than.tzinfo is None:
        raise InvalidError(f"`older_than` is {older_than!r}; pass an aware datetime or a timedelta")
    return to_milliseconds(older_than)
