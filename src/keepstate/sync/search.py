"""Blocking twins of `keepstate.engine.history.search`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from keepstate._finish import finish, finish_each
from keepstate.engine.history import search as engine
from keepstate.engine.history.commits import Blame, Commit
from keepstate.engine.history.paths import Path
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.layout import MAIN
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.Search)


class Search(Twin[Inner]):
    """Finds commits."""

    def find(self, ref: Revision = MAIN) -> Commit:
        """Return the commit that a revision refers to.

        Raises:
            NotFoundError: The commit does not exist.
            InvalidError: The revision is not valid, or refers to more than one commit.
        """
        return finish(self._inner.find(ref))

    def log(
        self,
        ref: Revision = MAIN,
        *,
        after: Revision | None = None,
        first: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        path: Path | None = None,
        author: str | None = None,
        text: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Iterator[Commit]:
        """Yield a commit and all its ancestors, including those of merged branches, each before its parents.

        The order is that of the line of first parents. The commits that a merge brought into the line have
        no number, and come directly after the merge.

        For the next page, pass the last commit that was yielded as `after`. Its first commit costs about 40
        reads in a history of 100,000, more if the page begins inside a merged branch.

        Args:
            ref: The commit.
            after: The commit of the log after which to start. It need not fit the filters.
            first: Instead of `after`: the number, in the line of first parents, of the commit to start with.
                The default is the commit itself, or the earliest one with `reverse`.
            limit: The largest number of commits to yield.
            reverse: Yield in exactly the opposite order: the earliest commits first, each after its parents.
            path: Yield only commits whose value at this path differs from that in every parent. An index
                stays the same index. Commits that touched other paths are stepped over.
            author: Yield only commits of this author.
            text: Yield only commits whose message contains this text, in upper or lower case.
            meta: Yield only commits whose notes have these keys with these values.

        Raises:
            NotFoundError: The commit does not exist, or `after` is not one of its ancestors.
            PrunedError: The commit `after`, or with the number `first`, was pruned.
        """
        return finish_each(
            self._inner.log(
                ref,
                after=after,
                first=first,
                limit=limit,
                reverse=reverse,
                path=path,
                author=author,
                text=text,
                meta=meta,
            )
        )

    def latest(self, limit: int = 100) -> list[Commit]:
        """Return the latest commits of all branches and tags, by time, each before its parents.

        The number of a commit is the one in its own line of first parents. Cost: a read for each commit, and
        one for each branch and tag.

        Args:
            limit: The largest number of commits to return.
        """
        return finish(self._inner.latest(limit))

    def changes_of(self, path: Path, ref: Revision = MAIN, *, limit: int | None = None) -> Iterator[Blame]:
        """Yield the commits that changed the value at a path, the latest first.

        These are the commits of the line of first parents whose value differs from the first parent's,
        including those that added or removed it. A merge changed what it brought into the line. An index of a
        list stays the same index. Where the line was pruned, the change was made by the yielded commit or by
        an earlier one.

        Args:
            path: A key of the state, or a tuple of keys and indexes. It need not exist in the commit. Text
                that is not a key is read as a printed path, such as `messages[3].meta`.
            ref: The commit to start from.
            limit: The largest number of commits to yield.

        Raises:
            NotFoundError: The commit does not exist.
        """
        return finish_each(self._inner.changes_of(path, ref, limit=limit))

    def blame(self, path: Path, ref: Revision = MAIN) -> Blame:
        """Return the commit that gave the value at a path its content.

        An item of a list is followed as its index changes.

        Args:
            path: A key of the state, or a tuple of keys and indexes. Text that is not a key is read as a
                printed path, such as `messages[3].meta`.
            ref: The commit to start from.

        Raises:
            NotFoundError: The path or the commit does not exist.
        """
        return finish(self._inner.blame(path, ref))
