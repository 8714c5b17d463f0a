"""Marks remember the highest revision seen, and forget one that was lost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

from keepstate._finish import finish
from keepstate.errors import ClockError, HistoryLostError
from keepstate.stores.marks import RECENT, HighWaterMarks, apply_except
from keepstate.stores.postgres.flush import Flush
from keepstate.stores.postgres.wire import byteas, int8s
from keepstate.stores.protocol import Applied, Batch, Mark, Outcome, Put

A, B = b"A" * 8, b"B" * 8


def test_nothing_is_known_of_a_space_that_was_not_seen() -> None:
    assert HighWaterMarks().of("s") is None


def test_the_highest_revision_seen_is_kept() -> None:
    marks = HighWaterMarks()
    for revision in (2, 5, 3):
        marks.record("s", revision, bytes([revision]) * 8)

    assert marks.of("s") == Mark(5, b"\x05" * 8)


def test_a_space_without_revisions_leaves_no_mark() -> None:
    marks = HighWaterMarks()
    marks.record("s", 0, b"")

    assert marks.of("s") is None


def test_of_two_nonces_the_first_stays_so_that_the_loss_is_noticed() -> None:
    marks = HighWaterMarks()
    marks.record("s", 5, A)
    marks.record("s", 5, B)

    assert marks.of("s") == Mark(5, A)


def test_a_lost_mark_is_forgotten_and_its_error_says_what_and_where() -> None:
    marks = HighWaterMarks()
    marks.record("s", 5, A)
    marks.record("t", 7, B)

    error = marks.record_loss("s", Mark(5, A), url="redis://host")

    assert isinstance(error, HistoryLostError)
    assert (error.space, error.revision, error.url) == ("s", 5, "redis://host")
    assert marks.of("s") is None
    assert marks.of("t") == Mark(7, B)


def test_a_mark_seen_since_outlives_the_loss_of_an_older_one() -> None:
    marks = HighWaterMarks()
    marks.record("s", 5, A)
    lost = Mark(5, A)
    marks.record("s", 6, B)

    marks.record_loss("s", lost, url="redis://host")

    assert marks.of("s") == Mark(6, B)


def test_marks_of_many_spaces_are_all_kept_and_raised_and_lost_as_the_first_ones_are() -> None:
    marks = HighWaterMarks()
    spaces = [f"session/{number}" for number in range(3 * RECENT)]
    for number, space in enumerate(spaces):
        marks.record(space, number + 1, number.to_bytes(8))

    assert all(marks.of(space) == Mark(n + 1, n.to_bytes(8)) for n, space in enumerate(spaces))
    marks.record(spaces[0], 1, B)
    assert marks.of(spaces[0]) == Mark(1, bytes(8))
    marks.record(spaces[0], 9, B)
    assert marks.of(spaces[0]) == Mark(9, B)
    marks.record_loss(spaces[0], Mark(9, B), url="redis://host")
    marks.record_loss(spaces[1], Mark(2, (1).to_bytes(8)), url="redis://host")
    assert marks.of(spaces[0]) is None
    assert marks.of(spaces[1]) is None


def test_a_mark_takes_as_little_room_as_is_told() -> None:
    count = 10 * RECENT
    tracemalloc.start()
    try:
        marks = HighWaterMarks()
        for number in range(count):
            marks.record(f"session/{number:08d}", number + 1, number.to_bytes(8, "little"))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert marks.of("session/00000000") is not None
    assert taken / count < 180


def test_a_loss_is_counted_once_however_many_calls_meet_it() -> None:
    marks = HighWaterMarks()
    marks.record("s", 5, A)

    for _ in range(2):
        marks.record_loss("s", Mark(5, A), url="redis://host")

    assert (marks.losses("s"), marks.losses("t")) == (1, 0)


def test_batches_that_build_on_what_was_read_before_a_loss_are_void() -> None:
    marks = HighWaterMarks()
    marks.record("s", 5, A)
    batches = [Batch("s", (), losses=0), Batch("s", ()), Batch("s", (), losses=1), Batch("t", (), losses=0)]
    before = marks.loss_errors(batches, url="redis://host")
    marks.record_loss("s", Mark(5, A), url="redis://host")

    void = marks.loss_errors(batches, url="redis://host")

    assert (before, list(void)) == ({}, [0])
    assert (void[0].space, void[0].url) == ("s", "redis://host")


def test_what_stands_beside_void_batches_is_applied_in_order() -> None:
    batches = [Batch(space, ()) for space in "abcd"]
    asked: list[Batch] = []

    async def apply(others: Sequence[Batch]) -> list[Outcome]:
        asked.extend(others)
        return [Applied(ord(batch.space), 0) for batch in others]

    outcomes = finish(apply_except({1: HistoryLostError("b"), 3: HistoryLostError("d")}, batches, apply))

    assert [batch.space for batch in asked] == ["a", "c"]
    assert [type(outcome) for outcome in outcomes] == [Applied, HistoryLostError] * 2
    assert [outcomes[0], outcomes[2]] == [Applied(97, 0), Applied(99, 0)]


def test_the_lost_space_of_a_flush_takes_no_answer_of_the_next_one() -> None:
    """The server answers each batch of a flush, in the order of the spaces."""
    marks = HighWaterMarks()
    marks.record("a", 5, A)
    flush = Flush.of([Batch(space, [Put(b"\x01k", b"1")]) for space in "aab"], marks)
    applied, lost = 1, -1
    fields = [
        int8s([0, 0, applied]), int8s([0, 0, 8]), int8s([0, 0, 1_000]), byteas([None, None, None]),
        int8s([lost, 8]), byteas([b"", B]),
    ]  # fmt: skip

    def no_leap(space: str, at_ms: int, clock_ms: int) -> ClockError:
        raise AssertionError(space)

    outcomes = flush.outcomes(fields, marks, "postgresql://host", no_leap, 1_000)

    assert [type(outcome) for outcome in outcomes] == [HistoryLostError, HistoryLostError, Applied]
    assert outcomes[2] == Applied(8, 1_000) and marks.of("b") == Mark(8, B)
