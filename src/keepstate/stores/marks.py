"""The marks that one handle of a server store has seen: the highest revision of each space, with its nonce.

A server may forget what it acknowledged: a replica that missed it takes over, a backup is put back. Its
revisions then count up again and soon pass the old ones, so that a number alone proves nothing. The nonce
does: each revision has a random one, in its log record and beside the space's counter. A backend hands the
mark seen last to the server with its call, and the server compares; what it no longer has, or has
differently, was lost.

Whoever read something before a loss was noticed learns of it by the number of losses: what it has read are
numbers and values of a history that is gone, and a batch built on them is void.

A mark below the log's floor cannot be compared any more and passes: the log was cut, or the space dropped, in
order. The floor itself keeps its nonce and is compared.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from keepstate.errors import HistoryLostError
from keepstate.stores.protocol import NONCE_BYTES, Batch, Mark, Outcome

RECENT: Final = 8192
"""How many marks are kept ready for use; the others take less room, and a little longer."""

_NONCE_BITS: Final = 8 * NONCE_BYTES
_NONCE_MASK: Final = (1 << _NONCE_BITS) - 1


class HighWaterMarks:
    """The highest mark seen of each space; for any number of threads.

    None is forgotten of itself: with it would go the promise that a loss is noticed, and nothing tells which
    space is never met again, for the failover that matters is the next one. So they grow with the spaces that
    a handle meets, by 90 bytes and the name of each (140 for names of 16 letters; 240 while recent). A handle
    that meets millions can be closed and opened again, which begins anew.

    Take a space's mark before its call is sent, not when the answer has come: answers overtake one another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: dict[str, Mark] = {}
        self._packed: dict[str, int] = {}
        """Revision and nonce as one number. What stands in both, `_recent` knows better."""
        self._losses: dict[str, int] = {}

    def of(self, space: str) -> Mark | None:
        """Return the highest mark seen there, or None if nothing was."""
        mark = self._recent.get(space)
        if mark is None and (packed := self._packed.get(space)) is not None:
            return Mark(packed >> _NONCE_BITS, (packed & _NONCE_MASK).to_bytes(NONCE_BYTES))
        return mark

    def saw(self, space: str, revision: int, nonce: bytes) -> None:
        """Remember a mark that the server told, if it is higher than the one known."""
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
        """Return how often history of the space was found lost."""
        return self._losses.get(space, 0)

    def void(self, batches: Sequence[Batch], *, url: str) -> dict[int, HistoryLostError]:
        """Return errors for the batches, by their places, that build on what was read before a loss.

        To be asked after the marks were taken with which the others go: a loss noticed later meets those.
        """
        if not self._losses:
            return {}
        return {
            place: self._gone(batch.space, "after what this batch builds on was read", url=url)
            for place, batch in enumerate(batches)
            if batch.losses is not None and batch.losses != self._losses.get(batch.space, 0)
        }

    def lost(self, space: str, mark: Mark, *, url: str) -> HistoryLostError:
        """Forget a mark that the server no longer has, and return the error to raise.

        The next call works on what the server has now.
        """
        with self._lock:
            if self.of(space) == mark:
                # The loss is counted first: who finds no mark, without the lock, must find the loss.
                self._losses[space] = self._losses.get(space, 0) + 1
                self._packed.pop(space, None)
                self._recent.pop(space, None)
        return self._gone(
            space, f"and no longer has revision {mark.revision} as this handle saw it", url=url, mark=mark
        )

    def _gone(self, space: str, what: str, *, url: str, mark: Mark | None = None) -> HistoryLostError:
        return HistoryLostError(
            f"space {space!r} at {url} lost acknowledged writes (a failover, or a restored backup), {what}; "
            "read again what was read there",
            url=url,
            space=space,
            revision=mark.revision if mark is not None else None,
        )


async def applied_beside(
    void: Mapping[int, HistoryLostError],
    batches: Sequence[Batch],
    apply: Callable[[Sequence[Batch]], Awaitable[list[Outcome]]],
) -> list[Outcome]:
    """Return what became of batches of which some are void: only the others are applied."""
    others = [batch for place, batch in enumerate(batches) if place not in void]
    outcomes = iter(await apply(others) if others else ())
    return [void[place] if place in void else next(outcomes) for place in range(len(batches))]
