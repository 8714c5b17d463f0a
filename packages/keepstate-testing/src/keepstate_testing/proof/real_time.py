"""The order of real time: what ended before another began must stand before it.

A batch stands at the revision that it was told, a read at the one it saw. A refused batch says what it found
under one key; it stands at the first revision not before its time at which that was so. The space's own time
runs forward in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from keepstate_testing.proof.operations import Attempt, Look


class Placed(msgspec.Struct):
    """An operation, the revision at which it stands, and the space's time there, if it was told.

    Where that follows from what ended before, `find` returns the first revision from the given one on at
    which the operation could have been, None if there is none.
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
    """Yield the operations that stand where they cannot, each with the reason.

    Args:
        operations: All of one space, in any order.
        began_of: When the batch of a revision began; nothing for the store's own.
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
