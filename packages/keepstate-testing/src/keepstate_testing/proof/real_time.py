"""The order of real time: an operation that ended before another began must come before it.

A batch has the revision of its answer, a read the revision that it saw. A rejected batch names the version
that it found under one key; it has the first revision, not before its time, at which that was true. The
space's own time advances in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from keepstate_testing.proof.operations import Attempt, Look


class Placed(msgspec.Struct):
    """An operation, its revision, and the space's time there, if the answer had it.

    If the revision depends on earlier operations, `find` returns the first possible revision from the given
    one on, or None.
    """

    began_ns: int
    ended_ns: int
    revision: int
    now_ms: int | None
    source: Attempt | Look
    writes: bool = False
    find: Callable[[int], int | None] | None = None


def disorder(
    operations: Sequence[Placed], began_of: Mapping[int, int]
) -> Iterator[tuple[Attempt | Look, str]]:
    """Yield the operations whose revision is impossible, each with the reason.

    Args:
        operations: All of one space, in any order.
        began_of: The begin of a revision's batch; None for the store's own batches.
    """
    by_begin = sorted(operations, key=_began)
    by_end = sorted(operations, key=_ended)
    floor = passed = latest_ms = 0
    for operation in by_begin:
        while by_end[passed].ended_ns < operation.began_ns:
            floor = max(floor, by_end[passed].revision)
            latest_ms = max(latest_ms, by_end[passed].now_ms or 0)
            passed += 1
        if operation.find is not None:
            at = operation.find(floor)
            if at is None or began_of.get(at, 0) > operation.ended_ns:
                yield operation.source, f"was never so from revision {floor} on until it ended"
                at = floor
            operation.revision = at
        elif operation.revision < floor or (operation.writes and operation.revision == floor):
            yield operation.source, f"stands at revision {operation.revision}; {floor} had ended before"
        if operation.now_ms is not None and operation.now_ms < latest_ms:
            yield operation.source, f"was at {operation.now_ms}; the space's time had come to {latest_ms}"


def _began(operation: Placed) -> int:
    return operation.began_ns


def _ended(operation: Placed) -> int:
    return operation.ended_ns
