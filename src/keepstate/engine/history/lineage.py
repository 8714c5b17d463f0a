"""Facts about a commit that follow from its parents' records: its number, and its jump along first parents.

The commit with number n jumps to the commit whose number is that of the skew-binary jump pointer: with
n - 1 = 2^k - 1 + …, the lowest digit is cut off (Myers, "An applicative random-access stack", 1983). So any
commit before it is reached in about 2 log2 n steps, and each record needs only the records of the first
parent and of the commit that the first parent jumps to. Where one of these is gone, a commit jumps to its
first parent.

The *stretch* of a commit is the commits after the one that it jumps to, up to itself. Its record tells the
earliest time of the stretch, whether there is a merge in it, and what it touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from keepstate.engine.history.record import CommitRecord, Graft, Head
from keepstate.errors import CorruptError
from keepstate.values.touched import fold, read_touched

_NUMBERS: Final = 1_024
"""Size of the cache of jumps: a commit asks for those of a few numbers, several times each."""


class Lineage(msgspec.Struct, frozen=True):
    """The fields of a commit's record that follow from its parents; see `CommitRecord`."""

    number: int = 1
    skip: bytes = b""
    skip_number: int = 0
    spread_ms: int = 0
    merges: bool = False
    stretch: bytes = b""


@lru_cache(maxsize=_NUMBERS)
def skip_number_of(number: int) -> int:
    """Return the number of the commit that the commit with this number jumps to; 0 for none."""
    left, weight = number - 1, 1
    while left:
        weight = (1 << (left + 1).bit_length() - 1) - 1
        left -= weight
    return number - weight


def jumped_from(parent: CommitRecord) -> bytes | None:
    """Return the commit whose record decides about the jump of this commit's child; None if none does."""
    if skip_number_of(parent.number + 1) == parent.number or parent.skip_at != skip_number_of(parent.number):
        return None
    return parent.skip or parent.parents[0]


def head_of(id: bytes, record: CommitRecord) -> Head:
    """Return the head of a branch or tag on a commit."""
    return Head(id, record.number, jumped_from(record) or b"")


def lineage_of(
    created_ms: int,
    parents: int,
    touched: bytes,
    first: CommitRecord | None,
    jumped: CommitRecord | None,
) -> Lineage:
    """Return the facts of a commit.

    Args:
        created_ms: Its time.
        parents: The number of its parents.
        touched: What it touched.
        first: Its first parent.
        jumped: The commit that `jumped_from(first)` names, if it is there.
    """
    if first is None:
        return Lineage()
    number, merges = first.number + 1, parents > 1
    if jumped is None or jumped.skip_at != skip_number_of(number) or jumped.skip_at == 0:
        return Lineage(number, merges=merges)
    low_ms = min(created_ms, first.low_ms, jumped.low_ms)
    return Lineage(
        number,
        jumped.skip or jumped.parents[0],
        jumped.skip_at,
        created_ms - low_ms,
        merges or first.merges or jumped.merges,
        fold([read_touched(touched), first.stretch_touched(), jumped.stretch_touched()]).encoding(),
    )


def check_lineage(record: CommitRecord, parents: Sequence[CommitRecord], jumped: CommitRecord | None) -> None:
    """Compare the facts in a record with the facts that follow from its parents' records.

    Args:
        record: The record.
        parents: The records of its parents.
        jumped: The record that `jumped_from` names for the first parent, if it is there.

    Raises:
        CorruptError: They differ, or marks are damaged or not in their shortest form. A jump to the first
            parent is right everywhere: the other commit may have been gone when this one was made.
    """
    for marks in (record.touched, record.stretch):
        if marks and fold([read_touched(marks)]).encoding() != marks:
            raise CorruptError("its marks are not in their shortest form; another program made it")
    first = parents[0] if parents else None
    made = Lineage(
        record.number, record.skip, record.skip_number, record.spread_ms, record.merges, record.stretch
    )
    args = record.created_ms, len(parents), record.touched, first
    right = [lineage_of(*args, None), lineage_of(*args, jumped)]
    if first is not None and jumped is None and jumped_from(first) is not None and record.skip:
        # Without that record, only the numbers can be judged.
        is_right = made.number == first.number + 1 and made.skip_number == skip_number_of(made.number)
        right += [made] if is_right else []
    names = [name for name in Lineage.__struct_fields__ if getattr(made, name) != getattr(right[-1], name)]
    if record.generation != 1 + max((parent.generation for parent in parents), default=0):
        names.append("generation")
    elif made in right:
        return
    raise CorruptError(
        f"its {', '.join(names)} {'is' if len(names) == 1 else 'are'} not what follows from its parents; "
        "another program made it"
    )


def check_graft(graft: Graft, record: CommitRecord, parents: Sequence[CommitRecord]) -> None:
    """Compare a graft with its commit, and with the parents that it names.

    Raises:
        CorruptError: The numbers differ, or a parent cannot be an ancestor. A walk might never end there.
    """
    if (graft.goes_on and not parents) or any(one.generation >= record.generation for one in parents):
        raise CorruptError("its graft names parents that are not before it")
    numbers = [parents[0].number + 1 + graft.skipped] if graft.goes_on else []
    if {graft.number, *numbers} != {record.number}:
        raise CorruptError(f"its graft counts {graft.skipped} pruned commits below number {graft.number}")
