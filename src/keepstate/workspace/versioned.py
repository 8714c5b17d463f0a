"""An agent's variables with every moment of them: committed, looked at as they were, branched, merged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import Any, Final

import msgspec

from keepstate._finish import finish, finish_each
from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.branch_events import DIARIES, ENTRIES
from keepstate.engine.history.commit_request import CommitRequest, OnConflict, admit_order
from keepstate.engine.history.commits import Commit, Pruned
from keepstate.engine.history.heads import MAIN, admit_ref_name, read_head
from keepstate.engine.history.history import History
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.revisions import Revision
from keepstate.engine.history.working_copy import WorkingCopy
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.transaction import Transaction, gathering
from keepstate.errors import InvalidError, NotFoundError
from keepstate.stores.protocol import Store
from keepstate.values.codec import Codec
from keepstate.values.pickles import SignedPickle
from keepstate.workspace.binding import MEMORY_URL, Home
from keepstate.workspace.kv import KVStore
from keepstate.workspace.leaked_handles import close_dropped
from keepstate.workspace.past import PastState
from keepstate.workspace.task_events import TaskEvent, storable

SPACE: Final = "state"


class Versioned(MutableMapping[str, Any]):
    """Remembers variables between tasks, and every commit of them.

    A mapping of plain values: lists and dicts in it may be changed in place, also through a reference taken
    before an earlier commit. What was changed counts with the next commit. It is blocking, works inside a
    running event loop too, and is not for several threads at once. What is dropped without `close` is closed
    with the next call on any other, or at the end of the process.

    Args:
        store: Where commits are kept: a `Disk`, another `KVStore`, the URL of a store, the path of an SQLite
            file, or an opened store for blocking use. Without it, in memory.
        branch: The branch; it is made by its first commit.
        space: The space in the store.
        author: Who commits; tasks commit as their agent.
        on_conflict: What commits do, those of tasks too, if somebody else has committed to the branch: raise,
            or merge.
        rules: How to merge then, by path; see `History.merge`. `ours` is what the branch has by then, and
            `theirs` what is being committed onto it.
        pickle: What stores objects of classes that are not registered.
    """

    def __init__(
        self,
        store: KVStore | Store | str | PathLike[str] | None = None,
        *,
        branch: str = MAIN,
        space: str = SPACE,
        author: str | None = None,
        on_conflict: OnConflict = "raise",
        rules: MergeRules | None = None,
        pickle: SignedPickle | None = None,
    ) -> None:
        self._begin(Home(MEMORY_URL if store is None else store, space, author, pickle), branch)
        self._on_conflict: OnConflict = on_conflict
        self._rules = rules
        self._order("")

    def _begin(self, home: Home, branch: str) -> None:
        name = admit_ref_name("branch", branch)
        if name.startswith(DIARIES):
            raise InvalidError(
                f"`branch` is {name!r}; names with {DIARIES!r} are for what happened on others"
            )
        self.branch_name: str = name
        self._home = home
        self._history = History(home.executor)
        self._working = WorkingCopy(home.executor, name)
        self._is_begun = False

    def __repr__(self) -> str:
        at = self._working.base.id[:10] if self._working.base else "nothing yet"
        state = " closed" if self._home.is_closed else ""
        return f"<Versioned {self._home.url} on {self.branch_name!r} at {at}{state}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled; open it where it is used, by the path or URL of its store"
        )

    # ---- opening and closing

    def __enter__(self) -> Versioned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store, for the states on its other branches too; what was not committed is lost."""
        self._home.close()

    @property
    def _draft(self) -> WorkingCopy:
        """The draft, begun when it is first asked for."""
        self._home.refuse_closed()
        close_dropped()
        if not self._is_begun:
            finish(self._working.follow())
            self._is_begun = True
        return self._working

    # ---- a mapping

    def __getitem__(self, name: str) -> Any:
        """Return a variable, the same object each time.

        Raises:
            NotFoundError: There is none.
        """
        return self._draft[name]

    def __setitem__(self, name: str, value: object) -> None:
        """Set a variable."""
        self._draft[name] = value

    def __delitem__(self, name: str) -> None:
        """Remove a variable.

        Raises:
            NotFoundError: There is none.
        """
        del self._draft[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._draft])

    def __len__(self) -> int:
        return len(self._draft)

    # ---- committing

    @property
    def current_commit(self) -> str | None:
        """The id of the commit that the variables stand on; None before the first."""
        base = self._draft.base
        return base.id if base else None

    def commit(
        self,
        message: str = "",
        *,
        author: str | None = None,
        on_conflict: OnConflict | None = None,
        rules: MergeRules | None = None,
    ) -> Commit:
        """Commit what was changed, and return the commit that the variables stand on now.

        If nothing was changed that is the one they stood on; a first commit is always made.

        Args:
            message: What for; at most 64 KiB of UTF-8.
            author: Who commits, if not the author of the state.
            on_conflict: What to do if somebody else has committed to the branch, if not what the state does.
            rules: How to merge then, if not as the state does.

        Raises:
            ConflictError: The branch has moved on; nothing was committed.
            MergeConflictError: Both sides changed the same, and no rule decides.
            InvalidError: A value cannot be stored; its path is named. Nothing was committed: remove it, or
                put something else in its place.
            StoreFullError: There is no room; nothing was committed.
        """
        order = admit_order(
            self._home.executor,
            self.branch_name,
            message,
            author,
            self._on_conflict if on_conflict is None else on_conflict,
            self._rules if rules is None else rules,
        )
        commit = finish(self._draft.keep(order, always=self.current_commit is None))
        assert commit is not None
        return commit

    def discard(self) -> None:
        """Drop what was not committed, and take what the branch has now; lists and dicts in place."""
        finish(self._draft.follow())

    def rollback(self, to: Revision | None = None, *, steps: int | None = None, message: str = "") -> Commit:
        """Commit an earlier state again; nothing is erased. Lists and dicts are brought to it in place.

        Args:
            to: The commit whose state it is.
            steps: Instead: so many commits back.
            message: What for; it says which commit if it is not given.

        Raises:
            NotFoundError: There is no such commit.
            InvalidError: Something was changed and not committed.
        """
        if (to is None) == (steps is None):
            raise InvalidError(
                "a rollback needs either a commit or `steps`; `discard` drops what is uncommitted"
            )
        self._refuse_changed("rolling back")
        target = self.checkout(f"{self._present()}~{steps}" if to is None else to)
        self._draft.bring(dict(target))
        order = self._order(message or f"roll back to {target.commit_hash[:10]}")
        commit = finish(self._draft.keep(order, always=True))
        assert commit is not None
        return commit

    def _order(self, message: str, author: str | None = None) -> CommitRequest:
        return admit_order(
            self._home.executor, self.branch_name, message, author, self._on_conflict, self._rules
        )

    def _present(self) -> str:
        now = self.current_commit
        if now is None:
            raise NotFoundError(f"nothing was committed to {self.branch_name!r} yet; commit first")
        return now

    def _refuse_changed(self, what: str) -> None:
        if finish(self._draft.is_changed()):
            raise InvalidError(f"{what} would lose what was not committed; commit it, or discard it, first")

    # ---- the past

    def checkout(self, commit_hash: Revision) -> PastState:
        """Return the variables as they were at a commit, read-only.

        Args:
            commit_hash: Its id or the beginning of that, a branch, a tag, `main~3`, `main#37`, a time or a
                `Commit`.

        Raises:
            NotFoundError: There is no such commit.
        """
        return PastState(finish(self._history.checkout(commit_hash)), self._history, self._draft, self._home)

    def history(self, commit_hash: Revision | None = None) -> list[str]:
        """Return the ids of a commit and of all before it, the latest first.

        Args:
            commit_hash: The commit; without it the one that the variables stand on.
        """
        start = self.current_commit if commit_hash is None else commit_hash
        return [] if start is None else [commit.id for commit in finish_each(self._history.log(start))]

    def diffs(self, commit_hash: Revision | None = None) -> dict[str, Any]:
        """Return the variables that a commit changed, with their values from then on.

        What it removed has `MISSING` for a value.

        Args:
            commit_hash: The commit; without it the one that the variables stand on.
        """
        start = self.current_commit if commit_hash is None else commit_hash
        if start is None:
            return {}
        commit = finish(self._history.find(start))
        after = self.checkout(commit)
        if not commit.parents:
            return dict(after)
        changed = finish(self._history.diff(commit.parents[0], commit))
        names = dict.fromkeys(change.path[0] for change in changed if change.path)
        return {name: after.get(name, MISSING) for name in names}

    # ---- branches

    def branch(self, name: str) -> Versioned:
        """Make a branch at the last commit, and return a state on it; this one stays where it is.

        What happened until then happened there too. What was not committed is not on it.

        Raises:
            AlreadyExistsError: There is a branch of this name; open it with `Versioned(store, branch=name)`.
            NotFoundError: Nothing was committed yet.
        """
        at = self._present()
        other = Versioned.__new__(Versioned)
        other._begin(self._home, name)
        other._on_conflict, other._rules = self._on_conflict, self._rules

        async def work(tx: Transaction) -> None:
            await tx.history.branch(name, at)
            if await _has_branch(tx, DIARIES + self.branch_name):
                await tx.history.branch(DIARIES + name, DIARIES + self.branch_name)

        self._together(work)
        return other

    def merge(
        self, source: str | Versioned | Commit, *, rules: MergeRules | None = None, message: str = ""
    ) -> Commit:
        """Commit what another branch has changed since both were one; what happened there comes along.

        Args:
            source: A branch or a state on one of the same store; or a commit, which brings no events.
            rules: What to do where both changed the same, by path, if not as the state does; see
                `History.merge`.
            message: What for; it says what was merged if it is not given.

        Raises:
            MergeConflictError: Both changed the same and no rule decides; nothing was committed.
            InvalidError: Something was changed and not committed.
        """
        self._refuse_changed("merging")
        ref = source.branch_name if isinstance(source, Versioned) else source
        chosen = self._rules if rules is None else rules
        author = self._home.executor.author

        async def work(tx: Transaction) -> None:
            into = self.branch_name
            await tx.history.merge(ref, into=into, rules=chosen, message=message, author=author)
            if not isinstance(ref, str) or not await _has_branch(tx, DIARIES + ref):
                return
            if await _has_branch(tx, DIARIES + into):
                await tx.history.merge(DIARIES + ref, into=DIARIES + into, rules={ENTRIES: "append"})
            else:
                await tx.history.branch(DIARIES + into, DIARIES + ref)

        self._together(work)
        self.discard()
        assert self._draft.base is not None
        return self._draft.base

    def _together(self, work: Callable[[Transaction], Awaitable[None]]) -> None:
        async def once() -> None:
            async with gathering(self._home.executor) as tx:
                await work(tx)

        finish(self._home.executor.retry(once, None))

    def prune(self, *, keep_last: int | None = None, older_than: timedelta | None = None) -> Pruned:
        """Let go of old commits, and delete what nothing leads to any more; what happened stays.

        In a `KVStore` nobody else may write meanwhile.

        Args:
            keep_last: Keeps so many commits of each branch.
            older_than: Keeps what was made within that time from now.
        """
        return finish(self._history.prune(keep_last=keep_last, older_than=older_than))

    # ---- what tasks ask of it

    @property
    def codec(self) -> Codec:
        """Return what encodes the variables."""
        return self._home.executor.home.states

    @property
    def happened(self) -> list[TaskEvent]:
        """Return what happened on this branch, in order, in a list of its own."""
        return finish(self._draft.told())

    def get_ready(self, author: str) -> None:
        """Commit what was changed before a task; else takes what others have committed since."""
        if finish(self._draft.is_changed()):
            finish(self._draft.keep(self._order("", author)))
        else:
            self.discard()

    def refused(self) -> dict[str, InvalidError]:
        """Return why a commit would be refused, by the variables whose values cannot be stored."""
        return self._draft.refused()

    def restore(self, names: Sequence[str]) -> None:
        """Give variables the value again that they were committed with, or none."""
        self._draft.restore(names)

    def remember(self, happened: Sequence[TaskEvent], *, message: str = "", always: bool = False) -> None:
        """Keep events, and commit what was changed with them, in one batch."""
        codec = self._home.executor.home.states
        kept = [storable(event, codec) for event in happened]

        def tell(now: str | None, before: str | None) -> list[TaskEvent]:
            return [msgspec.structs.replace(each, commit_hash=now, commit_before=before) for each in kept]

        order = self._order(message, happened[0].agent_name)
        finish(self._draft.keep(order, tell, always=always or self.current_commit is None))


async def _has_branch(tx: Transaction, name: str) -> bool:
    """Whether there is a branch; others may come and go meanwhile."""

    async def work(unit: Unit) -> bool:
        return await read_head(unit, layout.BRANCHES, name) is not None

    return (await tx.executor.run(work))[0]
