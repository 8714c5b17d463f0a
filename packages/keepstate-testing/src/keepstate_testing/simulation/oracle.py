"""The oracle of right answers: a plain model of each space, moved by the same deliveries.

Deliveries reach the store one after the other, so its answers have one order: that of the calls. The oracle
compares every answer at the moment it is given. `Witness` later compares the answers that the clients got.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from keepstate.errors import OutcomeUnknownError
from keepstate.stores.memory import MemoryHeap
from keepstate.stores.protocol import Applied, Batch, Change, Changes, Entry, Outcome, Page, Reading
from keepstate.testing.model_space import Answer, ModelSpace
from keepstate_testing.simulation.clocks import WallClock


class Oracle:
    """Judges a store by plain models of its spaces.

    Args:
        heap: The spaces of the store.
        wall: The store's clock.
    """

    def __init__(self, heap: MemoryHeap, wall: WallClock) -> None:
        self._heap, self._wall = heap, wall
        self._models: dict[str, ModelSpace] = {}
        self._sorted: dict[str, tuple[int, list[bytes]]] = {}
        self._applications: dict[tuple[int, int], tuple[Batch, Applied]] = {}

    def model(self, space: str) -> ModelSpace:
        """Return a space's model."""
        model = self._models.get(space)
        if model is None:
            model = self._models[space] = ModelSpace()
        return model

    def latest_ms(self) -> int:
        """Return the latest time that any space has come to."""
        return max((model.now_ms for model in self._models.values()), default=0)

    def _asked(self, space: str) -> ModelSpace:
        """Return the model of a space at the present time of the clock."""
        model = self.model(space)
        now_ms = self._wall.now_ms()
        if now_ms > model.now_ms or model.revision == 0:  # what there is nothing of remembers no time
            model.now_ms = now_ms
        return model

    def judge(self, batches: Sequence[Batch], outcomes: Sequence[Outcome]) -> None:
        """Raise `AssertionError` unless the store answered a delivery as the model does."""
        for batch, outcome in zip(batches, outcomes, strict=True):
            model = self._asked(batch.space)
            before = model.revision
            answer = model.apply(batch)
            if model.revision != before:
                self._count(batch, model)
            assert _plain(outcome) == answer, f"{batch} was answered {outcome}, and should be {answer}"
            if type(outcome) is Applied and outcome.revision > before:
                assert outcome.now_ms == model.now_ms, f"{outcome} at {model.now_ms}"

    def _count(self, batch: Batch, model: ModelSpace) -> None:
        now = Applied(model.revision, model.now_ms)
        if (known := self.applied_at(batch)) is not None:
            raise AssertionError(f"{batch} was applied at {known} and again at {now}")
        self._applications[_identity(batch)] = batch, now

    def applied_at(self, batch: Batch) -> Applied | None:
        """Return where this very batch was applied, under whichever token."""
        known = self._applications.get(_identity(batch))
        return None if known is None else known[1]

    def follow(self, space: str) -> None:
        """Apply the store's own removals to the model; any other change is a fault."""
        state, model = self._heap.state_of(space), self.model(space)
        if model.now_ms < state.clock_ms <= self._wall.now_ms():  # a sweep may advance time alone
            model.now_ms = state.clock_ms
        if state.revision != model.revision:
            self._asked(space)
            changes = state.changes(space, model.revision, 1024)
            model.sweep_like(changes.items, changes.upto)
            assert state.revision == model.revision, f"{space!r}: {state.revision} is not {model.revision}"

    def drop(self, space: str) -> None:
        """Follow a drop."""
        if self.model(space).revision > self.model(space).floor:
            self._asked(space).drop()

    # ---- what was read

    def read(self, space: str, keys: Sequence[bytes], at_ms: int | None, reading: Reading) -> None:
        """Raise `AssertionError` unless the reading equals the model."""
        model = self._asked(space)
        expected = Reading([model.live(key, at_ms) for key in keys], model.revision, model.now_ms)
        assert reading == expected, f"{space!r} read {reading}, and should have {expected}"

    def scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, at_ms: int | None, page: Page
    ) -> None:
        """Raise `AssertionError` unless the upward page equals the model."""
        model = self._asked(space)
        told, present = (page.revision, page.now_ms), (model.revision, model.now_ms)
        assert told == present, f"{space!r}: a page of {told} at {present}"
        keys = self._keys(space, model)
        live: list[Entry] = []
        start = bisect_left(keys, prefix) if after is None else bisect_right(keys, max(after, prefix))
        for place in range(start, len(keys)):
            if not keys[place].startswith(prefix):
                break
            if (entry := model.live(keys[place], at_ms)) is not None:
                live.append(entry)
        got = list(page.entries)
        assert got == live[: len(got)] and len(got) <= limit, f"{space!r}: {got} is not a page of {live}"
        assert page.next is not None or len(got) == len(live), f"{space!r}: a scan ended before {live}"

    def _keys(self, space: str, model: ModelSpace) -> list[bytes]:
        revision, keys = self._sorted.get(space, (-1, []))
        if revision != model.revision:
            keys = sorted(model.entries)
            self._sorted[space] = model.revision, keys
        return keys

    def changes(self, space: str, after: int, changes: Changes) -> None:
        """Raise `AssertionError` unless the answer is whole revisions of the model's log, none left out."""
        log = self.model(space).log
        expected = log[
            bisect_right(log, after, key=_revision) : bisect_right(log, changes.upto, key=_revision)
        ]
        told = sorted(changes.items, key=lambda change: (change.revision, change.key))
        expected.sort(key=lambda change: (change.revision, change.key))
        assert told == expected, f"{space!r} told {told} after {after}, and should tell {expected}"
        assert changes.upto > after or after == self.model(space).revision, (
            f"{space!r}: no news after {after}"
        )


def _identity(batch: Batch) -> tuple[int, int]:
    """Name a batch among those that are kept: its copies with a token have the same writes and check."""
    return id(batch.writes), id(batch.checks)


def _revision(change: Change) -> int:
    return change.revision


def _plain(outcome: Outcome) -> Answer | Outcome:
    if type(outcome) is Applied:
        return outcome.revision
    return None if isinstance(outcome, OutcomeUnknownError) else outcome
