"""Two states become one: what each side changed since the last commit that both descend from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keepstate.engine.history.ancestry import is_ancestor, merge_bases
from keepstate.engine.history.ledger import Ledger
from keepstate.engine.history.paths import Steps, decoded_or_none, patterns, shown, steps_shown
from keepstate.engine.history.record import EMPTY_STATE, CommitRecord
from keepstate.errors import MergeConflictError, NotFoundError, PrunedError
from keepstate.values import merge_rules
from keepstate.values.merge import Merged, merge
from keepstate.values.merge_rules import Rule, Rules
from keepstate.values.merkle import Planted, gather
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
    ledger: Ledger, ours: bytes, theirs: bytes, rules: MergeRules | None, bases: Sequence[bytes] | None = None
) -> Merged:
    """Returns the state that two commits become.

    Raises:
        MergeConflictError: Both changed the same, and no rule decides.
    """
    mine, others = await ledger.record(ours), await ledger.record(theirs)
    by_rule = Rules(patterns(rules), ours_is_later=(mine.generation, ours) > (others.generation, theirs))
    base = await _base(ledger, await merge_bases(ledger, ours, theirs) if bases is None else bases, by_rule)
    made = await ledger.serve(merge(base, mine.root, others.root, by_rule, ledger.states))
    if made.conflicts:
        raise await _error(ledger, made.conflicts, mine, others)
    return made


async def _base(ledger: Ledger, bases: Sequence[bytes], rules: Rules) -> bytes:
    """Returns the state that both began with; several are merged into one first, which is kept nowhere."""
    if not bases:
        return EMPTY_STATE
    first, *others = bases
    root = (await ledger.record(first)).root
    for other in others:
        below = await _base(ledger, await merge_bases(ledger, first, other), rules)
        made = await ledger.serve(merge(below, root, (await ledger.record(other)).root, rules, ledger.states))
        ledger.known.add(made.objects)
        root = made.encoding
    return root


async def _error(
    ledger: Ledger, conflicts: Sequence[merge_rules.MergeConflict], ours: CommitRecord, theirs: CommitRecord
) -> MergeConflictError:
    told = [await _told(ledger, conflict, ours, theirs) for conflict in conflicts]
    places = "; ".join(map(str, told[:_SHOWN])) + ("; …" if len(told) > _SHOWN else "")
    count = f"{len(told)} places" if len(told) > 1 else "one place"
    return MergeConflictError(
        f"both sides changed {count} of {ledger.unit.name!r}: {places}; "
        "give rules for them, or change one side",
        space=ledger.unit.space,
        conflicts=tuple(told),
    )


async def _told(
    ledger: Ledger, conflict: merge_rules.MergeConflict, ours: CommitRecord, theirs: CommitRecord
) -> MergeConflict:
    sides = (conflict.base, conflict.ours, conflict.theirs)
    objects = await ledger.serve(gather([side for side in sides if side is not None]))
    base, mine, others = (
        MISSING if side is None else decoded_or_none(side, objects, ledger.states) for side in sides
    )
    path = steps_shown(conflict.path)
    return MergeConflict(path, base, mine, others, ours.author, theirs.author, conflict.reason)


async def reverted(ledger: Ledger, head: bytes, undone: bytes, rules: MergeRules | None) -> Planted:
    """Returns a branch's state without what one of its commits changed.

    Raises:
        MergeConflictError: That was changed again since, and no rule decides.
        NotFoundError: The commit is not before the head.
        PrunedError: What was before it is gone.
    """
    if not await is_ancestor(ledger, undone, head):
        raise NotFoundError(f"commit {undone.hex()} is not one of the branch, and cannot be undone there")
    if await ledger.skipped(undone):
        raise PrunedError(
            f"what commit {undone.hex()} changed cannot be told any more: the one before it was pruned"
        )
    mine, record = await ledger.record(head), await ledger.record(undone)
    parents = await ledger.parents(undone)
    before = await ledger.record(parents[0]) if parents else None
    root = before.root if before else EMPTY_STATE
    made = await ledger.serve(merge(record.root, mine.root, root, Rules(patterns(rules)), ledger.states))
    if made.conflicts:
        raise await _error(ledger, made.conflicts, mine, record)
    # The earlier state's own roots stand in its commit; what takes them over needs them at hand.
    return Planted(made.encoding, {**(before.roots() if before else {}), **made.objects})
