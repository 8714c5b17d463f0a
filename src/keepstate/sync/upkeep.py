"""Blocking twins of `keepstate.engine.history.upkeep`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from os import PathLike
from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.history import upkeep as engine
from keepstate.engine.history.commits import HistoryStats, Pruned, Verified
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.Upkeep)


class Upkeep(Twin[Inner]):
    """Counts, verifies and prunes a history."""

    def stats(self) -> HistoryStats:
        """Return the size of the history. Concurrent writes may or may not be counted."""
        return finish(self._inner.stats())

    def verify(self) -> Verified:
        """Compare every commit and object that branches and tags lead to with its name; return the damage."""
        return finish(self._inner.verify())

    def prune(
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
        return finish(self._inner.prune(keep_last=keep_last, older_than=older_than, keep_tagged=keep_tagged))

    def collect(self) -> int:
        """Delete the commits and objects that no branch or tag leads to, and return their number.

        Writers and other collectors may run at the same time.
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
        return finish(
            self._inner.archive(path, keep_last=keep_last, older_than=older_than, keep_tagged=keep_tagged)
        )
