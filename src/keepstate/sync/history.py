"""Blocking twins of `keepstate.engine.history.history`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from keepstate._finish import finish
from keepstate.engine.history import history as engine
from keepstate.engine.history.checkout import Load
from keepstate.engine.history.commit_request import OnConflict
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.json_patch import Differences
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.paths import Path
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.layout import MAIN
from keepstate.sync.checkout import Checkout
from keepstate.sync.draft import Draft
from keepstate.sync.references import References
from keepstate.sync.search import Search
from keepstate.sync.twin import inner_of
from keepstate.sync.upkeep import Upkeep


class History(References[engine.History], Search[engine.History], Upkeep[engine.History]):
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
        meta: Mapping[str, str] | None = None,
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
            meta: Notes on the commit, such as the model and its tokens; at most 1 KiB of UTF-8. They are
                added to those of the space.
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
                meta=meta,
                expected_head=expected_head,
                on_conflict=on_conflict,
                rules=rules,
            )
        )

    def append(
        self,
        path: Path,
        *items: object,
        branch: str = MAIN,
        message: str = "",
        author: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Commit:
        """Commit items at the end of a list. The cost does not depend on the length of the list.

        Concurrent appends do not conflict.

        Args:
            path: The path of the list; a missing key becomes a list.
            items: The items to append, in order.
            branch: The branch.
            message: The commit message.
            author: The author of the commit. The default is the author of the space.
            meta: Notes on the commit; see `commit`.

        Raises:
            InvalidError: The value at the path is not a list.
            NotFoundError: The value that should contain the list does not exist.
        """
        return finish(
            self._inner.append(path, *items, branch=branch, message=message, author=author, meta=meta)
        )

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

    def diff(
        self, a: Revision, b: Revision, *, path: Path | None = None, limit: int | None = None
    ) -> Differences:
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

    def merge(
        self,
        source: Revision,
        *,
        into: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Commit:
        """Commit to a branch the changes that another commit made since their common ancestor.

        On `main` of a recorded space, the documents are changed in the batch of the commit. If they are all
        in the merged state already, nothing is committed.

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
            meta: Notes on the commit; see `commit`.

        Raises:
            MergeConflictError: Both sides changed the same value, and no rule decides. Nothing was committed.
        """
        return finish(
            self._inner.merge(source, into=into, rules=rules, message=message, author=author, meta=meta)
        )

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
        meta: Mapping[str, str] | None = None,
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
            meta: Notes on the commit; see `commit`.

        Raises:
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return finish(
            self._inner.rollback(branch, to=to, steps=steps, message=message, author=author, meta=meta)
        )

    def revert(
        self,
        ref: Revision,
        *,
        branch: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Commit:
        """Commit a state to a branch that undoes one of its commits and keeps all later changes.

        On `main` of a recorded space, the documents are changed, as by `rollback`.

        Raises:
            MergeConflictError: A later commit changed the same value, and no rule decides.
            NotFoundError: The commit is not part of the branch.
        """
        return finish(
            self._inner.revert(ref, branch=branch, rules=rules, message=message, author=author, meta=meta)
        )

    def squash(
        self,
        branch: str = MAIN,
        *,
        since: Revision,
        message: str = "",
        author: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Commit:
        """Replace all commits of a branch after `since` by one commit. The state stays the same.

        The replaced commits are collected unless another branch or tag leads to them.

        Args:
            branch: The branch.
            since: The last commit to keep; one of the first parents of the branch.
            message: The commit message. The default says how many commits were replaced.
            author: The author of the commit.
            meta: Notes on the commit; see `commit`.

        Raises:
            NotFoundError: `since` is not one of the first parents of the branch.
        """
        return finish(self._inner.squash(branch, since=since, message=message, author=author, meta=meta))

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
