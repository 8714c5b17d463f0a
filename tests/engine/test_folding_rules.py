"""Folds beside a plain list of events: whatever was appended, kept, truncated, they come to the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from keepstate import Event, Fold, PrunedError, sync

FOLDS = st.sampled_from(("total", "longest"))


def total(state: dict[str, int], event: Event) -> dict[str, int]:
    state[str(event.data)] = state.get(str(event.data), 0) + 1
    return state


def longest(state: int, event: Event) -> int:
    return max(state + 1, int(event.data))


GIVEN: dict[str, tuple[Any, Any]] = {"total": (total, {}), "longest": (longest, 0)}


class Folding(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.ks = sync.open("memory://")
        self.stream = sync.EventStream(self.ks.space("a"), "numbers")
        self.events: dict[str, tuple[int, int]] = {}
        self.gone = 0
        self.kept: set[str] = set()

    def teardown(self) -> None:
        self.ks.close()

    @property
    def present(self) -> list[tuple[int, int]]:
        return list(self.events.values())

    @rule(ids=st.lists(st.integers(0, 60), min_size=1, max_size=6, unique=True), n=st.integers(0, 9))
    def append(self, ids: list[int], n: int) -> None:
        names = [f"e{id}" for id in ids]
        gone = [name for name in names if name in list(self.events)[: self.gone]]
        if gone:
            return  # a stream forgets the ids of what was let go
        self.stream.append(*(n for _ in names), id=names)
        for event in self.stream.read(limit=1_000):
            assert event.id is not None and event.number is not None
            self.events.setdefault(event.id, (event.number, event.data))

    @rule(name=FOLDS, every=st.sampled_from((1, 3, 100, None)))
    def fold(self, name: str, every: int | None) -> None:
        reducer, initial = GIVEN[name]
        entry = self.stream.fold_entry(Fold(reducer, initial, every))
        if every is not None and entry.events_read >= every:
            self.kept.add(name)

        assert entry.state == self.plain(name, len(self.events))
        assert entry.number == (self.present[-1][0] if self.events else None)

    @rule(name=FOLDS, part=st.floats(0, 1))
    def fold_as_it_was(self, name: str, part: float) -> None:
        if not self.events:
            return
        count = round(part * (len(self.events) - 1))
        reducer, initial = GIVEN[name]
        then = self.stream.at(self.present[count][0])
        if count + 1 >= self.gone:
            assert then.fold(reducer, initial) == self.plain(name, count + 1)
        else:
            with pytest.raises(PrunedError):
                then.fold(reducer, initial)

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        count = round(part * len(self.events))
        if count <= self.gone:
            return
        folds = [Fold(reducer, initial) for reducer, initial in GIVEN.values()]
        assert self.stream.truncate(self.present[count - 1][0], *folds) == count - self.gone
        self.gone = count

    @rule()
    def read(self) -> None:
        assert [event.data for event in self.stream.read(limit=1_000)] == [
            n for _, n in self.present[self.gone :]
        ]

    def plain(self, name: str, count: int) -> Any:
        numbers = [n for _, n in self.present[:count]]
        if name == "total":
            return {str(n): numbers.count(n) for n in dict.fromkeys(numbers)}
        state = 0
        for n in numbers:
            state = max(state + 1, n)
        return state


TestFolding = Folding.TestCase
TestFolding.settings = settings(max_examples=40, stateful_step_count=20)


@pytest.mark.slow
def test_a_state_of_100_000_events_is_told_by_reading_as_many_as_came_since() -> None:
    with sync.open("memory://") as ks:
        stream = ks.space("a").events.stream("numbers")
        for _ in range(112):
            stream.append(*range(900))
        fold = Fold(longest, 0, cache_every=100)
        stream.fold_entry(fold)
        read: list[int] = []
        for _ in range(20):
            stream.append(*range(13))
            read.append(stream.fold_entry(fold).events_read)

    assert max(read) < 100 + 13
    assert read[0] == 13
