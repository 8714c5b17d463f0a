"""An agent's variables with their history: commit, checkout, branch and merge; past states, read-only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from datetime import timedelta
from os import PathLike
from typing import Any, Final, Never

import msgspec

from keepstate._finish import finish, finish_each
from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.commit_request import CommitRequest, OnConflict, make_request
from keepstate.engine.history.commits import Commit, Pruned
from keepstate.engine.history.history import History
from keepstate.engine.history.merge import MergeRules
from keepstate.engine.history.record import check_ref_name, read_head
from keepstate.engine.history.revisions import Revision
from keepstate.engine.history.working_copy import EVENT_BRANCHES, EVENTS, WorkingCopy
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.space import Transaction, begin_transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.kv import KVStore
from keepstate.stores.protocol import Store
from keepstate.values.codec import Codec
from keepstate.values.pickles import SignedPickle
from keepstate.workspace.kv import MEMORY_URL, WorkspaceBinding, close_dropped
from keepstate.workspace.task_events import TaskEvent, to_storable


class PastState(Mapping[str, Any]):
    """The variables of one commit, read-only. Reads return copies.

    Attributes:
        commit: The commit.
    """

    def __init__(
        self, checkout: Checkout, history: History, working: WorkingCopy, home: WorkspaceBinding
    ) -> None:
        self._checkout, self._history, self._working = checkout, history, working
        self._home = home  # keeps the store open while this object exists
        self.commit: Commit = checkout.commit

    def __repr__(self) -> str:
        return f"<PastState {self.commit.id[:10]}, read-only>"

    @property
    def commit_hash(self) -> str:
        """The id of the commit."""
        return self.commit.id

    def __getitem__(self, name: str) -> Any:
        """Return a copy of a variable.

        Raises:
            NotFoundError: The commit has no such variable.
        """
        return deepcopy(self._checkout[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkout)

    def __len__(self) -> int:
        return len(self._checkout)

    def __setitem__(self, name: str, value: object) -> None:
        """Raise `InvalidError`, because a commit never changes."""
        raise self._read_only()

    def __delitem__(self, name: str) -> None:
        """Raise `InvalidError`, because a commit never changes."""
        raise self._read_only()

    def update(self, *_: object, **__: object) -> Never:
        """Raise `InvalidError`, because a commit never changes."""
        raise self._read_only()

    setdefault = pop = popitem = clear = update

    def _read_only(self) -> InvalidError:
        return InvalidError(
            f"{self!r} cannot change. Change the state itself, roll it back, or branch from this commit."
        )

    @property
    def task_events(self) -> list[TaskEvent]:
        """A new list of the events up to the commit, in order.

        Events that changed nothing while the state was at this commit are later, and not included.
        """
        ids = {commit.id for commit in finish_each(self._history.log(self.commit))}
        return [event for event in finish(self._working.events()) if self._is_before_commit(event, ids)]

    def _is_before_commit(self, event: TaskEvent, ids: Container[str | None]) -> bool:
        return event.commit_hash in ids and event.commit_before != self.commit_hash


SPACE: Final = "state"


class Versioned(MutableMapping[str, Any]):
    """Holds variables between tasks, with every commit of them.

    A mapping of plain values. Lists and dicts in it may be changed in place, also through references taken
    before an earlier commit; the next commit includes the changes. It is blocking, works inside a running
    event loop too, and is not thread-safe. An object that is dropped without `close` is closed by the next
    call on any other, or at the end of the process.

    Args:
        store: Storage of commits: a `Disk`, another `KVStore`, the URL of a store, the path of an SQLite
            file, or an open blocking store. By default memory.
        branch: The branch; its first commit creates it.
        space: The space in the store.
        author: Author of commits; tasks commit as their agent.
        on_conflict: Behavior of commits, including those of tasks, if the branch has newer commits: raise or
            merge.
        rules: Merge rules by path; see `History.merge`. `ours` is the state of the branch, `theirs` the state
            being committed.
        pickle: Serializer for objects of classes that are not registered.
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
        self._begin(WorkspaceBinding(MEMORY_URL if store is None else store, space, author, pickle), branch)
        self._on_conflict: OnConflict = on_conflict
        self._rules = rules
        self._order("")

    def _begin(self, home: WorkspaceBinding, branch: str) -> None:
        name = check_ref_name("branch", branch)
        if name.startswith(EVENT_BRANCHES):
            raise InvalidError(f"`branch` is {name!r}; names with {EVENT_BRANCHES!r} are reserved for events")
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
            f"{self!r} cannot be pickled. Open it where it is used, by the path or URL of its store."
        )

    # ---- opening and closing

    def __enter__(self) -> Versioned:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the store, also for states on its other branches. Uncommitted changes are lost."""
        self._home.close()

    @property
    def _draft(self) -> WorkingCopy:
        """The working copy, created on first use."""
        self._home.require_open()
        close_dropped()
        if not self._is_begun:
            finish(self._working.follow())
            self._is_begun = True
        return self._working

    # ---- a mapping

    def __getitem__(self, name: str) -> Any:
        """Return a variable, the same object each time.

        Raises:
            NotFoundError: There is no such variable.
        """
        return self._draft[name]

    def __setitem__(self, name: str, value: object) -> None:
        """Set a variable."""
        self._draft[name] = value

    def __delitem__(self, name: str) -> None:
        """Delete a variable.

        Raises:
            NotFoundError: There is no such variable.
        """
        del self._draft[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._draft])

    def __len__(self) -> int:
        return len(self._draft)

    # ---- committing

    @property
    def current_commit(self) -> str | None:
        """The id of the commit that the variables are based on; None before the first."""
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
        """Commit changes, and return the commit that the variables are based on now.

        Without changes that is the commit they were based on. The first commit is always made.

        Args:
            message: Message of the commit; at most 64 KiB of UTF-8.
            author: Author of the commit, in place of the state's author.
            on_conflict: Behavior if the branch has newer commits, in place of the state's.
            rules: Merge rules, in place of the state's.

        Raises:
            ConflictError: The branch has newer commits; nothing was committed.
            MergeConflictError: Both sides changed the same value, and no rule decides.
            InvalidError: A value cannot be stored; the message has its path. Nothing was committed. Delete or
                replace the value.
            StoreFullError: The store is full; nothing was committed.
        """
        order = self._order(message, author, on_conflict, rules)
        return self._keep(order, always=self.current_commit is None)

    def _keep(self, order: CommitRequest, *, always: bool) -> Commit:
        commit = finish(self._draft.keep(order, always=always))
        assert commit is not None
        return commit

    def discard(self) -> None:
        """Drop uncommitted changes, and load the state of the branch; lists and dicts change in place."""
        finish(self._draft.follow())

    def rollback(self, to: Revision | None = None, *, steps: int | None = None, message: str = "") -> Commit:
        """Commit an earlier state again; no history is erased. Lists and dicts change in place.

        Args:
            to: The commit with the state.
            steps: Number of commits to go back, in place of `to`.
            message: Message of the commit; by default it names the commit.

        Raises:
            NotFoundError: There is no such commit.
            InvalidError: There are uncommitted changes.
        """
        if (to is None) == (steps is None):
            raise InvalidError(
                "rollback() needs either a commit or `steps`. Use discard() to drop uncommitted changes."
            )
        self._require_unchanged("rolling back")
        target = self.checkout(f"{self._require_commit()}~{steps}" if to is None else to)
        self._draft.bring(dict(target))
        return self._keep(self._order(message or f"roll back to {target.commit_hash[:10]}"), always=True)

    def _order(
        self,
        message: str,
        author: str | None = None,
        on_conflict: OnConflict | None = None,
        rules: MergeRules | None = None,
    ) -> CommitRequest:
        conflict = self._on_conflict if on_conflict is None else on_conflict
        rules = self._rules if rules is None else rules
        return make_request(self._home.executor, self.branch_name, message, author, conflict, rules)

    def _require_commit(self) -> str:
        now = self.current_commit
        if now is None:
            raise NotFoundError(f"the branch {self.branch_name!r} has no commits. Commit first.")
        return now

    def _require_unchanged(self, what: str) -> None:
        if finish(self._draft.is_changed()):
            raise InvalidError(f"{what} would lose uncommitted changes. Call commit() or discard() first.")

    # ---- the past

    def checkout(self, commit_hash: Revision) -> PastState:
        """Return the variables of a commit, read-only.

        Args:
            commit_hash: Its id or a prefix of it, a branch, a tag, `main~3`, `main#37`, a time or a `Commit`.

        Raises:
            NotFoundError: There is no such commit.
        """
        return PastState(finish(self._history.checkout(commit_hash)), self._history, self._draft, self._home)

    def history(self, commit_hash: Revision | None = None) -> list[str]:
        """Return the ids of a commit and all its ancestors, newest first.

        Args:
            commit_hash: The commit; by default the one that the variables are based on.
        """
        start = self.current_commit if commit_hash is None else commit_hash
        return [] if start is None else [commit.id for commit in finish_each(self._history.log(start))]

    def diffs(self, commit_hash: Revision | None = None) -> dict[str, Any]:
        """Return the variables that a commit changed, with their new values.

        Removed variables have the value `MISSING`.

        Args:
            commit_hash: The commit; by default the one that the variables are based on.
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
        """Create a branch at the last commit, and return a state on it. This state stays on its branch.

        The new branch has all earlier events. Uncommitted changes are not on it.

        Raises:
            AlreadyExistsError: The branch exists; open it with `Versioned(store, branch=name)`.
            NotFoundError: Nothing was committed yet.
        """
        at = self._require_commit()
        other = Versioned.__new__(Versioned)
        other._begin(self._home, name)
        other._on_conflict, other._rules = self._on_conflict, self._rules

        async def work(tx: Transaction) -> None:
            await tx.history.branch(name, at)
            if await _has_branch(tx, EVENT_BRANCHES + self.branch_name):
                await tx.history.branch(EVENT_BRANCHES + name, EVENT_BRANCHES + self.branch_name)

        self._run_together(work)
        return other

    def merge(
        self, source: str | Versioned | Commit, *, rules: MergeRules | None = None, message: str = ""
    ) -> Commit:
        """Merge the changes and events of another branch, and return the commit.

        Args:
            source: A branch or a state on one, of the same store; or a commit, which brings no events.
            rules: Merge rules by path, in place of the state's; see `History.merge`.
            message: Message of the commit; by default it names the source.

        Raises:
            MergeConflictError: Both sides changed the same value and no rule decides; nothing was committed.
            InvalidError: There are uncommitted changes.
        """
        self._require_unchanged("merging")
        ref = source.branch_name if isinstance(source, Versioned) else source
        chosen = self._rules if rules is None else rules
        author = self._home.executor.author

        async def work(tx: Transaction) -> None:
            into = self.branch_name
            await tx.history.merge(ref, into=into, rules=chosen, message=message, author=author)
            if not isinstance(ref, str) or not await _has_branch(tx, EVENT_BRANCHES + ref):
                return
            if await _has_branch(tx, EVENT_BRANCHES + into):
                await tx.history.merge(
                    EVENT_BRANCHES + ref, into=EVENT_BRANCHES + into, rules={EVENTS: "append"}
                )
            else:
                await tx.history.branch(EVENT_BRANCHES + into, EVENT_BRANCHES + ref)

        self._run_together(work)
        self.discard()
        assert self._draft.base is not None
        return self._draft.base

    def _run_together(self, work: Callable[[Transaction], Awaitable[None]]) -> None:
        async def once() -> None:
            async with begin_transaction(self._home.executor) as tx:
                await work(tx)

        finish(self._home.executor.retry(once, None))

    def prune(self, *, keep_last: int | None = None, older_than: timedelta | None = None) -> Pruned:
        """Delete old commits and the data only they use; events stay.

        In a `KVStore` there must be no other writer during the call.

        Args:
            keep_last: Number of commits of each branch to keep.
            older_than: Minimum age of the commits to delete.
        """
        return finish(self._history.prune(keep_last=keep_last, older_than=older_than))

    # ---- interface of tasks

    @property
    def codec(self) -> Codec:
        """The codec of the variables."""
        return self._home.executor.home.states

    @property
    def task_events(self) -> list[TaskEvent]:
        """A new list of the events on this branch, in order."""
        return finish(self._draft.events())

    def get_ready(self, author: str) -> None:
        """Commit changes made before a task; without changes, load newer commits of the branch."""
        if finish(self._draft.is_changed()):
            finish(self._draft.keep(self._order("", author)))
        else:
            self.discard()

    def refused(self) -> dict[str, InvalidError]:
        """Return the errors of variables whose values cannot be stored, by name."""
        return self._draft.refused()

    def restore(self, names: Sequence[str]) -> None:
        """Restore variables to their committed values, or remove those without one."""
        self._draft.restore(names)

    def remember(self, task_events: Sequence[TaskEvent], *, message: str = "", always: bool = False) -> None:
        """Store events, and commit the changes with them, in one batch."""
        codec = self._home.executor.home.states
        kept = [to_storable(event, codec) for event in task_events]

        def tell(now: str | None, before: str | None) -> list[TaskEvent]:
            return [msgspec.structs.replace(each, commit_hash=now, commit_before=before) for each in kept]

        order = self._order(message, task_events[0].agent_name)
        finish(self._draft.keep(order, tell, always=always or self.current_commit is None))


async def _has_branch(tx: Transaction, name: str) -> bool:
    """Return whether a branch exists. Does not guard the transaction against changes of other branches."""

    async def work(unit: Unit) -> bool:
        return await read_head(unit, layout.BRANCHES, name) is not None

    return (await tx.executor.run(work))[0]
