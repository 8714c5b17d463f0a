"""Blocking twins of `keepstate.engine.history.history`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.engine.history import history as engine
from keepstate.engine.history.commit_request import OnConflict
from keepstate.engine.history.commits import Blame, Branch, Commit, Difference, Tag
from keepstate.engine.history.heads import MAIN
from keepstate.engine.history.loaded_state import Load
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.paths import Path
from keepstate.engine.history.revisions import Revision
from keepstate.sync.checkout import Checkout
from keepstate.sync.draft import Draft
from keepstate.sync.maintenance import Upkeep
from keepstate.sync.twin import inner_of


class History(Upkeep[engine.History]):
    """The commits of a space, or of a transaction on it.

    In a transaction commits join its batch, and its drafts end with it.

    A commit's state is a dict with str keys. Where a commit is asked for, a branch, a tag, an id or its
    beginning, `main~3`, `main#37`, a time or a `Commit` will do.
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
        """Commit a whole state to a branch, which is made if it is not there.

        Without `expected_head` the state stands in place of whatever the branch has. To change a state that
        others change as well, `begin` a draft.

        Args:
            state: The state; its keys are str.
            branch: The branch.
            message: What for; at most 64 KiB of UTF-8.
            author: Who commits, if not the author of the space.
            expected_head: The id of the commit that the state was made from; "" if the branch is new.
            on_conflict: What to do if the branch is elsewhere: raise, or merge what was changed since.
            rules: How to merge, by path; see `merge`.

        Raises:
            ConflictError: The branch is not at `expected_head`; nothing was committed.
            MergeConflictError: Both sides changed the same, and no rule decides.
            InvalidError: A value would not come back equal; its path is named.
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
        """Commit items at the end of a list, whoever else appends; costs the same however long the list is.

        Args:
            path: Where the list is; a key that is not there becomes a list.
            items: What to append, in order.
            branch: The branch.
            message: What for.
            author: Who commits, if not the author of the space.

        Raises:
            InvalidError: There is no list at the path.
            NotFoundError: What should hold the list is not there.
        """
        return finish(self._inner.append(path, *items, branch=branch, message=message, author=author))

    def begin(self, branch: str = MAIN, *, load: Load = True) -> Draft:
        """Return a draft of a branch's next state.

        Args:
            branch: The branch; if it is not there, the draft is empty and its commit makes it.
            load: True for all of the state, False for nothing yet, or paths whose keys are to be loaded.
        """
        return Draft(finish(self._inner.begin(branch, load=load)))

    def checkout(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Return the state of a commit.

        Args:
            ref: The commit.
            load: True for all of the state, False for nothing yet, or paths whose keys are to be loaded.

        Raises:
            NotFoundError: There is no such commit, or no such key.
        """
        return Checkout(finish(self._inner.checkout(ref, load=load)))

    def find(self, ref: Revision = MAIN) -> Commit:
        """Return the commit that something stands for.

        Raises:
            NotFoundError: There is no such commit.
            InvalidError: It stands for none, or for more than one.
        """
        return finish(self._inner.find(ref))

    def log(self, ref: Revision = MAIN, *, limit: int | None = None) -> Iterator[Commit]:
        """Yield a commit and all before it, those of merged branches too; each before its parents.

        Args:
            ref: The commit.
            limit: At most so many.
        """
        return finish_each(self._inner.log(ref, limit=limit))

    def diff(self, a: Revision, b: Revision) -> list[Difference]:
        """Return what leads from one commit's state to another's, reading only what differs."""
        return finish(self._inner.diff(a, b))

    def blame(self, path: Path, ref: Revision = MAIN) -> Blame:
        """Return the commit that gave what lies at a path its value; an item is followed through its list.

        Args:
            path: A key of the state, or a tuple of keys and places. A text that is not a key may be a path as
                it is printed, such as `messages[3].meta`.
            ref: The commit to look from.

        Raises:
            NotFoundError: The path leads nowhere, or there is no such commit.
        """
        return finish(self._inner.blame(path, ref))

    def fork(self, to: History) -> int:
        """Copy the whole history to that of another space, in any store, and return its commits.

        Outside a transaction one of more than 500 branches and tags takes several batches, `main` comes with
        the last, and a call that was interrupted is made again to go on.

        Raises:
            AlreadyExistsError: A branch or tag of the same name stands on another commit there.
        """
        return finish(self._inner.fork(inner_of(to)))

    def merge(
        self,
        source: Revision,
        *,
        into: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commit to a branch what another commit has changed since both were one.

        Args:
            source: The commit to merge.
            into: The branch that gets a commit of two parents; nothing is done if it has all of it.
            rules: What to do where both changed the same, by path: `refuse` (the default), `ours`, `theirs`,
                `counter`, `maximum`, `minimum`, `append`, `union`, `last_writer`, or a plain function of
                base, ours and theirs, `MISSING` where there is nothing, which may return that as well. A path
                is as elsewhere, None in it stands for any step; `()` is for all.
            message: What for; it says what was merged if it is not given.
            author: Who commits.

        Raises:
            MergeConflictError: Both changed the same and no rule decides; nothing was committed.
        """
        return finish(self._inner.merge(source, into=into, rules=rules, message=message, author=author))

    def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Return the latest commit that both descend from, one of them if there are several, or None."""
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
        """Commit an earlier state to a branch again; nothing is erased.

        On `main` of a recorded space the documents are put back as they were, in the batch of the commit; if
        all of them are so already, nothing is committed.

        Args:
            branch: The branch.
            to: The commit whose state it gets.
            steps: Instead: so many commits back.
            message: What for; it says which commit if it is not given.
            author: Who commits.

        Raises:
            NotFoundError: There is no such commit, or no branch or tag leads to it.
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
        """Commit to a branch the undoing of what one commit changed, and keep what came after.

        On `main` of a recorded space it is undone in the documents, as by `rollback`.

        Raises:
            MergeConflictError: What it changed was changed again since, and no rule decides.
            NotFoundError: The commit is not one of the branch.
        """
        return finish(self._inner.revert(ref, branch=branch, rules=rules, message=message, author=author))

    def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Make a branch that begins at a commit.

        Raises:
            AlreadyExistsError: There is one of this name.
            NotFoundError: There is no such commit, or no branch or tag leads to it.
        """
        return finish(self._inner.branch(name, at))

    def branches(self) -> Iterator[Branch]:
        """Yield all branches by name."""
        return finish_each(self._inner.branches())

    def delete_branch(self, name: str) -> bool:
        """Remove a branch, and return whether it existed; what no other leads to will be collected.

        Raises:
            InvalidError: It is `main` of a recorded space; `ks.drop` is what ends a record.
        """
        return finish(self._inner.delete_branch(name))

    def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Give a commit a name that stays on it.

        Raises:
            AlreadyExistsError: There is one of this name.
            NotFoundError: There is no such commit, or no branch or tag leads to it.
        """
        return finish(self._inner.tag(name, at))

    def tags(self) -> Iterator[Tag]:
        """Yield all tags by name."""
        return finish_each(self._inner.tags())

    def delete_tag(self, name: str) -> bool:
        """Remove a tag, and return whether it existed."""
        return finish(self._inner.delete_tag(name))
