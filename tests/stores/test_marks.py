"""Marks remember the highest revision seen, and forget one that was lost."""

from __future__ import annotations

from keepstate.errors import HistoryLostError
from keepstate.stores.marks import Mark, Marks

A, B = b"A" * 8, b"B" * 8


def test_nothing_is_known_of_a_space_that_was_not_seen() -> None:
    assert Marks().of("s") is None


def test_the_highest_revision_seen_is_kept() -> None:
    marks = Marks()
    for revision in (2, 5, 3):
        marks.saw("s", revision, bytes([revision]) * 8)

    assert marks.of("s") == Mark(5, b"\x05" * 8)


def test_a_space_without_revisions_leaves_no_mark() -> None:
    marks = Marks()
    marks.saw("s", 0, b"")

    assert marks.of("s") is None


def test_of_two_nonces_the_first_stays_so_that_the_loss_is_noticed() -> None:
    marks = Marks()
    marks.saw("s", 5, A)
    marks.saw("s", 5, B)

    assert marks.of("s") == Mark(5, A)


def test_a_lost_mark_is_forgotten_and_its_error_says_what_and_where() -> None:
    marks = Marks()
    marks.saw("s", 5, A)
    marks.saw("t", 7, B)

    error = marks.lost("s", Mark(5, A), url="redis://host")

    assert isinstance(error, HistoryLostError)
    assert (error.space, error.revision, error.url) == ("s", 5, "redis://host")
    assert marks.of("s") is None
    assert marks.of("t") == Mark(7, B)


def test_a_mark_seen_since_outlives_the_loss_of_an_older_one() -> None:
    marks = Marks()
    marks.saw("s", 5, A)
    lost = Mark(5, A)
    marks.saw("s", 6, B)

    marks.lost("s", lost, url="redis://host")

    assert marks.of("s") == Mark(6, B)
