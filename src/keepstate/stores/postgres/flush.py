"""One flush as `apply_1` takes it, and its answer as outcomes. Pure, but for the nonces it is given."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from struct import Struct
from typing import NamedTuple

from keepstate.errors import ClockError, InvalidError, OutcomeUnknownError
from keepstate.stores.admission import log_size_error
from keepstate.stores.clock_leaps import clock_error
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
_APPLIED, _CONFLICT, _UNTOLD, _COLLIDING, _MOVED, _TOO_MUCH, _LEAPS = 1, 2, 3, 4, 6, 7, 8


class Flush(NamedTuple):
    """Batches by space, in the order in which the server takes and answers them."""

    spaces: Sequence[str]
    marks: Sequence[Mark | None]
    groups: Sequence[Sequence[int]]
    batches: Sequence[Batch]

    @classmethod
    def of(cls, batches: Sequence[Batch], marks: HighWaterMarks) -> Flush:
        """Group batches by space, in the order of names, in which all clients lock them."""
        if len(batches) == 1:
            space = batches[0].space
            return cls((space,), (marks.of(space),), ((0,),), batches)
        groups: dict[str, list[int]] = {}
        for place, batch in enumerate(batches):
            groups.setdefault(batch.space, []).append(place)
        spaces = sorted(groups, key=str.encode)
        return cls(
            spaces, [marks.of(space) for space in spaces], [groups[space] for space in spaces], batches
        )

    def values(self, randomness: bytes, clock_ms: int, *, swept: int) -> list[bytes]:
        """Return the arguments of `apply_1`.

        Args:
            randomness: `NONCE_BYTES` for each space and each batch.
            clock_ms: The clock of this process, to confirm the server's.
            swept: Up to how many expired entries go with it, of each space.
        """
        nonces = [randomness[at : at + NONCE_BYTES] for at in range(0, len(randomness), NONCE_BYTES)]
        taken = [self.batches[place] for group in self.groups for place in group]
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
            int8s([_soonest(batch.writes) for batch in taken]),
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
        """Return the arguments of `put_1`, or None if this is not one put that stands alone."""
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
        """Return what became of one put, or None if `put_1` left it to `apply_1`."""
        verdict, actual, at_ms, revision, nonce = _PUT.unpack(answer)
        if not verdict:
            return None
        batch = self.batches[0]
        marks.record(batch.space, revision, nonce)
        if verdict == _APPLIED:
            return Applied(actual, at_ms)
        return Conflict(None if verdict == _MOVED else batch.checks[0].key, actual)

    def outcomes(
        self, fields: Sequence[bytes | None], marks: HighWaterMarks, url: str, clock_ms: int
    ) -> list[Outcome]:
        """Return what became of each batch, in the order in which they came, and remembers the marks."""
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
                for place, _ in zip(group, answers, strict=False):
                    outcomes[place] = copy(lost)  # each caller raises its own
                continue
            for place in group:
                verdict, actual, at_ms, conflict = next(answers)
                if verdict == _LEAPS:
                    outcomes[place] = leap(space, at_ms, clock_ms, url)
                    continue
                outcomes[place] = _outcome(self.batches[place], verdict, actual, at_ms, conflict)
            marks.record(space, revision, nonce)
        return [outcome for outcome in outcomes if outcome is not None]


def leap(space: str, at_ms: int, clock_ms: int, url: str) -> ClockError:
    """Return the error of a leap of the server's clock that this process does not confirm."""
    first, second = "the server", "the clock of this process"
    return clock_error(space, at_ms, clock_ms, first=first, second=second, url=url)


def _outcome(batch: Batch, verdict: int, actual: int, at_ms: int, conflict: bytes | None) -> Outcome:
    if verdict == _APPLIED:
        return Applied(actual, at_ms)
    if verdict == _CONFLICT:
        return Conflict(conflict, actual)
    if verdict == _UNTOLD:
        return OutcomeUnknownError(
            f"the log of space {batch.space!r} no longer reaches back to revision {batch.retry_of}, "
            "so whether the first attempt applied cannot be told; this retry was not applied",
            space=batch.space,
            token=batch.token,
        )
    if verdict == _TOO_MUCH:
        return log_size_error(batch.space)
    assert verdict == _COLLIDING
    return InvalidError(f"a batch on {batch.space!r} writes a key that one of its stamped keys becomes")


def _ordered(writes: Sequence[Write]) -> list[tuple[Write, int]]:
    """Return writes with their places in the batch, deletes after puts: so the log tells them."""
    indexed = [(write, index) for index, write in enumerate(writes)]
    if len(indexed) > 1 and any(type(write) is Delete for write in writes):
        indexed.sort(key=lambda item: type(item[0]) is Delete)
    return indexed


def _soonest(writes: Sequence[Write]) -> int | None:
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
