"""Commits onto a branch: on its head, or merged with the commits that other callers added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from keepstate.engine.history.ancestry import At, at, is_ancestor, jump_from, parent_of
from keepstate.engine.history.lineage import head_of
from keepstate.engine.history.merge import MergeRules, merge_commits
from keepstate.engine.history.paths import encode_patterns
from keepstate.engine.history.record import NONCE_BYTES, CommitRecord, Head, check_ref_name
from keepstate.engine.history.revisions import Found, hold
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_author, check_message
from keepstate.engine.kernel.executor import Executor, is_coroutine_function
from keepstate.errors import ConflictError, InvalidError, NotFoundError, PrunedError
from keepstate.values.merge import Rules
from keepstate.values.merkle import MerkleValue
from keepstate.values.touched import ANYTHING, Touched, fold

OnConflict: TypeAlias = Literal["raise", "merge"]


class CommitRequest(msgspec.Struct, frozen=True):
    """A request to commit to a branch.

    Attributes:
        branch: The branch to move.
        author: The author.
        message: The commit message.
        nonce: Random bytes that distinguish equal commits.
        on_conflict: What to do if the branch has moved on.
        rules: The rules of a merge.
        classes: The classes of a state that is taken from a commit of another branch.
        meta: The caller's notes on the commit.
    """

    branch: str
    author: str | None
    message: str
    nonce: bytes
    on_conflict: OnConflict = "raise"
    rules: MergeRules | None = None
    classes: Sequence[str] = ()
    meta: Mapping[str, str] = {}


class CommitResult(msgspec.Struct, frozen=True):
    """The result of a commit.

    Attributes:
        id: The new head of the branch.
        record: That commit.
        number: Its number by first parents.
        own_root: The encoding of the requested state, before a merge.
    """

    id: bytes
    record: CommitRecord
    number: int
    own_root: bytes


def make_request(
    executor: Executor,
    branch: object,
    message: object,
    author: object,
    on_conflict: OnConflict = "raise",
    rules: MergeRules | None = None,
    meta: Mapping[str, str] | None = None,
) -> CommitRequest:
    """Return a request after checking its arguments.

    Raises:
        InvalidError: An argument is not valid. The error names it.
    """
    text = check_message(message)
    if on_conflict not in ("raise", "merge"):  # pyright: ignore[reportUnnecessaryContains]
        raise InvalidError(f"`on_conflict` is {on_conflict!r}; it is 'raise' or 'merge'")
    if rules is not None and not isinstance(rules, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"`rules` is {rules!r}; pass a dict of paths and rules")
    Rules(encode_patterns(rules))
    for path, rule in (rules or {}).items():
        if callable(rule) and is_coroutine_function(rule):
            raise InvalidError(f"the merge rule for {path!r} is a coroutine function; pass a plain function")
    by = executor.author if author is None else check_author(author)
    nonce = executor.clock.random_bytes(NONCE_BYTES)
    name = check_ref_name("branch", branch)
    return CommitRequest(name, by, text, nonce, on_conflict, rules, meta=executor.meta_of(meta))


def commit_turn(branch: str) -> bytes:
    """Return the key under which this process serializes commits to a branch.

    It is not the key of the branch, because a rollback of a recorded space waits for the recorder, which is
    serialized by that.
    """
    return b"commit/" + branch.encode()


async def commit_onto(
    session: HistorySession,
    request: CommitRequest,
    base: bytes | None,
    state: MerkleValue,
    touched: Touched | None = None,
) -> CommitResult:
    """Commit a state that was made from that of the commit `base`, or from nothing if `base` is None.

    `touched` marks the changes since `base`, if the caller knows them.

    Raises:
        ConflictError: The branch is no longer at `base`, and the request does not merge.
        NotFoundError: The request merges, and the branch was deleted.
        MergeConflictError: Both sides changed the same value.
    """
    head = await session.branch(request.branch)
    await session.reject_recorded(request.branch)
    if base == (head.commit if head else None):
        return await commit_on_head(session, request, head, state, touched)
    if request.on_conflict == "merge" and head is None:
        raise NotFoundError(
            f"branch {request.branch!r} of {session.unit.name!r} is gone: there is nothing to merge with; "
            "begin again"
        )
    if request.on_conflict == "raise" or head is None:
        raise _moved_error(session, request.branch, base, head)
    if base is not None:
        before = await session.record(base)
        if not await is_ancestor(session, base, head.commit):
            await _hold_base(session, Found(base, before, None, None, False))
    own = await _write(session, request, [] if base is None else [base], state, touched=touched)
    made = await merge_commits(session, head.commit, own[0], request.rules)
    return await join(session, request, head, own, MerkleValue(made.encoding, made.objects))


async def _hold_base(session: HistorySession, base: Found) -> None:
    try:
        await hold(session, base)
    except NotFoundError as error:
        raise PrunedError(
            f"commit {base.id.hex()[:10]}, which this state was made from, was pruned or squashed away: "
            "nothing can be merged with it; begin again"
        ) from error


async def commit_on_head(
    session: HistorySession,
    request: CommitRequest,
    head: Head | None,
    state: MerkleValue,
    touched: Touched | None = None,
    merged: Sequence[bytes] = (),
) -> CommitResult:
    """Commit a state on the head of the branch, or create the branch."""
    parents = [head.commit, *merged] if head else []
    id, record = await _write(session, request, parents, state, classes=request.classes, touched=touched)
    return _move(session, request, id, record, state.encoding)


async def join(
    session: HistorySession,
    request: CommitRequest,
    head: Head,
    other: tuple[bytes, CommitRecord],
    state: MerkleValue,
) -> CommitResult:
    """Commit a state whose parents are the head of the branch and another commit."""
    await session.reject_recorded(request.branch)
    id, record = await _write(session, request, [head.commit, other[0]], state)
    return _move(session, request, id, record, other[1].root)


async def squash(session: HistorySession, request: CommitRequest, since: Found) -> CommitResult:
    """Commit the state of a branch directly after one of its first parents.

    Raises:
        NotFoundError: `since` is not one of them.
    """
    head = await session.require_branch(request.branch)
    passed, touched = await _passed(session, head, since, request.branch)
    before = await session.record(head.commit)
    if not passed:
        return CommitResult(head.commit, before, head.number, before.root)
    request = msgspec.structs.replace(request, message=request.message or f"squash {passed} commits")
    state = MerkleValue(before.root, {})
    id, record = await _write(session, request, [since.id], state, sources=[head.commit], touched=touched)
    return _move(session, request, id, record, before.root)


async def _passed(session: HistorySession, head: Head, since: Found, branch: str) -> tuple[int, Touched]:
    """Return the number of kept commits of a branch after one of its first parents, and what they touched.

    Raises:
        NotFoundError: `since` is not one of them.
    """
    place: At | None = await at(session, head.commit)
    touched: list[Touched] = []
    passed = 0
    while place is not None and place.number > since.record.number:
        jump = await jump_from(session, place)
        if jump is not None and jump[1] >= since.record.number:
            touched.append(place.record.stretch_touched())
            passed += place.number - jump[1]
            place = await at(session, *jump)
            continue
        is_pruned = await session.graft(place.id) is not None
        touched.append(ANYTHING if is_pruned else place.record.own_touched())
        passed += 1
        place = await parent_of(session, place)
    if place is None or place.id != since.id:
        raise NotFoundError(f"commit {since.id.hex()} is not a first parent of {branch!r}")
    return passed, fold(touched)


async def _write(
    session: HistorySession,
    request: CommitRequest,
    parents: Sequence[bytes],
    state: MerkleValue,
    *,
    sources: Sequence[bytes] | None = None,
    classes: Sequence[str] = (),
    touched: Touched | None = None,
) -> tuple[bytes, CommitRecord]:
    return await session.write(
        state.encoding,
        state.objects,
        parents=parents,
        sources=sources,
        author=request.author,
        message=request.message,
        nonce=request.nonce,
        classes=classes,
        meta=request.meta,
        touched=touched,
    )


def _move(
    session: HistorySession,
    request: CommitRequest,
    id: bytes,
    record: CommitRecord,
    own_root: bytes,
) -> CommitResult:
    session.move(request.branch, head_of(id, record))
    return CommitResult(id, record, record.number, own_root)


def _moved_error(
    session: HistorySession, branch: str, base: bytes | None, head: Head | None
) -> ConflictError:
    now = f"is at {head.commit.hex()[:10]}" if head else "is absent"
    then = f"at {base.hex()[:10]}" if base else "absent"
    return ConflictError(
        f"branch {branch!r} of {session.unit.space!r} {now}, not {then} as expected; "
        "begin again, or commit with on_conflict='merge'",
        space=session.unit.space,
        key=layout.named_key(layout.BRANCHES, branch),
    )
