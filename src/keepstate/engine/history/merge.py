"""Merges of commits: both sides' changes since their last common ancestor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keepstate.engine.history.ancestry import is_ancestor, merge_bases
from keepstate.engine.history.paths import Steps, decode_or, decode_steps, encode_patterns, format_path
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.engine.history.session import HistorySession
from keepstate.errors import MergeConflictError, NotFoundError, PrunedError
from keepstate.values.merge import Merged, Rule, Rules, ValueConflict, merge
from keepstate.values.merkle import MerkleValue, gather
from keepstate.values.types import MISSING

MergeRules = Mapping[Any, Rule]
"""Rules by path. None in a path matches any step; `()` is the rule if no other applies."""

_SHOWN: Final = 3
_SHOWN_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """A value that both sides changed differently.

    Attributes:
        path: The path in `ours`.
        base: The value before both changes, `MISSING` if there was none.
        ours: The value of the branch that is merged into, `MISSING` if it was removed. In a list: the items
            that conflict with theirs.
        theirs: The value of the other side, or `MISSING`.
        our_author: The author of our last commit.
        their_author: The author of theirs.
        reason: The reason why no rule decided.
    """

    path: Steps
    base: Any
    ours: Any
    theirs: Any
    our_author: str | None
    their_author: str | None
    reason: str

    def __str__(self) -> str:
        sides = ", ".join(_format_value(side) for side in (self.base, self.ours, self.theirs))
        return f"{format_path(self.path)}: {self.reason} (base, ours, theirs: {sides})"


def _format_value(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not print an int of more than 4,300 digits
        text = "a large int" if isinstance(value, int) else f"a {type(value).__name__} with a large int"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


async def merge_commits(
    session: HistorySession, ours: bytes, theirs: bytes, rules: MergeRules | None
) -> Merged:
    """Return the merged state of two commits.

    Raises:
        MergeConflictError: Both sides changed the same value, and no rule decides.
    """
    mine, others = await session.record(ours), await session.record(theirs)
    by_rule = Rules(
        encode_patterns(rules), ours_is_later=(mine.generation, ours) > (others.generation, theirs)
    )
    base = await _base(session, await merge_bases(session, ours, theirs), by_rule)
    return await _merge(session, base, mine, others, others.root, by_rule)


async def _merge(
    session: HistorySession,
    base: bytes,
    ours: CommitRecord,
    theirs: CommitRecord,
    their_root: bytes,
    rules: Rules,
) -> Merged:
    made = await session.serve(merge(base, ours.root, their_root, rules, session.states))
    if made.conflicts:
        raise await _error(session, made.conflicts, ours, theirs)
    return made


async def _base(session: HistorySession, bases: Sequence[bytes], rules: Rules) -> bytes:
    """Return the common base. Several bases are merged into one first, which is not stored."""
    if not bases:
        return EMPTY_STATE
    first, *others = bases
    root = (await session.record(first)).root
    for other in others:
        below = await _base(session, await merge_bases(session, first, other), rules)
        made = await session.serve(
            merge(below, root, (await session.record(other)).root, rules, session.states)
        )
        session.objects.add(made.objects)
        root = made.encoding
    return root


async def _error(
    session: HistorySession,
    conflicts: Sequence[ValueConflict],
    ours: CommitRecord,
    theirs: CommitRecord,
) -> MergeConflictError:
    decoded = [await _decode(session, conflict, ours, theirs) for conflict in conflicts]
    paths = "; ".join(map(str, decoded[:_SHOWN])) + ("; …" if len(decoded) > _SHOWN else "")
    count = f"{len(decoded)} places" if len(decoded) > 1 else "one place"
    return MergeConflictError(
        f"both sides changed {count} of {session.unit.name!r}: {paths}; "
        "pass rules for them, or change one side",
        space=session.unit.space,
        conflicts=tuple(decoded),
    )


async def _decode(
    session: HistorySession, conflict: ValueConflict, ours: CommitRecord, theirs: CommitRecord
) -> MergeConflict:
    sides = (conflict.base, conflict.ours, conflict.theirs)
    objects = await session.serve(gather([side for side in sides if side is not None]))
    base, mine, others = (decode_or(MISSING, side, objects, session.states) for side in sides)
    path = decode_steps(conflict.path)
    return MergeConflict(path, base, mine, others, ours.author, theirs.author, conflict.reason)


async def revert_commit(
    session: HistorySession, head: bytes, undone: bytes, rules: MergeRules | None
) -> MerkleValue:
    """Return the state of a branch without the changes of one of its commits.

    Raises:
        MergeConflictError: A later commit changed the same value, and no rule decides.
        NotFoundError: The commit is not an ancestor of the head.
        PrunedError: The parent of the commit was pruned.
    """
    if not await is_ancestor(session, undone, head):
        raise NotFoundError(f"commit {undone.hex()} is not part of the branch and cannot be reverted there")
    if await session.skipped(undone):
        raise PrunedError(f"the changes of commit {undone.hex()} are unknown, because its parent was pruned")
    mine, record = await session.record(head), await session.record(undone)
    parents = await session.parents(undone)
    before = await session.record(parents[0]) if parents else None
    root = before.root if before else EMPTY_STATE
    made = await _merge(session, record.root, mine, record, root, Rules(encode_patterns(rules)))
    # The roots that the earlier commit carries may not exist as objects, so the new commit needs them.
    return MerkleValue(made.encoding, {**(before.roots() if before else {}), **made.objects})
