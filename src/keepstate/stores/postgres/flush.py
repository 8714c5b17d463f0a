"""The encoding of one flush as arguments of `apply_1`, and of its answer as outcomes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from struct import Struct
from typing import NamedTuple

from keepstate.errors import ClockError
from keepstate.stores.admission import cut_log_error, log_size_error, stamped_key_error
from keepstate.stores.marks import HighWaterMarks
from keepstate.stores.postgres.wire import (
    byteas,
    from_array,
    from_byteas,
    from_int8s,
    int8,
    int8_or_null,
    int8s,
)
from keepstate.stores.protocol import NONCE_BYTES, Applied, Batch, Conflict, Delete, Mark, Outcome, Put, Write
from keepstate.values import limits
from keepstate.values.key import STAMP_SIZE

_PUT = Struct("!qqqq8s")
_ZERO = int8(0)
_APPLIED, _CONFLICT, _UNKNOWN, _STAMPED, _MOVED, _TOO_LARGE, _LEAPS = 1, 2, 3, 4, 6, 7, 8


class Flush(NamedTuple):
    """Batches by space, in the order in which the server applies and answers them."""

    spaces: Sequence[str]
    marks: Sequence[Mark | None]
    groups: Sequence[Sequence[int]]
    batches: Sequence[Batch]

    @classmethod
    def of(cls, batches: Sequence[Batch], marks: HighWaterMarks) -> Flush:
        """Group batches by space, in the order of names, in which all clients lock the spaces."""
        if len(batches) == 1:
            space = batches[0].space
            return cls((space,), (marks.of(space),), ((0,),), batches)
        groups: dict[str, list[int]] = {}
        for index, batch in enumerate(batches):
            groups.setdefault(batch.space, []).append(index)
        spaces = sorted(groups, key=str.encode)
        return cls(
            spaces, [marks.of(space) for space in spaces], [groups[space] for space in spaces], batches
        )

    def values(self, randomness: bytes, clock_ms: int, *, swept: int) -> list[bytes]:
        """Return the arguments of `apply_1`.

        Args:
            randomness: `NONCE_BYTES` bytes for each space and each batch.
            clock_ms: The clock of this process, which confirms the server's.
            swept: Maximum number of expired entries to remove from each space.
        """
        nonces = [randomness[at : at + NONCE_BYTES] for at in range(0, len(randomness), NONCE_BYTES)]
        taken = [self.batches[index] for group in self.groups for index in group]
        writes = [_ordered(batch.writes) for batch in taken]
        checks = [check for batch in taken for check in batch.checks]
        indexed = [write for batch_writes in writes for write in batch_writes]
        return [
            byteas([space.encode() for space in self.spaces]),
            int8s([mark.revision if mark else 0 for mark in self.marks]),
            byteas([mark.nonce if mark else b"" for mark in self.marks]),
            int8s([swept] * len(self.spaces)),
            byteas(nonces[: len(self.spaces)]),
            int8s([len(group) for group in self.groups]),
            int8s([batch.at for batch in taken]),
            int8s([batch.alive_until_ms for batch in taken]),
            int8s([batch.retry_of for batch in taken]),
            byteas([batch.token for batch in taken]),
            byteas(nonces[len(self.spaces) :]),
            int8s([len(batch.writes) if _may_collide(batch.writes) else 0 for batch in taken]),
            int8s([_shortest_ttl(batch.writes) for batch in taken]),
            int8s([len(batch.checks) for batch in taken]),
            int8s([len(batch.writes) for batch in taken]),
            byteas([check.key for check in checks]),
            int8s([check.version for check in checks]),
            int8s([check.created for check in checks]),
            byteas([write.key for write, _ in indexed]),
            byteas([write.value if type(write) is Put else None for write, _ in indexed]),
            int8s([write.ttl_ms if type(write) is Put else None for write, _ in indexed]),
            int8s([index if type(write) is Put and write.stamp else None for write, index in indexed]),
            int8(limits.LOG_REVISIONS),
            int8(limits.LOG_BYTES),
            int8(limits.BATCH_BYTES),
            int8(clock_ms),
        ]

    def lone_put(self, nonce: bytes, clock_ms: int) -> list[bytes | None] | None:
        """Return the arguments of `put_1`, or None unless this is a single put."""
        if len(self.batches) != 1:
            return None
        batch, mark = self.batches[0], self.marks[0]
        writes, checks = batch.writes, batch.checks
        if len(writes) != 1 or len(checks) > 1 or batch.retry_of is not None:
            return None
        write = writes[0]
        if type(write) is not Put:
            return None
        check = checks[0] if checks else None
        return [
            batch.space.encode(),
            int8(mark.revision if mark else 0),
            mark.nonce if mark else b"",
            batch.token,
            nonce,
            int8_or_null(batch.at),
            check.key if check else None,
            int8_or_null(check.version) if check else None,
            int8_or_null(check.created) if check else None,
            write.key,
            write.value,
            int8_or_null(write.ttl_ms),
            _ZERO if write.stamp else None,
            int8(limits.LOG_REVISIONS),
            int8(limits.LOG_BYTES),
            int8(clock_ms),
        ]

    def lone_outcome(self, answer: bytes, marks: HighWaterMarks) -> Outcome | None:
        """Return the outcome of a single put, or None if `put_1` left it to `apply_1`."""
        verdict, actual, at_ms, revision, nonce = _PUT.unpack(answer)
        if not verdict:
            return None
        batch = self.batches[0]
        marks.record(batch.space, revision, nonce)
        if verdict == _APPLIED:
            return Applied(actual, at_ms)
        return Conflict(None if verdict == _MOVED else batch.checks[0].key, actual)

    def outcomes(
        self,
        fields: Sequence[bytes | None],
        marks: HighWaterMarks,
        url: str,
        leap_error: Callable[[str, int, int], ClockError],
        clock_ms: int,
    ) -> list[Outcome]:
        """Return the outcomes of the batches in the order given, and record the marks."""
        verdicts, actuals, times = (from_int8s(field) for field in fields[:3])
        conflicts = from_array(fields[3])
        answers = iter(zip(verdicts, actuals, times, conflicts, strict=True))
        outcomes: list[Outcome | None] = [None] * len(self.batches)
        revisions, nonces = from_int8s(fields[4]), from_byteas(fields[5])
        for space, mark, group, revision, nonce in zip(
            self.spaces, self.marks, self.groups, revisions, nonces, strict=True
        ):
            if revision < 0 and mark is not None:
                lost = marks.record_loss(space, mark, url=url)
                for index, _ in zip(group, answers, strict=False):
                    outcomes[index] = copy(lost)  # each caller raises its own
                continue
            for index in group:
                verdict, actual, at_ms, conflict = next(answers)
                if verdict == _LEAPS:
                    outcomes[index] = leap_error(space, at_ms, clock_ms)
                    continue
                outcomes[index] = _outcome(self.batches[index], verdict, actual, at_ms, conflict)
            marks.record(space, revision, nonce)
        return [outcome for outcome in outcomes if outcome is not None]


def _outcome(batch: Batch, verdict: int, actual: int, at_ms: int, conflict: bytes | None) -> Outcome:
    if verdict == _APPLIED:
        return Applied(actual, at_ms)
    if verdict == _CONFLICT:
        return Conflict(conflict, actual)
    if verdict == _UNKNOWN:
        return cut_log_error(batch)
    if verdict == _TOO_LARGE:
        return log_size_error(batch.space)
    assert verdict == _STAMPED
    return stamped_key_error(batch.space)


def _ordered(writes: Sequence[Write]) -> list[tuple[Write, int]]:
    """Return writes with their indexes in the batch, deletions last, as in the log."""
    indexed = [(write, index) for index, write in enumerate(writes)]
    if len(indexed) > 1 and any(type(write) is Delete for write in writes):
        indexed.sort(key=lambda item: type(item[0]) is Delete)
    return indexed


def _shortest_ttl(writes: Sequence[Write]) -> int | None:
    """Return the shortest time to live among the writes."""
    return min(
        (write.ttl_ms for write in writes if type(write) is Put and write.ttl_ms is not None), default=None
    )


def _may_collide(writes: Sequence[Write]) -> bool:
    """Return whether a stamped key may equal a plain key of its batch; only the server knows the revision."""
    if len(writes) < 2:
        return False
    stamped = {write.key for write in writes if type(write) is Put and write.stamp}
    return bool(stamped) and any(
        write.key[:-STAMP_SIZE] in stamped for write in writes if not (type(write) is Put and write.stamp)
    )
