"""Blocking twins of `keepstate.engine.history.maintenance`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from os import PathLike
from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.history import maintenance as engine
from keepstate.engine.history.commits import Commit, HistoryStats, Pruned, Verified
from keepstate.engine.history.heads import MAIN
from keepstate.engine.history.revisions import Revision
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.Upkeep)


class Upkeep(Twin[Inner]):
    """The part of a history that concerns all of it."""

    def stats(self) -> HistoryStats:
        """Return how large the history is; what is written meanwhile may be counted or not."""
        return finish(self._inner.stats())

    def verify(self) -> Verified:
        """Compare every byte that branches and tags lead to with its name, and return what is damaged."""
        return finish(self._inner.verify())

    def squash(
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
        return finish(self._inner.squash(branch, since=since, message=message, author=author))

    def prune(
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
        return finish(self._inner.prune(keep_last=keep_last, older_than=older_than, keep_tagged=keep_tagged))

    def collect(self) -> int:
        """Delete what no branch or tag leads to, and return how many commits and objects that were.

        It may run beside writers, and beside another one of its kind.
        """
        return finish(self._inner.collect())

    def archive(
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
        return finish(
            self._inner.archive(path, keep_last=keep_last, older_than=older_than, keep_tagged=keep_tagged)
        )

    def export_bundle(self, path: str | PathLike[str]) -> int:
        """Write the whole history into one file, and return how many commits it has.

        The file is written whole or not at all; one that is there is replaced. Memory is used for all of it.
        """
        return finish(self._inner.export_bundle(path))

    def import_bundle(self, path: str | PathLike[str]) -> int:
        """Bring the history of a file in, compared byte by byte with its names, and return its commits.

        Raises:
            InvalidError: There is no such file, or it is no bundle.
            CorruptError: It is damaged, or lacks something; nothing was written.
            AlreadyExistsError: A branch or tag of the same name stands on another commit.
        """
        return finish(self._inner.import_bundle(path))
