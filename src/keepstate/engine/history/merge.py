"""Two states become one: what each side changed since the last commit that both descend from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keepstate.engine.history.ancestry import is_ancestor, merge_bases
from keepstate.engine.history.paths import Steps, decoded_or_none, patterns, shown, steps_shown
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.engine.history.session import HistorySession
from keepstate.errors import MergeConflictError, NotFoundError, PrunedError
from keepstate.values import merge_rules
from keepstate.values.merge import Merged, merge
from keepstate.values.merge_rules import Rule, Rules
from keepstate.values.merkle import MerkleValue, gather
from keepstate.values.missing import MISSING

MergeRules = Mapping[Any, Rule]
"""Rules by path; None in one stands for any step, and `()` is for all that no other rule is for."""

_SHOWN: Final = 3
_SHOWN_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """Where two sides cannot both have their way.

    Attributes:
        path: Where, in ours.
        base: The value that both began with, `MISSING` for none.
        ours: The value of the branch that is merged into, `MISSING` if it was removed; of a list, the items
            that stand against theirs.
        theirs: The value of what is merged, or `MISSING`.
        our_author: Who made our last commit.
        their_author: Who made theirs.
        reason: Why no rule decided.
    """

    path: Steps
    base: Any
    ours: Any
    theirs: Any
    our_author: str | None
    their_author: str | None
    reason: str

    def __str__(self) -> str:
        sides = ", ".join(_brief(side) for side in (self.base, self.ours, self.theirs))
        return f"{shown(self.path)}: {self.reason} (base, ours, theirs: {sides})"


def _brief(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python shows no int of more than 4,300 digits
        text = "a large int" if isinstance(value, int) else f"a {type(value).__name__} with a large int"
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


async def merged(
    session: HistorySession,
    ours: bytes,
    theirs: bytes,
    rules: MergeRules | None,
    bases: Sequence[bytes] | None = None,
) -> Merged:
    """Return the state that two commits become.

    Raises:
        MergeConflictError: Both changed the same, and no rule decides.
    """
    mine, others = await session.record(ours), await session.record(theirs)
    by_rule = Rules(patterns(rules), ours_is_later=(mine.generation, ours) > (others.generation, theirs))
    base = await _base(session, await merge_bases(session, ours, theirs) if bases is None else bases, by_rule)
    made = await session.serve(merge(base, mine.root, others.root, by_rule, session.states))
    if made.conflicts:
        raise await _error(session, made.conflicts, mine, others)
    return made


async def _base(session: HistorySession, bases: Sequence[bytes], rules: Rules) -> bytes:
    """Return the state that both began with; several are merged into one first, which is kept nowhere."""
    if not bases:
        return EMPTY_STATE
    first, *others = bases
    root = (await session.record(first)).root
    for other in others:
        below = await _base(session, await merge_bases(session, first, other), rules)
        made = await session.serve(
            merge(below, root, (await session.record(other)).root, rules, session.states)
        )
        session.known.add(made.objects)
        root = made.encoding
    return root


async def _error(
    session: HistorySession,
    conflicts: Sequence[merge_rules.MergeConflict],
    ours: CommitRecord,
    theirs: CommitRecord,
) -> MergeConflictError:
    told = [await _told(session, conflict, ours, theirs) for conflict in conflicts]
    places = "; ".join(map(str, told[:_SHOWN])) + ("; …" if len(told) > _SHOWN else "")
    count = f"{len(told)} places" if len(told) > 1 else "one place"
    return MergeConflictError(
        f"both sides changed {count} of {session.unit.name!r}: {places}; "
        "give rules for them, or change one side",
        space=session.unit.space,
        conflicts=tuple(told),
    )


async def _told(
    session: HistorySession, conflict: merge_rules.MergeConflict, ours: CommitRecord, theirs: CommitRecord
) -> MergeConflict:
    sides = (conflict.base, conflict.ours, conflict.theirs)
    objects = await session.serve(gather([side for side in sides if side is not None]))
    base, mine, others = (
        MISSING if side is None else decoded_or_none(side, objects, session.states) for side in sides
    )
    path = steps_shown(conflict.path)
    return MergeConflict(path, base, mine, others, ours.author, theirs.author, conflict.reason)


async def reverted(
    session: HistorySession, head: bytes, undone: bytes, rules: MergeRules | None
) -> MerkleValue:
    """Return a branch's state without what one of its commits changed.

    Raises:
        MergeConflictError: That was changed again since, and no rule decides.
        NotFoundError: The commit is not before the head.
        PrunedError: What was before it is gone.
    """
    if not await is_ancestor(session, undone, head):
        raise NotFoundError(f"commit {undone.hex()} is not one of the branch, and cannot be undone there")
    if await session.skipped(undone):
        raise PrunedError(
            f"what commit {undone.hex()} changed cannot be told any more: the one before it was pruned"
        )
    mine, record = await session.record(head), await session.record(undone)
    parents = await session.parents(undone)
    before = await session.record(parents[0]) if parents else None
    root = before.root if before else EMPTY_STATE
    made = await session.serve(merge(record.root, mine.root, root, Rules(patterns(rules)), session.states))
    if made.conflicts:
        raise await _error(session, made.conflicts, mine, record)
    # The earlier state's own roots stand in its commit; what takes them over needs them at hand.
    return MerkleValue(made.encoding, {**(before.roots() if before else {}), **made.objects})
