"""Did each client hear what the store had answered, in an order that can be?

The store's answers have one order already, that of its revisions. So strict serializability is a question of
linear time: an answer is of a revision no lower than every answer that somebody had before it was asked for,
what is said to have applied has applied once and there, and what is said not to have applied never does.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.errors import OutcomeUnknownError
from keepstate.stores.protocol import Applied, Batch, Outcome
from keepstate.testing.simulation.oracle import Oracle


class Witness:
    """Compares what the clients of a world were told with what happened.

    Args:
        oracle: Knows what happened.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._told: dict[str, int] = {}
        self._refused: list[tuple[Batch, Outcome]] = []
        self._kept: list[Sequence[Batch]] = []

    def highest_told(self, space: str) -> int:
        """Returns the highest revision of a space that any client has been told of."""
        return self._told.get(space, 0)

    def tell(self, space: str, revision: int, at_least: int) -> None:
        """Takes note of an answer; `at_least` is what had been told when it was asked for."""
        assert revision >= at_least, f"{space!r}: an answer of revision {revision} after one of {at_least}"
        self._told[space] = max(revision, self._told.get(space, 0))

    def tell_outcomes(
        self, batches: Sequence[Batch], outcomes: Sequence[Outcome], at_least: Sequence[int]
    ) -> None:
        """Takes note of what a caller of `apply` was answered."""
        self._kept.append(batches)  # what was applied is known by identity
        for batch, outcome, least in zip(batches, outcomes, at_least, strict=True):
            if isinstance(outcome, OutcomeUnknownError):
                assert _can_be_settled(outcome), f"{outcome} came without a token to settle it by"
            elif type(outcome) is not Applied:
                self._refused.append((batch, outcome))
            elif batch.writes:
                applied = self._oracle.applied_at(batch)
                assert applied == outcome.revision, f"{batch} is at {applied}, and was told to be {outcome}"
                self.tell(batch.space, outcome.revision, least if batch.token else least + 1)
            else:
                self.tell(batch.space, outcome.revision, 0 if batch.token else least)

    def verify(self) -> None:
        """Raises `AssertionError` if something applied of which its caller was told that it did not."""
        for batch, outcome in self._refused:
            if (applied := self._oracle.applied_at(batch)) is not None:
                raise AssertionError(f"{batch} applied at {applied}, and its caller was told {outcome}")


def _can_be_settled(error: OutcomeUnknownError) -> bool:
    return error.token is not None
