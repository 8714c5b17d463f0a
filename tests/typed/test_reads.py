"""What is remembered of reads: by each context for itself, and at a cost that does not grow with it."""

from __future__ import annotations

from contextvars import copy_context
from math import log2
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.typed.read_set import ReadSet, _known  # pyright: ignore[reportPrivateUsage]

owners, keys = st.sampled_from("abc"), st.sampled_from("xyz")
acts = st.one_of(
    st.tuples(st.just("read"), owners, keys, st.integers(1, 9)),
    st.tuples(st.just("forget"), owners, keys | st.none(), st.none()),
)


@given(st.lists(acts, max_size=40))
def test_what_was_read_last_and_not_forgotten_since_is_expected(way: list[tuple[str, str, Any, Any]]) -> None:
    reads, model = ReadSet(), dict[tuple[str, str], int]()

    def walk() -> None:
        for act, owner, key, version in way:
            if act == "read":
                reads.record_read(owner, key, version)
                model[owner, key] = version
            else:
                reads.forget(owner, key)
                for place in [each for each in model if each[0] == owner and key in (None, each[1])]:
                    del model[place]
            assert {
                place: found
                for place in [(owner, key) for owner in "abc" for key in "xyz"]
                if (found := reads.expected(*place)) is not None
            } == model

    copy_context().run(walk)


def test_a_context_that_begins_in_another_knows_what_that_knew_and_tells_it_nothing() -> None:
    reads = ReadSet()

    def main() -> None:
        reads.record_read("a", "x", 1)
        copy_context().run(reads.record_read, "a", "x", 2)
        assert reads.expected("a", "x") == 1

    copy_context().run(main)


def test_however_much_was_read_few_layers_hold_it() -> None:
    reads = ReadSet()

    def main() -> int:
        for number in range(5000):
            reads.record_read(f"owner {number}", "x", number + 1)
        assert all(reads.expected(f"owner {number}", "x") == number + 1 for number in range(5000))
        (notes,) = [notes for who, notes in _known.get().items() if who() is reads]
        return len(notes._layers)  # pyright: ignore[reportPrivateUsage]

    assert 1 < copy_context().run(main) <= log2(5000)


@pytest.mark.parametrize("is_in_tasks", [True, False])
def test_of_what_was_read_for_ever_the_last_is_remembered_and_no_more_than_so_much(is_in_tasks: bool) -> None:
    reads = ReadSet(most=100)

    def read(number: int) -> None:
        for owner in ("always", f"owner {number}"):
            copy_context().run(reads.record_read, owner, "x", number) if is_in_tasks else reads.record_read(
                owner, "x", number
            )

    def main() -> int:
        for number in range(1, 2001):
            read(number)
        assert all(reads.expected(f"owner {number}", "x") == number for number in range(1902, 2001))
        assert reads.expected("always", "x") == 2000
        assert reads.expected("owner 1", "x") is None
        notes = [notes for who, notes in _known.get().items() if who() is reads]
        assert len(notes) == (not is_in_tasks)
        return len(reads._shared) + sum(len(each.all_items()) for each in notes)

    assert 100 <= copy_context().run(main) <= 100 + 400
