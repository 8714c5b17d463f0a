"""The history of a space: every committed state, at the cost of what changed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from typing import Any, TypeVar

import msgspec

from keepstate.engine.history.ancestry import Walk, is_ancestor, merge_bases
from keepstate.engine.history.archive import Archive, confirm_file, put_path
from keepstate.engine.history.bundle import Bundle, read_bundle, write_bundle
from keepstate.engine.history.checkout import Checkout, Load, State, check_load
from keepstate.engine.history.commit_request import (
    CommitRequest,
    CommitResult,
    OnConflict,
    commit_onto,
    commit_turn,
    join,
    make_request,
    squash,
)
from keepstate.engine.history.commits import (
    Blame,
    Branch,
    Commit,
    Difference,
    HistoryStats,
    Pruned,
    Tag,
    Verified,
    commit_of,
)
from keepstate.engine.history.difference import blame, differences
from keepstate.engine.history.draft import Draft
from keepstate.engine.history.merge import MergeRules, merge_commits, revert_commit
from keepstate.engine.history.paths import Path, Steps, format_path, steps_of
from keepstate.engine.history.record import (
    EMPTY_STATE,
    MAIN,
    Head,
    check_ref_name,
    decode_head,
    heads,
    put_head,
    read_head,
)
from keepstate.engine.history.recording.rollback import restore_documents
from keepstate.engine.history.retention import Keeping, collect_history, prune
from keepstate.engine.history.revisions import Revision, find_commit, hold, number_of
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.history.state_encoding import ListAppender, encode_state
from keepstate.engine.history.transfer import export_history, import_history
from keepstate.engine.history.verification import survey, verify
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_flag, check_message, check_path, require_instance
from keepstate.engine.kernel.executor import ATTEMPTS, Executor
from keepstate.engine.kernel.stored import describe, to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import AlreadyExistsError, AttemptsExhaustedError, InvalidError
from keepstate.values import limits
from keepstate.values.merkle import MerkleValue

T = TypeVar("T")

_PAGE = 64
_HEADS = limits.BATCH_WRITES // 2
"""Number of branches and tags that one batch imports."""


class History:
    """The commits of a space, or of a transaction on it.

    In a transaction, commits join its batch, and its drafts end with it.

    The state of a commit is a dict with str keys. Where a method takes a commit, pass a branch, a tag, an id
    or its first digits, `main~3`, `main#37`, a time, or a `Commit`.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor, self._records = executor, Records()
        self._archive = Archive(executor)
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
        request = make_request(self._executor, branch, message, author, on_conflict, rules)
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
        request = make_request(self._executor, branch, message, author)
        steps = steps_of(path)
        new = [_to_merkle(self._executor, steps, index, item) for index, item in enumerate(items)]

        async def work(session: HistorySession) -> CommitResult:
            base = await self._base(session, request.branch, None)
            root = (await session.record(base)).root if base else EMPTY_STATE
            state = await session.serve(self._appender.append(root, steps, new))
            return await commit_onto(session, request, base, state)

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

    async def find(self, ref: Revision = MAIN) -> Commit:
        """Return the commit that a revision refers to.

        Raises:
            NotFoundError: The commit does not exist.
            InvalidError: The revision is not valid, or refers to more than one commit.
        """
        return (await self._read(lambda session: find_commit(session, ref))).to_commit()

    async def log(self, ref: Revision = MAIN, *, limit: int | None = None) -> AsyncIterator[Commit]:
        """Yield a commit and all its ancestors, including those of merged branches, each before its parents.

        Args:
            ref: The commit.
            limit: The largest number of commits to yield.
        """
        if limit is not None:
            limits.admit_count("limit", limit)
        found = await self._read(lambda session: find_commit(session, ref))
        walk = Walk(found.id, found.number if found.branch else None)
        while limit is None or limit > 0:
            count = _PAGE if limit is None else min(limit, _PAGE)
            page = await self._read(partial(walk.take, count))
            for id, record, number in page:
                yield commit_of(id, record, number, found.branch)
            if len(page) < count:
                return
            limit = None if limit is None else limit - count

    async def diff(
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
        if path is not None:
            steps_of(path)  # check it before any read
        if limit is not None:
            limits.admit_count("limit", limit)

        async def work(session: HistorySession) -> list[Difference]:
            old, new = await find_commit(session, a), await find_commit(session, b)
            return await differences(session, old.record.root, new.record.root, path, limit)

        return await self._read(work)

    async def blame(self, path: Path, ref: Revision = MAIN) -> Blame:
        """Return the commit that gave the value at a path its content.

        An item of a list is followed as its index changes.

        Args:
            path: A key of the state, or a tuple of keys and indexes. Text that is not a key is read as a
                printed path, such as `messages[3].meta`.
            ref: The commit to start from.

        Raises:
            NotFoundError: The path or the commit does not exist.
        """
        steps_of(path)  # check it before any read

        async def work(session: HistorySession) -> Blame:
            found, is_exact = await blame(session, await find_commit(session, ref), path)
            return Blame(found.to_commit(), is_exact)

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
        text = check_message(message) or f"merge {_shown(source)}"
        request = make_request(self._executor, into, text, author, "merge", rules)

        async def work(session: HistorySession) -> CommitResult:
            head = await session.require_branch(request.branch)
            other = await hold(session, await find_commit(session, source))
            record = await session.record(head.commit)
            if await is_ancestor(session, other.id, head.commit):
                return CommitResult(head.commit, record, head.number, record.root)
            made = await merge_commits(session, head.commit, other.id, rules)
            state = MerkleValue(made.encoding, made.objects)
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
        if (to is None) == (steps is None):
            raise InvalidError("a rollback needs either `to` or `steps`")
        if steps is not None:
            limits.admit_count("steps", steps)
        request = make_request(self._executor, branch, message, author)
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
    ) -> Commit:
        """Commit a state to a branch that undoes one of its commits and keeps all later changes.

        On `main` of a recorded space, the documents are changed, as by `rollback`.

        Raises:
            MergeConflictError: A later commit changed the same value, and no rule decides.
            NotFoundError: The commit is not part of the branch.
        """
        text = check_message(message) or f"revert {_shown(ref)}"
        request = make_request(self._executor, branch, text, author, "raise", rules)

        async def work(session: HistorySession) -> CommitResult:
            head = await session.require_branch(request.branch)
            found = await find_commit(session, ref)
            state = await revert_commit(session, head.commit, found.id, rules)
            return await self._restore(session, request, head, state)

        return await self._commit(work, request)

    async def squash(
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
        request = make_request(self._executor, branch, message, author)

        async def work(session: HistorySession) -> CommitResult:
            return await squash(session, request, await find_commit(session, since))

        return await self._commit(work, request)

    # ---- branches and tags

    async def branch(self, name: str, at: Revision = MAIN) -> Branch:
        """Create a branch that begins at a commit.

        Raises:
            AlreadyExistsError: A branch has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        head = await self._name_commit(layout.BRANCHES, name, at)
        return Branch(name, head.commit.hex(), head.number)

    async def branches(self) -> AsyncIterator[Branch]:
        """Yield all branches by name."""
        for name, head in await self._names(layout.BRANCHES):
            yield Branch(name, head.commit.hex(), head.number)

    async def delete_branch(self, name: str) -> bool:
        """Delete a branch, and return whether it existed. Commits without another name are collected.

        Raises:
            InvalidError: It is `main` of a recorded space; call `ks.drop` to delete the space.
        """
        return await self._delete_name(layout.BRANCHES, name)

    async def tag(self, name: str, at: Revision = MAIN) -> Tag:
        """Give a commit a name that does not move.

        Raises:
            AlreadyExistsError: A tag has this name.
            NotFoundError: The commit does not exist, or no branch or tag leads to it.
        """
        return Tag(name, (await self._name_commit(layout.TAGS, name, at)).commit.hex())

    async def tags(self) -> AsyncIterator[Tag]:
        """Yield all tags by name."""
        for name, head in await self._names(layout.TAGS):
            yield Tag(name, head.commit.hex())

    async def delete_tag(self, name: str) -> bool:
        """Delete a tag, and return whether it existed."""
        return await self._delete_name(layout.TAGS, name)

    async def _name_commit(self, part: bytes, name: str, at: Revision) -> Head:
        checked = check_ref_name("name", name)

        async def work(session: HistorySession) -> Head:
            if await read_head(session.unit, part, checked) is not None:
                raise AlreadyExistsError(
                    f"{describe(layout.named_key(part, checked))} of {session.unit.space!r} exists; delete "
                    "it first, or choose another name"
                )
            found = await hold(session, await find_commit(session, at))
            head = Head(found.id, await number_of(session, found))
            put_head(session.unit, part, checked, head)
            return head

        return await self._run(work)

    async def _names(self, part: bytes) -> list[tuple[str, Head]]:
        """Return all branches, or all tags, by name, with those that the transaction made."""

        async def work(session: HistorySession) -> list[tuple[str, Head]]:
            if session.unit.writes:
                return [
                    (layout.name_of(part, entry.key), decode_head(entry.key, entry.value))
                    async for entry in session.unit.scan(part)
                ]
            return [pair async for pair in heads(session.unit, part)]

        return await self._run(work)

    async def _delete_name(self, part: bytes, name: str) -> bool:
        key = layout.named_key(part, check_ref_name("name", name))

        async def work(session: HistorySession) -> bool:
            existed = await session.unit.get(key) is not None
            if existed and part is layout.BRANCHES:
                await session.reject_recorded(name)
            if existed:
                session.unit.delete(key)
            return existed

        return await self._run(work)

    # ---- size and integrity

    async def stats(self) -> HistoryStats:
        """Return the size of the history. Concurrent writes may or may not be counted."""
        self._executor.require_outside_transaction("counting a history")
        return await survey(await self._executor.store(), self._executor.stored_name)

    async def verify(self) -> Verified:
        """Compare every commit and object that branches and tags lead to with its name; return the damage."""
        self._executor.require_outside_transaction("verifying a history")
        store = await self._executor.store()
        return await verify(Unit(store, self._executor.stored_name))

    # ---- retention

    async def prune(
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
        self._executor.require_outside_transaction("pruning")
        keeping = await self._keeping(keep_last, older_than, keep_tagged)
        commits = await self._run(lambda session: prune(session, keeping))
        return Pruned(commits, await self.collect())

    async def _keeping(
        self, keep_last: int | None, older_than: datetime | timedelta | None, tagged: object
    ) -> Keeping:
        if keep_last is None and older_than is None:
            raise InvalidError("pruning needs `keep_last` or `older_than`, which say what to keep")
        if keep_last is not None:
            limits.admit_count("keep_last", keep_last)
        keep_tagged = check_flag("keep_tagged", tagged)
        if older_than is None:
            return Keeping(keep_last, None, keep_tagged)
        since_ms = await self._run(lambda session: _since_ms(session, older_than))
        return Keeping(keep_last, since_ms, keep_tagged)

    async def collect(self) -> int:
        """Delete the commits and objects that no branch or tag leads to, and return their number.

        Writers and other collectors may run at the same time.
        """
        self._executor.require_outside_transaction("collecting")
        self._records = Records()
        return await collect_history(await self._executor.store(), self._executor.stored_name)

    async def archive(
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
        self._executor.require_outside_transaction("archiving a history")
        keeping = await self._keeping(keep_last, older_than, keep_tagged)
        file = os.path.abspath(check_path("path", path))
        confirm_file(file)

        for _ in range(ATTEMPTS):
            commits = await self._archive_once(file, keeping)
            if commits is not None:
                return Pruned(commits, await self.collect())
        raise AttemptsExhaustedError(
            f"other callers archived the history of {self._executor.name!r} {ATTEMPTS} times meanwhile; "
            "let one caller archive it",
            attempts=ATTEMPTS,
        )

    async def _archive_once(self, file: str, keeping: Keeping) -> int | None:
        """Move commits into a file. Return their number, or None if another caller archived meanwhile."""
        now = await self._run(export_history)
        before, _ = await self._executor.run(lambda unit: self._archive.before(unit, file, now))
        whole = await self._archive.write(file, now, before)

        async def work(session: HistorySession) -> int | None:
            if not await put_path(session.unit, file, before):
                return None
            return await prune(session, msgspec.structs.replace(keeping, archived=whole.commits.keys()))

        return await self._run(work)

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

    # ---- running

    async def _read(self, work: Callable[[HistorySession], Awaitable[T]]) -> T:
        """Run work that only reads, with access to archived commits."""
        return await self._run(work, self._archive)

    async def _run(self, work: Callable[[HistorySession], Awaitable[T]], archive: Archive | None = None) -> T:
        async def joined(unit: Unit) -> T:
            return await work(HistorySession.of(self._executor, unit, self._records, archive))

        return (await self._executor.run(joined))[0]

    async def _commit(
        self,
        work: Callable[[HistorySession], Awaitable[CommitResult]],
        request: CommitRequest,
        *,
        once: bool = False,
    ) -> Commit:
        """Run work that commits, again while other callers move the branch, unless `once`."""

        async def joined(unit: Unit) -> tuple[Unit, CommitResult]:
            return unit, await work(HistorySession.of(self._executor, unit, self._records))

        if once:
            (unit, own), _ = await self._executor.run(joined, attempts=1)
        else:
            (unit, own), _ = await self._executor.serialized(commit_turn(request.branch), joined)
        result = unit.recorded or own
        return commit_of(result.id, result.record, result.number, request.branch)


async def _since_ms(session: HistorySession, older_than: datetime | timedelta) -> int:
    if isinstance(older_than, timedelta):
        if older_than < timedelta():
            raise InvalidError(f"`older_than` is {older_than}; pass a duration that is not negative")
        return await session.unit.now_ms() - older_than // timedelta(milliseconds=1)
    require_instance("older_than", older_than, datetime, timedelta)
    if older_than.tzinfo is None:
        raise InvalidError(f"`older_than` is {older_than!r}; pass an aware datetime or a timedelta")
    return to_milliseconds(older_than)


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
