"""The history of a space: every committed state, at the cost of what changed."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, TypeVar

import msgspec

from keepstate.engine.history.ancestry import is_ancestor, merge_bases
from keepstate.engine.history.bundle import Bundle, read_bundle, write_bundle
from keepstate.engine.history.checkout import Checkout, Load, State, check_load
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    OnConflict,
    commit_onto,
    join,
    make_request,
    squash,
)
from keepstate.engine.history.commits import (
    Branch,
    Commit,
    Tag,
    commit_of,
)
from keepstate.engine.history.difference import differences
from keepstate.engine.history.draft import Draft
from keepstate.engine.history.json_patch import Differences
from keepstate.engine.history.merge import MergeRules, merge_commits, revert_commit
from keepstate.engine.history.paths import Path, Steps, format_path, steps_of
from keepstate.engine.history.record import (
    EMPTY_STATE,
    Head,
    check_ref_name,
)
from keepstate.engine.history.recording.rollback import restore_documents
from keepstate.engine.history.references import References
from keepstate.engine.history.revisions import Revision, find_commit, hold
from keepstate.engine.history.search import Search
from keepstate.engine.history.session import HistorySession
from keepstate.engine.history.state_encoding import ListAppender, encode_state
from keepstate.engine.history.transfer import export_history, import_history
from keepstate.engine.history.upkeep import Upkeep
from keepstate.engine.kernel.arguments import check_message, check_path, require_instance
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.layout import MAIN
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.merkle import MerkleValue

T = TypeVar("T")

_PAGE = 64
_HEADS = limits.BATCH_WRITES // 2
"""Number of branches and tags that one batch imports."""


class History(References, Search, Upkeep):
    """The commits of a space, or of a transaction on it.

    In a transaction, commits join its batch, and its drafts end with it.

    The state of a commit is a dict with str keys. Where a method takes a commit, pass a branch, a tag, an id
    or its first digits, `main~3`, `main#37`, a time, or a `Commit`.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self._appender = ListAppender()

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
        request = make_request(self._executor, branch, message, author, on_conflict, rules, meta)
        if on_conflict == "merge" and expected_head is None:
            raise InvalidError("merging needs `expected_head`, the commit that the state was made from")
        whole = _check_state(state)

        async def work(session: HistorySession) -> CommitResult:
            base = await self._base(session, request.branch, expected_head)
            root = (await session.record(base)).root if base else EMPTY_STATE
            return await commit_onto(session, request, base, await encode_state(session, root, whole))

        return await self._commit(work, request, once=expected_head is not None and on_conflict == "raise")

    async def _base(
        self, session: HistorySession, branch: str, expected: str | Commit | None
    ) -> bytes | None:
        if expected is None:
            head = await session.branch(branch)
            return head.commit if head else None
        return (await find_commit(session, expected)).id if expected != "" else None

    async def append(
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
        request = make_request(self._executor, branch, message, author, meta=meta)
        steps = steps_of(path)
        new = [_to_merkle(self._executor, steps, index, item) for index, item in enumerate(items)]

        async def work(session: HistorySession) -> CommitResult:
            base = await self._base(session, request.branch, None)
            root = (await session.record(base)).root if base else EMPTY_STATE
            state, touched = await session.serve(self._appender.append(root, steps, new))
            return await commit_onto(session, request, base, state, touched)

        return await self._commit(work, request)

    async def begin(self, branch: str = MAIN, *, load: Load = True) -> Draft:
        """Return a draft of the next state of a branch.

        Args:
            branch: The branch. If it does not exist, the draft is empty and its commit creates the branch.
            load: True to load the whole state, False to load nothing yet, or the paths to load.
        """
        name, load = check_ref_name("branch", branch), check_load(load)

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
            self._executor.remember(session.unit)
            return Draft(self._executor, state, name, base)

        return await self._run(work)

    # ---- reading

    async def checkout(self, ref: Revision = MAIN, *, load: Load = True) -> Checkout:
        """Return the state of a commit.

        Args:
            ref: The commit.
            load: True to load the whole state, False to load nothing yet, or the paths to load.

        Raises:
            NotFoundError: The commit or the key does not exist.
        """
        load = check_load(load)

        async def work(session: HistorySession) -> Checkout:
            found = await find_commit(session, ref)
            root, archive = found.record.root, self._archive
            state = State(self._executor, self._records, found.id, root, archive=archive, is_shared=True)
            await state.load(session, load)
            return Checkout(self._executor, state, found.to_commit())

        return await self._read(work)

    async def diff(
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
        if path is not None:
            steps_of(path)  # check it before any read
        if limit is not None:
            limits.admit_count("limit", limit)

        async def work(session: HistorySession) -> Differences:
            old, new = await find_commit(session, a), await find_commit(session, b)
            return Differences(await differences(session, old.record.root, new.record.root, path, limit))

        return await self._read(work)

    # ---- merging

    async def merge(
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
        text = check_message(message) or f"merge {_shown(source)}"
        request = make_request(self._executor, into, text, author, "merge", rules, meta)

        async def work(session: HistorySession) -> CommitResult:
            head = await session.require_branch(request.branch)
            other = await hold(session, await find_commit(session, source))
            record = await session.record(head.commit)
            if await is_ancestor(session, other.id, head.commit):
                return CommitResult(head.commit, record, head.number, record.root)
            made = await merge_commits(session, head.commit, other.id, rules)
            state = MerkleValue(made.encoding, made.objects)
            if request.branch == MAIN and await session.is_recorded():
                return await restore_documents(self._executor, session, request, head, state, other.id)
            return await join(session, request, head, (other.id, other.record), state)

        return await self._commit(work, request)

    async def merge_base(self, a: Revision, b: Revision) -> Commit | None:
        """Return the latest common ancestor of two commits, one of them if there are several, or None."""

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
        if (to is None) == (steps is None):
            raise InvalidError("a rollback needs either `to` or `steps`")
        if steps is not None:
            limits.admit_count("steps", steps)
        request = make_request(self._executor, branch, message, author, meta=meta)
        target: Revision = f"{request.branch}~{steps}" if to is None else to

        async def work(session: HistorySession) -> CommitResult:
            head = await session.require_branch(request.branch)
            found = await hold(session, await find_commit(session, target))
            text = request.message or f"roll back to {found.id.hex()[:10]}"
            own = msgspec.structs.replace(request, message=text, classes=found.record.classes)
            state = MerkleValue(found.record.root, found.record.roots())
            return await self._restore(session, own, head, state)

        return await self._commit(work, request)

    async def _restore(
        self, session: HistorySession, request: CommitRequest, head: Head, state: MerkleValue
    ) -> CommitResult:
        if request.branch == MAIN and await session.is_recorded():
            return await restore_documents(self._executor, session, request, head, state)
        return await commit_onto(session, request, head.commit, state)

    async def revert(
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
        text = check_message(message) or f"revert {_shown(ref)}"
        request = make_request(self._executor, branch, text, author, "raise", rules, meta)

        async def work(session: HistorySession) -> CommitResult:
            head = await session.require_branch(request.branch)
            found = await find_commit(session, ref)
            state = await revert_commit(session, head.commit, found.id, rules)
            return await self._restore(session, request, head, state)

        return await self._commit(work, request)

    async def squash(
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
        request = make_request(self._executor, branch, message, author, meta=meta)

        async def work(session: HistorySession) -> CommitResult:
            return await squash(session, request, await find_commit(session, since))

        return await self._commit(work, request)

    # ---- copies

    async def fork(self, to: History) -> int:
        """Copy the whole history to that of another space, in any store, and return its number of commits.

        Outside a transaction, a history with more than 500 branches and tags takes several batches. `main`
        comes with the last batch. Repeat an interrupted call to continue it.

        Raises:
            AlreadyExistsError: A branch or tag exists there and is on another commit.
        """
        require_instance("to", to, History)
        self._executor.require_outside_transaction("forking a history")
        return await to._import(await self._run(export_history))

    async def export_bundle(self, path: str | PathLike[str]) -> int:
        """Write the whole history into one file, and return its number of commits.

        The file is written completely or not at all, and replaces an existing file. The whole history is held
        in memory.
        """
        self._executor.require_outside_transaction("exporting a history")
        file = check_path("path", path)
        bundle = await self._run(export_history)
        await self._executor.runner.call(write_bundle, bundle, file)
        return len(bundle.commits)

    async def import_bundle(self, path: str | PathLike[str]) -> int:
        """Import the history of a file, verified byte by byte, and return its number of commits.

        Raises:
            InvalidError: The file does not exist, or is not a bundle.
            CorruptError: The file is damaged or incomplete. Nothing was written.
            AlreadyExistsError: A branch or tag exists and is on another commit.
        """
        return await self._import(await self._executor.runner.call(read_bundle, check_path("path", path)))

    async def _import(self, bundle: Bundle) -> int:
        """Write a history, in as many batches as its branches and tags need."""
        most = None if self._executor.gathers else _HEADS
        while not await self._run(lambda session: import_history(session, bundle, most)):
            pass
        return len(bundle.commits)


def _to_merkle(executor: Executor, steps: Steps, index: int, item: object) -> MerkleValue:
    try:
        return executor.home.states.to_merkle(item)
    except InvalidError as error:
        raise InvalidError(
            f"item {index} appended to {format_path(steps)} cannot be stored: {error}", path=error.path
        ) from error


def _check_state(state: Mapping[Any, Any]) -> dict[str, Any]:
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"a state is a dict with str keys, not {type(state).__name__}")
    whole: dict[Any, Any] = dict(state)
    for key in whole:
        if not isinstance(key, str):
            raise InvalidError(f"{key!r} is not a key of a state; use a str")
    return whole


def _shown(ref: Revision) -> str:
    if isinstance(ref, Commit):
        return ref.id[:10]
    return ref.name if isinstance(ref, Branch | Tag) else str(ref)
