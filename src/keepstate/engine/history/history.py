"""The history of a space: every moment of a state, at the cost of what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, TypeVar

from keepstate.engine import layout
from keepstate.engine.admission import admit_instance, admit_message
from keepstate.engine.history import comparing, naming
from keepstate.engine.history.ancestry import Walk, is_ancestor, merge_bases
from keepstate.engine.history.blaming import blame
from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.commits import (
    Blame,
    Branch,
    Commit,
    Difference,
    Tag,
    commit_of,
)
from keepstate.engine.history.committing import (
    OnConflict,
    Order,
    Outcome,
    admit_order,
    commit_onto,
    join,
)
from keepstate.engine.history.draft import Draft
from keepstate.engine.history.heads import MAIN, Head, admit_ref_name
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.loading import Load, State, admit_load
from keepstate.engine.history.merging import MergeRules, merged, reverted
from keepstate.engine.history.paths import Path, Steps, shown, steps_of
from keepstate.engine.history.record import EMPTY_STATE
from keepstate.engine.history.revisions import Revision, find_commit, held
from keepstate.engine.history.sharing import taken_out
from keepstate.engine.history.upkeep import Upkeep
from keepstate.engine.history.writing import Appending, planted
from keepstate.engine.recording.returning import put_back
from keepstate.engine.scope import Scope
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.merkle import Planted

T = TypeVar("T")

_PAGE = 64


class History(Upkeep):
    """The commits of a space, or of a transaction on it.

    In a transaction commits join its batch, and its drafts end with it.

    A commit's state is a dict with str keys. Where a commit is asked for, a branch, a tag, an id or its
    beginning, `main~3`, `main#37`, a time or a `Commit` will do.
    """

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self._appending = Appending()

    def __repr__(self) -> str:
        return f"<History of {self._scope.name!r}>"

    # ---- committing

    async def commit(
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
        """Commits a whole state to a branch, which is made if it is not there.

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
        order = admit_order(self._scope, branch, message, author, on_conflict, rules)
        if on_conflict == "merge" and expected_head is None:
            raise InvalidError("merging needs `expected_head`, the commit that the state was made from")
        whole = _admitted(state)

        async def work(ledger: Ledger) -> Outcome:
            base = await self._base(ledger, order.branch, expected_head)
            root = (await ledger.record(base)).root if base else EMPTY_STATE
            return await commit_onto(ledger, order, base, await planted(ledger, root, whole))

        return await self._moved(work, order, once=expected_head is not None and on_conflict == "raise")

    async def _base(self, ledger: Ledger, branch: str, expected: str | Commit | None) -> bytes | None:
        if expected is None:
            head = await ledger.branch(branch)
            return head.commit if head else None
        return (await find_commit(ledger, expected)).id if expected != "" else None

    async def append(
        self, path: Path, *items: object, branch: str = MAIN, message: str = "", author: str | None = None
    ) -> Commit:
        """Commits items at the end of a list, whoever else appends; costs the same however long the list is.

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
        order = admit_order(self._scope, branch, message, author)
        steps = steps_of(path)
        new = [_planted(self._scope, steps, place, item) for place, item in enumerate(items)]

        async def work(ledger: Ledger) -> Outcome:
            base = await self._base(ledger, order.branch, None)
            root = (await ledger.record(base)).root if base else EMPTY_STATE
            state = await ledger.serve(self._appending.appended(root, steps, new))
            return await commit_onto(ledger, order, base, state)

        return await self._moved(work, order)

    async def begin(self, branch: str = MAIN, *, load: Load = True) -> Draft:
        """Returns a draft of a branch's next state.

        Args:
            branch: The branch; if it is not there, the draft is empty and its commit makes it.
            load: True for all of the state, False for nothing yet, or paths whose keys are to be loaded.
        """
        name, load = admit_ref_name("branch", branch), admit_load(load)

        async def work(ledger: Ledger) -> Draft:
            head = await ledger.branch(name)
            if head is None:
                state, base = State(self._scope, self._records, None, EMPTY_STATE), None
                state.is_whole = True
            else:
                record = await ledger.record(head.commit)
                state = State(self._scope, self._records, head.commit, record.root)
                base = commit_of(head.commit, record, head.number, name)
                await state.load(ledger, load)
            return Draft(self._scope, state, name, base)

        return await self._run(work)

    # ---- reading

    async def checkout(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Returns the state of a commit.

        Args:
            ref: The commit.
            load: True for all of the state, False for nothing yet, or paths whose keys are to be loaded.

        Raises:
            NotFoundError: There is no such commit, or no such key.
        """
        load = admit_load(load)

        async def work(ledger: Ledger) -> Checkout:
            found = await find_commit(ledger, ref)
            state = State(
                self._scope, self._records, found.id, found.record.root, archive=self._archive, is_shared=True
            )
            await state.load(ledger, load)
            return Checkout(self._scope, state, found.told())

        return await self._look(work)

    async def find(self, ref: Revision = MAIN) -> Commit:
        """Returns the commit that something stands for.

        Raises:
            NotFoundError: There is no such commit.
            InvalidError: It stands for none, or for more than one.
        """
        return (await self._look(lambda ledger: find_commit(ledger, ref))).told()

    async def log(self, ref: Revision = MAIN, *, limit: int | None = None) -> AsyncIterator[Commit]:
        """Yields a commit and all before it, those of merged branches too; each before its parents.

        Args:
            ref: The commit.
            limit: At most so many.
        """
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self._look(lambda ledger: find_commit(ledger, ref))
        walk = Walk(found.id, found.number if found.branch else None)
        while limit is None or limit > 0:
            count = _PAGE if limit is None else min(limit, _PAGE)
            page = await self._look(partial(walk.take, count))
            for id, record, number in page:
                yield commit_of(id, record, number, found.branch)
            if len(page) < count:
                return
            limit = None if limit is None else limit - count

    async def diff(self, a: Revision, b: Revision) -> list[Difference]:
        """Returns what leads from one commit's state to another's, reading only what differs."""

        async def work(ledger: Ledger) -> list[Difference]:
            old, new = await find_commit(ledger, a), await find_commit(ledger, b)
            return await comparing.differences(ledger, old.record.root, new.record.root)

        return await self._look(work)

    async def blame(self, path: Path, ref: Revision = MAIN) -> Blame:
        """Returns the commit that gave what lies at a path its value; an item is followed through its list.

        Args:
            path: A key of the state, or a tuple of keys and places. A text that is not a key may be a path as
                it is printed, such as `messages[3].meta`.
            ref: The commit to look from.

        Raises:
            NotFoundError: The path leads nowhere, or there is no such commit.
        """
        steps_of(path)  # a wrong one is refused before anything is read

        async def work(ledger: Ledger) -> Blame:
            found, is_exact = await blame(ledger, await find_commit(ledger, ref), path)
            return Blame(found.told(), is_exact)

        return await self._look(work)

    async def fork(self, to: History) -> int:
        """Copies the whole history to that of another space, in any store, and returns its commits.

        Outside a transaction one of more than 500 branches and tags takes several batches, `main` comes with
        the last, and a call that was interrupted is made again to go on.

        Raises:
            AlreadyExistsError: A branch or tag of the same name stands on another commit there.
        """
        admit_instance("to", to, History)
        self._scope.refuse_inside("forking a history")
        bundle = await self._run(taken_out)
        return await to._bring_in(bundle)

    # ---- merging

    async def merge(
        self,
        source: Revision,
        *,
        into: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commits to a branch what another commit has changed since both were one.

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
        order = admit_order(
            self._scope, into, admit_message(message) or f"merge {_shown(source)}", author, "merge", rules
        )

        async def work(ledger: Ledger) -> Outcome:
            head = await ledger.there(order.branch)
            other = await held(ledger, await find_commit(ledger, source))
            record = await ledger.record(head.commit)
            if await is_ancestor(ledger, other.id, head.commit):
                return Outcome(head.commit, record, head.number, record.root)
            made = await merged(ledger, head.commit, other.id, rules)
            state = Planted(made.encoding, made.objects)
            return await join(ledger, order, head, (other.id, other.record), state)

        return await self._moved(work, order)

    async def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Returns the latest commit that both descend from, one of them if there are several, or None."""

        async def work(ledger: Ledger) -> Commit | None:
            one, other = await find_commit(ledger, a), await find_commit(ledger, b)
            bases = await merge_bases(ledger, one.id, other.id)
            return commit_of(bases[0], await ledger.record(bases[0])) if bases else None

        return await self._run(work)

    async def rollback(
        self,
        branch: str = MAIN,
        *,
        to: Revision | None = None,
        steps: int | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commits an earlier state to a branch again; nothing is erased.

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
        if (to is None) == (steps is None):
            raise InvalidError("a rollback needs either `to` or `steps`")
        if steps is not None:
            limits.admit_count("steps", steps)
        order = admit_order(self._scope, branch, message, author)
        target: Revision = f"{order.branch}~{steps}" if to is None else to

        async def work(ledger: Ledger) -> Outcome:
            head = await ledger.there(order.branch)
            found = await held(ledger, await find_commit(ledger, target))
            text = order.message or f"roll back to {found.id.hex()[:10]}"
            own = Order(order.branch, order.author, text, order.nonce, classes=found.record.classes)
            roots = Planted(found.record.root, found.record.roots())
            return await self._back(ledger, own, head, roots)

        return await self._moved(work, order)

    async def _back(self, ledger: Ledger, order: Order, head: Head, state: Planted) -> Outcome:
        if order.branch == MAIN and await ledger.is_recorded():
            return await put_back(self._scope, ledger, order, head, state)
        return await commit_onto(ledger, order, head.commit, state)

    async def revert(
        self,
        ref: Revision,
        *,
        branch: str = MAIN,
        rules: MergeRules | None = None,
        message: str = "",
        author: str | None = None,
    ) -> Commit:
        """Commits to a branch the undoing of what one commit changed, and keeps what came after.

        On `main` of a recorded space it is undone in the documents, as by `rollback`.

        Raises:
            MergeConflictError: What it changed was changed again since, and no rule decides.
            NotFoundError: The commit is not one of the branch.
        """
        order = admit_order(
            self._scope, branch, admit_message(message) or f"revert {_shown(ref)}", author, "raise", rules
        )

        async def work(ledger: Ledger) -> Outcome:
            head = await ledger.there(order.branch)
            found = await find_commit(ledger, ref)
            state = await reverted(ledger, head.commit, found.id, rules)
            return await self._back(ledger, order, head, state)

        return await self._moved(work, order)

    # ---- branches and tags

    async def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Makes a branch that begins at a commit.

        Raises:
            AlreadyExistsError: There is one of this name.
            NotFoundError: There is no such commit, or no branch or tag leads to it.
        """
        admitted = admit_ref_name("name", name)

        async def work(ledger: Ledger) -> Branch:
            head = await naming.name_commit(ledger, layout.BRANCHES, admitted, at)
            return Branch(admitted, head.commit.hex(), head.number)

        return await self._run(work)

    async def branches(self) -> AsyncIterator[Branch]:
        """Yields all branches by name."""
        for name, head in await self._run(lambda ledger: naming.named(ledger, layout.BRANCHES)):
            yield Branch(name, head.commit.hex(), head.number)

    async def delete_branch(self, name: str) -> bool:
        """Removes a branch, and returns whether it existed; what no other leads to will be collected.

        Raises:
            InvalidError: It is `main` of a recorded space; `ks.drop` is what ends a record.
        """
        return await self._forget(layout.BRANCHES, name)

    async def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Gives a commit a name that stays on it.

        Raises:
            AlreadyExistsError: There is one of this name.
            NotFoundError: There is no such commit, or no branch or tag leads to it.
        """
        admitted = admit_ref_name("name", name)

        async def work(ledger: Ledger) -> Tag:
            head = await naming.name_commit(ledger, layout.TAGS, admitted, at)
            return Tag(admitted, head.commit.hex())

        return await self._run(work)

    async def tags(self) -> AsyncIterator[Tag]:
        """Yields all tags by name."""
        for name, head in await self._run(lambda ledger: naming.named(ledger, layout.TAGS)):
            yield Tag(name, head.commit.hex())

    async def delete_tag(self, name: str) -> bool:
        """Removes a tag, and returns whether it existed."""
        return await self._forget(layout.TAGS, name)

    async def _forget(self, part: bytes, name: str) -> bool:
        key = layout.named_key(part, admit_ref_name("name", name))

        async def work(ledger: Ledger) -> bool:
            existed = await ledger.unit.get(key) is not None
            if existed and part is layout.BRANCHES:
                await ledger.refuse_recorded(name)
            if existed:
                ledger.unit.delete(key)
            return existed

        return await self._run(work)


def _planted(scope: Scope, steps: Steps, place: int, item: object) -> Planted:
    try:
        return scope.home.states.plant(item)
    except InvalidError as error:
        raise InvalidError(
            f"item {place} of what is appended to {shown(steps)} cannot be stored: {error}", path=error.path
        ) from error


def _admitted(state: Mapping[Any, Any]) -> dict[str, Any]:
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"a state is a dict with str keys, not {type(state).__name__}")
    whole: dict[Any, Any] = dict(state)
    for key in whole:
        if not isinstance(key, str):
            raise InvalidError(f"{key!r} is no key of a state; give a str")
    return whole


def _shown(ref: Revision) -> str:
    if isinstance(ref, Commit):
        return ref.id[:10]
    return ref.name if isinstance(ref, Branch | Tag) else str(ref)
