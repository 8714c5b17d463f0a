"""The history of a space: every moment of a state, at the cost of what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, TypeVar

from keepstate.engine.history import difference, ref_names
from keepstate.engine.history.ancestry import Walk, is_ancestor, merge_bases
from keepstate.engine.history.blame import blame
from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    OnConflict,
    admit_order,
    commit_onto,
    join,
)
from keepstate.engine.history.commits import (
    Blame,
    Branch,
    Commit,
    Difference,
    Tag,
    commit_of,
)
from keepstate.engine.history.draft import Draft
from keepstate.engine.history.heads import MAIN, Head, admit_ref_name
from keepstate.engine.history.loaded_state import Load, State, admit_load
from keepstate.engine.history.maintenance import Upkeep
from keepstate.engine.history.merge import MergeRules, merged, reverted
from keepstate.engine.history.paths import Path, Steps, shown, steps_of
from keepstate.engine.history.record import EMPTY_STATE
from keepstate.engine.history.recording.rollback import put_back
from keepstate.engine.history.revisions import Revision, find_commit, held
from keepstate.engine.history.session import HistorySession
from keepstate.engine.history.state_encoding import Appending, planted
from keepstate.engine.history.transfer import taken_out
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_message, require_instance
from keepstate.engine.kernel.executor import Executor
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.merkle import MerkleValue

T = TypeVar("T")

_PAGE = 64


class History(Upkeep):
    """The commits of a space, or of a transaction on it.

    In a transaction commits join its batch, and its drafts end with it.

    A commit's state is a dict with str keys. Where a commit is asked for, a branch, a tag, an id or its
    beginning, `main~3`, `main#37`, a time or a `Commit` will do.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self._appending = Appending()

    def __repr__(self) -> str:
        return f"<History of {self._executor.name!r}>"

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
        request = admit_order(self._executor, branch, message, author, on_conflict, rules)
        if on_conflict == "merge" and expected_head is None:
            raise InvalidError("merging needs `expected_head`, the commit that the state was made from")
        whole = _admitted(state)

        async def work(session: HistorySession) -> CommitResult:
            base = await self._base(session, request.branch, expected_head)
            root = (await session.record(base)).root if base else EMPTY_STATE
            return await commit_onto(session, request, base, await planted(session, root, whole))

        return await self._moved(work, request, once=expected_head is not None and on_conflict == "raise")

    async def _base(
        self, session: HistorySession, branch: str, expected: str | Commit | None
    ) -> bytes | None:
        if expected is None:
            head = await session.branch(branch)
            return head.commit if head else None
        return (await find_commit(session, expected)).id if expected != "" else None

    async def append(
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
        request = admit_order(self._executor, branch, message, author)
        steps = steps_of(path)
        new = [_planted(self._executor, steps, place, item) for place, item in enumerate(items)]

        async def work(session: HistorySession) -> CommitResult:
            base = await self._base(session, request.branch, None)
            root = (await session.record(base)).root if base else EMPTY_STATE
            state = await session.serve(self._appending.appended(root, steps, new))
            return await commit_onto(session, request, base, state)

        return await self._moved(work, request)

    async def begin(self, branch: str = MAIN, *, load: Load = True) -> Draft:
        """Return a draft of a branch's next state.

        Args:
            branch: The branch; if it is not there, the draft is empty and its commit makes it.
            load: True for all of the state, False for nothing yet, or paths whose keys are to be loaded.
        """
        name, load = admit_ref_name("branch", branch), admit_load(load)

        async def work(session: HistorySession) -> Draft:
            head = await session.branch(name)
            if head is None:
                state, base = State(self._executor, self._records, None, EMPTY_STATE), None
                state.is_whole = True
            else:
                record = await session.record(head.commit)
                state = State(self._executor, self._records, head.commit, record.root)
                base = commit_of(head.commit, record, head.number, name)
                await state.load(session, load)
            return Draft(self._executor, state, name, base)

        return await self._run(work)

    # ---- reading

    async def checkout(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Return the state of a commit.

        Args:
            ref: The commit.
            load: True for all of the state, False for nothing yet, or paths whose keys are to be loaded.

        Raises:
            NotFoundError: There is no such commit, or no such key.
        """
        load = admit_load(load)

        async def work(session: HistorySession) -> Checkout:
            found = await find_commit(session, ref)
            state = State(
                self._executor,
                self._records,
                found.id,
                found.record.root,
                archive=self._archive,
                is_shared=True,
            )
            await state.load(session, load)
            return Checkout(self._executor, state, found.told())

        return await self._look(work)

    async def find(self, ref: Revision = MAIN) -> Commit:
        """Return the commit that something stands for.

        Raises:
            NotFoundError: There is no such commit.
            InvalidError: It stands for none, or for more than one.
        """
        return (await self._look(lambda session: find_commit(session, ref))).told()

    async def log(self, ref: Revision = MAIN, *, limit: int | None = None) -> AsyncIterator[Commit]:
        """Yield a commit and all before it, those of merged branches too; each before its parents.

        Args:
            ref: The commit.
            limit: At most so many.
        """
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self._look(lambda session: find_commit(session, ref))
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
        """Return what leads from one commit's state to another's, reading only what differs."""

        async def work(session: HistorySession) -> list[Difference]:
            old, new = await find_commit(session, a), await find_commit(session, b)
            return await difference.differences(session, old.record.root, new.record.root)

        return await self._look(work)

    async def blame(self, path: Path, ref: Revision = MAIN) -> Blame:
        """Return the commit that gave what lies at a path its value; an item is followed through its list.

        Args:
            path: A key of the state, or a tuple of keys and places. A text that is not a key may be a path as
                it is printed, such as `messages[3].meta`.
            ref: The commit to look from.

        Raises:
            NotFoundError: The path leads nowhere, or there is no such commit.
        """
        steps_of(path)  # a wrong one is refused before anything is read

        async def work(session: HistorySession) -> Blame:
            found, is_exact = await blame(session, await find_commit(session, ref), path)
            return Blame(found.told(), is_exact)

        return await self._look(work)

    async def fork(self, to: History) -> int:
        """Copy the whole history to that of another space, in any store, and return its commits.

        Outside a transaction one of more than 500 branches and tags takes several batches, `main` comes with
        the last, and a call that was interrupted is made again to go on.

        Raises:
            AlreadyExistsError: A branch or tag of the same name stands on another commit there.
        """
        require_instance("to", to, History)
        self._executor.require_outside_transaction("forking a history")
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
        request = admit_order(
            self._executor, into, check_message(message) or f"merge {_shown(source)}", author, "merge", rules
        )

        async def work(session: HistorySession) -> CommitResult:
            head = await session.there(request.branch)
            other = await held(session, await find_commit(session, source))
            record = await session.record(head.commit)
            if await is_ancestor(session, other.id, head.commit):
                return CommitResult(head.commit, record, head.number, record.root)
            made = await merged(session, head.commit, other.id, rules)
            state = MerkleValue(made.encoding, made.objects)
            return await join(session, request, head, (other.id, other.record), state)

        return await self._moved(work, request)

    async def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Return the latest commit that both descend from, one of them if there are several, or None."""

        async def work(session: HistorySession) -> Commit | None:
            one, other = await find_commit(session, a), await find_commit(session, b)
            bases = await merge_bases(session, one.id, other.id)
            return commit_of(bases[0], await session.record(bases[0])) if bases else None

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
        if (to is None) == (steps is None):
            raise InvalidError("a rollback needs either `to` or `steps`")
        if steps is not None:
            limits.admit_count("steps", steps)
        request = admit_order(self._executor, branch, message, author)
        target: Revision = f"{request.branch}~{steps}" if to is None else to

        async def work(session: HistorySession) -> CommitResult:
            head = await session.there(request.branch)
            found = await held(session, await find_commit(session, target))
            text = request.message or f"roll back to {found.id.hex()[:10]}"
            own = CommitRequest(
                request.branch, request.author, text, request.nonce, classes=found.record.classes
            )
            roots = MerkleValue(found.record.root, found.record.roots())
            return await self._back(session, own, head, roots)

        return await self._moved(work, request)

    async def _back(
        self, session: HistorySession, request: CommitRequest, head: Head, state: MerkleValue
    ) -> CommitResult:
        if request.branch == MAIN and await session.is_recorded():
            return await put_back(self._executor, session, request, head, state)
        return await commit_onto(session, request, head.commit, state)

    async def revert(
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
        request = admit_order(
            self._executor, branch, check_message(message) or f"revert {_shown(ref)}", author, "raise", rules
        )

        async def work(session: HistorySession) -> CommitResult:
            head = await session.there(request.branch)
            found = await find_commit(session, ref)
            state = await reverted(session, head.commit, found.id, rules)
            return await self._back(session, request, head, state)

        return await self._moved(work, request)

    # ---- branches and tags

    async def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Make a branch that begins at a commit.

        Raises:
            AlreadyExistsError: There is one of this name.
            NotFoundError: There is no such commit, or no branch or tag leads to it.
        """
        admitted = admit_ref_name("name", name)

        async def work(session: HistorySession) -> Branch:
            head = await ref_names.name_commit(session, layout.BRANCHES, admitted, at)
            return Branch(admitted, head.commit.hex(), head.number)

        return await self._run(work)

    async def branches(self) -> AsyncIterator[Branch]:
        """Yield all branches by name."""
        for name, head in await self._run(lambda session: ref_names.named(session, layout.BRANCHES)):
            yield Branch(name, head.commit.hex(), head.number)

    async def delete_branch(self, name: str) -> bool:
        """Remove a branch, and return whether it existed; what no other leads to will be collected.

        Raises:
            InvalidError: It is `main` of a recorded space; `ks.drop` is what ends a record.
        """
        return await self._forget(layout.BRANCHES, name)

    async def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Give a commit a name that stays on it.

        Raises:
            AlreadyExistsError: There is one of this name.
            NotFoundError: There is no such commit, or no branch or tag leads to it.
        """
        admitted = admit_ref_name("name", name)

        async def work(session: HistorySession) -> Tag:
            head = await ref_names.name_commit(session, layout.TAGS, admitted, at)
            return Tag(admitted, head.commit.hex())

        return await self._run(work)

    async def tags(self) -> AsyncIterator[Tag]:
        """Yield all tags by name."""
        for name, head in await self._run(lambda session: ref_names.named(session, layout.TAGS)):
            yield Tag(name, head.commit.hex())

    async def delete_tag(self, name: str) -> bool:
        """Remove a tag, and return whether it existed."""
        return await self._forget(layout.TAGS, name)

    async def _forget(self, part: bytes, name: str) -> bool:
        key = layout.named_key(part, admit_ref_name("name", name))

        async def work(session: HistorySession) -> bool:
            existed = await session.unit.get(key) is not None
            if existed and part is layout.BRANCHES:
                await session.refuse_recorded(name)
            if existed:
                session.unit.delete(key)
            return existed

        return await self._run(work)


def _planted(executor: Executor, steps: Steps, place: int, item: object) -> MerkleValue:
    try:
        return executor.home.states.to_merkle(item)
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
