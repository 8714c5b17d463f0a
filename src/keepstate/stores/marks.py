"""Stores on servers, and the marks that a handle has seen: each space's highest revision and its nonce.

A server may lose acknowledged writes: a replica that missed them takes over, or a backup is restored. Its
revisions then count up again and soon pass the old ones, so a revision number alone proves nothing. The nonce
does: each revision has a random one, in its log record and next to the space's counter. A backend sends the
last seen mark with its call, and the server compares. If the server no longer has that revision, or has it
with another nonce, the revision was lost.

A caller that read something before a loss was noticed detects the loss by the number of losses: its numbers
and values belong to a history that is gone, and a batch built on them is rejected.

A mark below the log's floor cannot be compared any more and passes, because cutting the log and dropping the
space are not losses. The floor itself still has its nonce and is compared.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Final

from keepstate.errors import ClockError, HistoryLostError
from keepstate.stores.admission import check_changes
from keepstate.stores.base import StoreBase
from keepstate.stores.clock_leaps import clock_error
from keepstate.stores.protocol import NONCE_BYTES, Batch, Changes, Mark, Outcome

RECENT: Final = 8192
"""Number of marks that are cached unpacked. The others use less memory and take a little longer."""

_NONCE_BITS: Final = 8 * NONCE_BYTES
_NONCE_MASK: Final = (1 << _NONCE_BITS) - 1


class HighWaterMarks:
    """The highest mark seen of each space; thread-safe.

    No mark is ever evicted: an evicted mark would break the promise that a loss is noticed. The cache cannot
    know which space will not be used again, because the failover that matters is the next one. So the marks
    grow with the spaces that a handle uses, by 90 bytes and the name of each (140 for names of 16 letters;
    240 while recent). A handle that uses millions of spaces can be closed and reopened, which empties them.

    Take a space's mark before its call is sent, not after the reply, because replies overtake one another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: dict[str, Mark] = {}
        self._packed: dict[str, int] = {}
        """Revision and nonce as one number. For a space in both dicts, `_recent` is newer."""
        self._losses: dict[str, int] = {}

    def of(self, space: str) -> Mark | None:
        """Return the highest mark seen of a space, or None."""
        mark = self._recent.get(space)
        if mark is None and (packed := self._packed.get(space)) is not None:
            return Mark(packed >> _NONCE_BITS, (packed & _NONCE_MASK).to_bytes(NONCE_BYTES))
        return mark

    def record(self, space: str, revision: int, nonce: bytes) -> None:
        """Remember a mark that the server reported, if it is higher than the known one."""
        known = self.of(space)
        if revision == 0 or (known is not None and revision <= known.revision):
            return
        with self._lock:
            known = self.of(space)
            if known is None or revision > known.revision:
                self._recent[space] = Mark(revision, nonce)
                if len(self._recent) > RECENT:
                    self._pack()

    def _pack(self) -> None:
        for space, mark in self._recent.items():
            self._packed[space] = mark.revision << _NONCE_BITS | int.from_bytes(mark.nonce)
        self._recent = {}

    def losses(self, space: str) -> int:
        """Return the number of losses found in the history of the space."""
        return self._losses.get(space, 0)

    def loss_errors(self, batches: Sequence[Batch], *, url: str) -> dict[int, HistoryLostError]:
        """Return errors for batches that build on data read before a loss, by their indexes.

        Call it after the marks of the other batches were taken: a loss noticed later is detected by those.
        """
        if not self._losses:
            return {}
        return {
            index: self._error(batch.space, "after the data that this batch builds on was read", url=url)
            for index, batch in enumerate(batches)
            if batch.losses is not None and batch.losses != self._losses.get(batch.space, 0)
        }

    def record_loss(self, space: str, mark: Mark, *, url: str) -> HistoryLostError:
        """Forget a mark that the server no longer has, count the loss, and return the error to raise.

        The next call uses the server's present state.
        """
        with self._lock:
            if self.of(space) == mark:
                # Count the loss first: a reader without the lock that finds no mark must find the loss.
                self._losses[space] = self._losses.get(space, 0) + 1
                self._packed.pop(space, None)
                self._recent.pop(space, None)
        return self._error(
            space, f"and no longer has revision {mark.revision} as this handle saw it", url=url, mark=mark
        )

    def _error(self, space: str, what: str, *, url: str, mark: Mark | None = None) -> HistoryLostError:
        return HistoryLostError(
            f"Space {space!r} at {url} lost acknowledged writes (a failover, or a restored backup), {what}. "
            "Read again everything that you had read from it.",
            url=url,
            space=space,
            revision=mark.revision if mark is not None else None,
        )


async def apply_except(
    void: Mapping[int, HistoryLostError],
    batches: Sequence[Batch],
    apply: Callable[[Sequence[Batch]], Awaitable[list[Outcome]]],
) -> list[Outcome]:
    """Apply the batches that are not in `void`, and return all outcomes in order."""
    others = [batch for index, batch in enumerate(batches) if index not in void]
    outcomes = iter(await apply(others) if others else ())
    return [void[index] if index in void else next(outcomes) for index in range(len(batches))]


class MarkedStore(StoreBase):
    """A store on a server that may lose acknowledged writes, which it detects by the marks that it has seen.

    A subclass sets `_marks` to its `HighWaterMarks`.
    """

    retries: ClassVar[bool] = True
    waits: ClassVar[bool] = True
    _marks: HighWaterMarks

    def losses(self, space: str) -> int:
        """Return the number of times that this handle found the space to have lost history."""
        return self._marks.losses(space)

    def mark(self, space: str) -> Mark | None:
        """Return the highest mark that this handle has seen of the space."""
        return self._marks.of(space)

    async def changes_under(self, space: str, mark: Mark, after: int, *, limit: int = 1024) -> Changes:
        """Return the changes after a revision, if the space has this mark."""
        self._check_open()
        check_changes(space, after, limit)
        return await self._retry(self._changes, space, after, limit, mark)

    @abstractmethod
    async def _changes(self, space: str, after: int, limit: int, under: Mark | None = None) -> Changes:
        """Read whole revisions of the log; require the mark `under`, or the one that this handle has seen."""

    def _record_loss(self, space: str, mark: Mark) -> HistoryLostError:
        """Record that the space lost a mark, and return the error to raise."""
        self._revisions.pop(space, None)
        return self._marks.record_loss(space, mark, url=self.url)

    def _leap_error(self, space: str, at_ms: int, clock_ms: int) -> ClockError:
        """Return the error for a leap of the server's clock that this process's clock does not confirm."""
        first, second = "the server", "the clock of this process"
        return clock_error(space, at_ms, clock_ms, first=first, second=second, url=self.url)
