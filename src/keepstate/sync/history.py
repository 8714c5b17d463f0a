"""Blocking twins of `keepstate.engine.history.history`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from os import PathLike
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.engine.history import history as engine
from keepstate.engine.history.checkout import Load
from keepstate.engine.history.commit_request import OnConflict
from keepstate.engine.history.commits import (
    Blame,
    Branch,
    Commit,
    Difference,
    HistoryStats,
    Pruned,
    Tag,
    Verified,
)
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.paths import Path
from keepstate.engine.history.record import MAIN
from keepstate.engine.history.revisions import Revision
from keepstate.sync.checkout import Checkout
from keepstate.sync.draft import Draft
from keepstate.sync.twin import Twin, inner_of


class History(Twin[engine.History]):
    """The commits of a space, or of a transaction on it.

    In a transaction, commits join its batch, and its drafts end with it.

    The state of a commit is a dict with str keys. Where a method takes a commit, pass a branch, a tag, an id
    or its first digits, `main~3`, `main#37`, a time, or a `Commit`.
    """

    def commit(
        self,
        state: Mapping[str, Any],
        *,
        branch: str = MAIN,
        message: str = "",
        author: str | None = None,
        expected_head: str | Commit | None = None,
        on_conflict: OnConflict = "raise",
        rules: MergeRules | None = None,
    ) -> Commit:
        """Commit a whole state to a branch. The branch is created if it does not exist.

        Without `expected_head`, the state replaces the state of the branch. To change a state that others
        change too, `begin` a draft.

        Args:
            state: The state; its keys are str.
            branch: The branch.
            message: The commit message; at most 64 KiB of UTF-8.
            author: The author of the commit. The default is the author of the space.
            expected_head: The id of the commit that the state was made from; "" if the branch is new.
            on_conflict: What to do if the branch has moved on: raise, or merge the changes since then.
            rules: Merge rules by path; see `merge`.

        Raises:
            ConflictError: The branch is not at `expected_head`. Nothing was committed.
            MergeConflictError: Both sides changed the same value, and no rule decides.
            InvalidError: A value would not come back equal. The error names its path.
        """
        return finish(
            self._inner.commit(
                state,
                branch=branch,
                message=message,
                author=author,
                expected_head=expected_head,
                on_conflict=on_conflict,
                rules=rules,
            )
        )

    def append(
        self, path: Path, *items: object, branch: str = MAIN, message: str = "", author: str | None = None
    ) -> Commit:
        """Commit items at the end of a list. The cost does not depend on the length of the list.

        Concurrent appends do not conflict.

        Args:
            path: The path of the list; a missing key becomes a list.
            items: The items to append, in order.
            branch: The branch.
            message: The commit message.
            author: The author of the commit. The default is the author of the space.

        Raises:
            InvalidError: The value at the path is not a list.
            NotFoundError: The value that should contain the list does not exist.
        """
        return finish(self._inner.append(path, *items, branch=branch, message=message, author=author))

    def begin(self, branch: str = MAIN, *, load: Load = True) -> Draft:
        """Return a draft of the next state of a branch.

        Args:
            branch: The branch. If it does not exist, the draft is empty and its commit creates the branch.
            load: True to load the whole state, False to load nothing yet, or the paths to load.
        """
        return Draft(finish(self._inner.begin(branch, load=load)))

    def checkout(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Return the state of a commit.

        Args:
            ref: The commit.
            load: True to load the whole state, False to load nothing yet, or the paths to load.

        Raises:
            NotFoundError: The commit or the key does not exist.
        """
        return Checkout(finish(self._inner.checkout(ref, load=load)))

    def find(self, ref: Revision = MAIN) -> Commit:
        """Return the commit that a revision refers to.

        Raises:
            NotFoundError: The commit does not exist.
            InvalidError: The revision is not valid, or refers to more than one commit.
        """
        return finish(self._inner.find(ref))

    def log(self, ref: Revision = MAIN, *, limit: int | None = None) -> Iterator[Commit]:
        """Yield a commit and all its ancestors, including those of merged branches, each before its parents.

        Args:
            ref: The commit.
            limit: The largest number of commits to yield.
        """
        return finish_each(self._inner.log(ref, limit=limit))

    def diff(
        self, a: Revision, b: Revision, *, path: Path | None = None, limit: int | None = None
    ) -> list[Difference]:
        """Return the differences from the state of commit `a` to that of `b`, reading only what differs.

        Args:
            a: The first commit.
            b: The second commit.
            path: Compare the values at this path only. Text is read as by `blame`.
            limit: The largest number of differences to return.

        Raises:
            NotFoundError: A commit does not exist, or neither state has the path.
        """
        return finish(self._inner.diff(a, b, path=path, limit=limit))

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

    def merge(
        self,
        source: Revision,
        *,
        into: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commit to a branch the changes that another commit made since their common ancestor.

        Args:
            source: The commit to merge.
            into: The branch that gets a commit with two parents. If it contains `source` already, nothing is
                committed.
            rules: How to resolve conflicts, by path: `refuse` (the default), `ours`, `theirs`, `counter`,
                `maximum`, `minimum`, `append`, `union`, `last_writer`, or a plain function of base, ours and
                theirs. A missing value is `MISSING`, both as an argument and as the result. In a path, None
                matches any step; `()` is the rule for everything else.
            message: The commit message. The default names `source`.
            author: The author of the commit.

        Raises:
            MergeConflictError: Both sides changed the same value, and no rule decides. Nothing was committed.
        """
        return finish(self._inner.merge(source, into=into, rules=rules, message=message, author=author))

    def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Return the latest common ancestor of two commits, one of them if there are several, or None."""
        return finish(self._inner.merge_base(a, b))

    def rollback(
        self,
        branch: str = MAIN,
        *,
        to: Revision | None = None,
        steps: int | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commit an earlier state to a branch again. Nothing is erased.

        On `main` of a recorded space, the documents are restored in the batch of the commit. If they are all
        in that state already, nothing is committed.

        Args:
            branch: The branch.
            to: The commit whose state to restore.
            steps: Instead of `to`: the number of commits to go back.
            message: The commit message. The default names the restored commit.
            author: The author of the commit.

        Raises:
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return finish(self._inner.rollback(branch, to=to, steps=steps, message=message, author=author))

    def revert(
        self,
        ref: Revision,
        *,
        branch: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commit a state to a branch that undoes one of its commits and keeps all later changes.

        On `main` of a recorded space, the documents are changed, as by `rollback`.

        Raises:
            MergeConflictError: A later commit changed the same value, and no rule decides.
            NotFoundError: The commit is not part of the branch.
        """
        return finish(self._inner.revert(ref, branch=branch, rules=rules, message=message, author=author))

    def squash(
        self, branch: str = MAIN, *, since: Revision, message: str = "", author: str | None = None
    ) -> Commit:
        """Replace all commits of a branch after `since` by one commit. The state stays the same.

        The replaced commits are collected unless another branch or tag leads to them.

        Args:
            branch: The branch.
            since: The last commit to keep; one of the first parents of the branch.
            message: The commit message. The default says how many commits were replaced.
            author: The author of the commit.

        Raises:
            NotFoundError: `since` is not one of the first parents of the branch.
        """
        return finish(self._inner.squash(branch, since=since, message=message, author=author))

    def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Create a branch that begins at a commit.

        Raises:
            AlreadyExistsError: A branch has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return finish(self._inner.branch(name, at))

    def branches(self) -> Iterator[Branch]:
        """Yield all branches by name."""
        return finish_each(self._inner.branches())

    def delete_branch(self, name: str) -> bool:
        """Delete a branch, and return whether it existed. Commits without another name are collected.

        Raises:
            InvalidError: It is `main` of a recorded space; call `ks.drop` to delete the space.
        """
        return finish(self._inner.delete_branch(name))

    def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Give a commit a name that does not move.

        Raises:
            AlreadyExistsError: A tag has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return finish(self._inner.tag(name, at))

    def tags(self) -> Iterator[Tag]:
        """Yield all tags by name."""
        return finish_each(self._inner.tags())

    def delete_tag(self, name: str) -> bool:
        """Delete a tag, and return whether it existed."""
        return finish(self._inner.delete_tag(name))

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

    def fork(self, to: History) -> int:
        """Copy the whole history to that of another space, in any store, and return its number of commits.

        Outside a transaction, a history with more than 500 branches and tags takes several batches. `main`
        comes with the last batch. Repeat an interrupted call to continue it.

        Raises:
            AlreadyExistsError: A branch or tag exists there and is on another commit.
        """
        return finish(self._inner.fork(inner_of(to)))

    def export_bundle(self, path: str | PathLike[str]) -> int:
        """Write the whole history into one file, and return its number of commits.

        The file is written completely or not at all, and replaces an existing file. The whole history is held
        in memory.
        """
        return finish(self._inner.export_bundle(path))

    def import_bundle(self, path: str | PathLike[str]) -> int:
        """Import the history of a file, verified byte by byte, and return its number of commits.

        Raises:
            InvalidError: The file does not exist, or is not a bundle.
            CorruptError: The file is damaged or incomplete. Nothing was written.
            AlreadyExistsError: A branch or tag exists and is on another commit.
        """
        return finish(self._inner.import_bundle(path))
