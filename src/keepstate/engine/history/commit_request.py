"""How a commit comes onto a branch: on its head, or merged with what others put there meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from keepstate.engine.history.ancestry import first_parents, is_ancestor
from keepstate.engine.history.heads import Head, admit_ref_name
from keepstate.engine.history.merge import MergeRules, merged
from keepstate.engine.history.paths import patterns
from keepstate.engine.history.record import NONCE_BYTES, CommitRecord
from keepstate.engine.history.revisions import Found, held
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_author, check_message
from keepstate.engine.kernel.executor import Executor, is_coroutine_function
from keepstate.errors import ConflictError, InvalidError, NotFoundError, PrunedError
from keepstate.values.merge_rules import Rules
from keepstate.values.merkle import MerkleValue

OnConflict: TypeAlias = Literal["raise", "merge"]


class CommitRequest(msgspec.Struct, frozen=True):
    """What is to be committed where, and by whom.

    Attributes:
        branch: The branch that moves.
        author: Who commits.
        message: What for.
        nonce: What tells the commit from another that says the same.
        on_conflict: What to do if the branch has moved on.
        rules: How to merge then.
        classes: Those of a state that is taken from a commit elsewhere.
    """

    branch: str
    author: str | None
    message: str
    nonce: bytes
    on_conflict: OnConflict = "raise"
    rules: MergeRules | None = None
    classes: Sequence[str] = ()


def admit_order(
    executor: Executor,
    branch: object,
    message: object,
    author: object,
    on_conflict: OnConflict = "raise",
    rules: MergeRules | None = None,
) -> CommitRequest:
    """Return the order.

    Raises:
        InvalidError: An argument cannot be taken; it is named.
    """
    text = check_message(message)
    if on_conflict not in ("raise", "merge"):  # pyright: ignore[reportUnnecessaryContains]
        raise InvalidError(f"`on_conflict` is {on_conflict!r}; it is 'raise' or 'merge'")
    if rules is not None and not isinstance(rules, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"`rules` is {rules!r}; give a dict of paths and rules")
    admit_rules(rules)
    who = executor.author if author is None else check_author(author)
    nonce = executor.clock.random_bytes(NONCE_BYTES)
    return CommitRequest(admit_ref_name("branch", branch), who, text, nonce, on_conflict, rules)


def admit_rules(rules: MergeRules | None) -> None:
    """Raise `InvalidError` for a rule that is none, or that nobody would wait for."""
    Rules(patterns(rules))
    for path, rule in (rules or {}).items():
        if callable(rule) and is_coroutine_function(rule):
            raise InvalidError(f"the merge rule for {path!r} is a coroutine function; give a plain function")


class CommitResult(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        id: The commit that the branch is on now.
        record: What it says.
        number: How many commits lead to it by first parents.
        own_root: The encoding of the state that was to be committed, before it was merged.
    """

    id: bytes
    record: CommitRecord
    number: int
    own_root: bytes


async def commit_onto(
    session: HistorySession, request: CommitRequest, base: bytes | None, state: MerkleValue
) -> CommitResult:
    """Commit a state that was made from that of the commit `base`; None if it began with nothing.

    Raises:
        ConflictError: The branch is not on `base` any more, and is not to be merged.
        NotFoundError: It is to be merged, and there is no branch any more.
        MergeConflictError: Both sides changed the same.
    """
    head = await session.branch(request.branch)
    await session.refuse_recorded(request.branch)
    if base == (head.commit if head else None):
        return await put_onto(session, request, head, state)
    if request.on_conflict == "merge" and head is None:
        raise NotFoundError(
            f"branch {request.branch!r} of {session.unit.name!r} is gone: there is nothing to merge with; "
            "begin again"
        )
    if request.on_conflict == "raise" or head is None:
        raise _moved(session, request.branch, base, head)
    if base is not None:
        before = await session.record(base)
        if not await is_ancestor(session, base, head.commit):
            await _held(session, Found(base, before, None, None, False))
    own, record = await session.write(
        state.encoding,
        state.objects,
        parents=[] if base is None else [base],
        author=request.author,
        message=request.message,
        nonce=request.nonce,
    )
    made = await merged(session, head.commit, own, request.rules)
    return await join(session, request, head, (own, record), MerkleValue(made.encoding, made.objects))


async def _held(session: HistorySession, found: Found) -> None:
    try:
        await held(session, found)
    except NotFoundError as error:
        raise PrunedError(
            f"commit {found.id.hex()[:10]}, which this state was made from, was pruned or squashed away: "
            "nothing can be merged with it; begin again"
        ) from error


def commit_turn(branch: str) -> bytes:
    """Return where those of one process take turns who commit to a branch.

    It is not the branch's key: what is recorded waits for its turn there, within that of a rollback.
    """
    return b"commit/" + branch.encode()


async def put_onto(
    session: HistorySession, request: CommitRequest, head: Head | None, state: MerkleValue
) -> CommitResult:
    """Commit a state right onto the branch's head, or make the branch with it."""
    parents = [head.commit] if head else []
    id, record = await session.write(
        state.encoding,
        state.objects,
        parents=parents,
        author=request.author,
        message=request.message,
        nonce=request.nonce,
        classes=request.classes,
    )
    number = head.number + 1 if head else 1
    session.move(request.branch, Head(id, number))
    return CommitResult(id, record, number, state.encoding)


async def join(
    session: HistorySession,
    request: CommitRequest,
    head: Head,
    other: tuple[bytes, CommitRecord],
    state: MerkleValue,
) -> CommitResult:
    """Commit a state that has both the branch's head and another commit before it."""
    await session.refuse_recorded(request.branch)
    id, record = await session.write(
        state.encoding,
        state.objects,
        parents=[head.commit, other[0]],
        author=request.author,
        message=request.message,
        nonce=request.nonce,
    )
    session.move(request.branch, Head(id, head.number + 1))
    return CommitResult(id, record, head.number + 1, other[1].root)


async def squash(session: HistorySession, request: CommitRequest, since: Found) -> CommitResult:
    """Commit a branch's state right after one of its first parents.

    Raises:
        NotFoundError: It is none of them.
    """
    head = await session.there(request.branch)
    passed = 0
    number = head.number
    async for id, _ in first_parents(session, head.commit):
        if id == since.id:
            break
        passed += 1
        number -= 1 + await session.skipped(id)
    else:
        raise NotFoundError(f"commit {since.id.hex()} is none of the first parents of {request.branch!r}")
    before = await session.record(head.commit)
    if not passed:
        return CommitResult(head.commit, before, head.number, before.root)
    id, record = await session.write(
        before.root,
        {},
        parents=[since.id],
        sources=[head.commit],
        author=request.author,
        message=request.message or f"squash {passed} commits",
        nonce=request.nonce,
    )
    session.move(request.branch, Head(id, number + 1))
    return CommitResult(id, record, number + 1, before.root)


def _moved(session: HistorySession, branch: str, base: bytes | None, head: Head | None) -> ConflictError:
    now = f"is at {head.commit.hex()[:10]}" if head else "is absent"
    then = f"at {base.hex()[:10]}" if base else "absent"
    return ConflictError(
        f"branch {branch!r} of {session.unit.space!r} {now}, not {then} as expected; "
        "begin again, or commit with on_conflict='merge'",
        space=session.unit.space,
        key=layout.named_key(layout.BRANCHES, branch),
    )
