"""A printed path says exactly which part of a state is meant, on the command line and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.engine.history.history import History
from keepstate.engine.history.paths import format_path, parse_path
from keepstate.errors import InvalidError, NotFoundError

PLACES = st.integers(-1_000, 1_000)
KEYS = st.one_of(
    st.text(), PLACES, st.booleans(), st.none(), st.binary(max_size=8), st.tuples(st.text(), PLACES)
)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("plan", ("plan",)),
        ("messages[3].meta", ("messages", 3, "meta")),
        ("messages[-1]", ("messages", -1)),
        ("['a.b']", ("a.b",)),
        ('["a.b"][0]', ("a.b", 0)),
        ("run/42-x.y", ("run/42-x", "y")),
        ("a['x]y'][('p', 1)].b", ("a", "x]y", ("p", 1), "b")),
        ("héé.ключ", ("héé", "ключ")),
    ],
)
def test_a_path_is_read_as_it_is_printed(text: str, steps: tuple[Any, ...]) -> None:
    assert parse_path(text) == steps


@given(st.text(), st.lists(KEYS, max_size=4))
def test_whatever_is_printed_is_read_back(first: str, more: list[Any]) -> None:
    steps = (first, *more)

    read = parse_path(format_path(steps))

    assert read == steps
    assert [type(step) for step in read] == [type(step) for step in steps]


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("", "⟨here⟩"),
        (".a", "⟨here⟩.a"),
        ("a..b", "a.⟨here⟩.b"),
        ("a.", "a.⟨here⟩"),
        ("a b", "a⟨here⟩ b"),
        ("a[", "a⟨here⟩["),
        ("a[x]", "a⟨here⟩[x]"),
        ("a[0]b", "a[0]⟨here⟩b"),
        ("a[{}]", "a⟨here⟩[{}]"),
    ],
)
def test_what_is_no_path_is_refused_at_its_place(text: str, here: str) -> None:
    with pytest.raises(InvalidError) as refused:
        parse_path(text)

    assert str(refused.value).startswith(f"{here} is not a path")


def test_a_star_is_any_step_only_where_that_is_asked_for() -> None:
    assert parse_path("messages[*].n", has_any=True) == ("messages", None, "n")
    assert parse_path("*.n", has_any=True) == (None, "n")
    assert parse_path("*", has_any=True) == ()
    assert parse_path("*") == ("*",)


def test_a_path_longer_than_the_limit_is_refused_unread() -> None:
    with pytest.raises(InvalidError, match="a path has 5,000 characters"):
        parse_path("a[" + "]" * 4_998)


async def test_a_commit_is_read_by_printed_paths_and_a_key_goes_first(everywhere: History) -> None:
    first = await everywhere.commit({"plan": {"steps": ["look"]}, "a.b": 1})
    await everywhere.commit({"plan": {"steps": ["look", "book"]}, "a.b": 1, "a": {"b": 2}})
    checkout = await everywhere.checkout()

    assert (await everywhere.blame("plan.steps[0]")).commit.id == first.id
    assert (await everywhere.blame("plan.steps[1]")).commit.id != first.id
    assert (await everywhere.blame("a.b")).commit.id == first.id
    assert (await everywhere.blame("['a'].b")).commit.id != first.id
    assert await checkout.fetch("plan.steps[-1]") == "book"
    assert await checkout.fetch("a.b") == 1
    for absent in ("plan.steps[2]", "a.c", "plan..steps", "nothing"):
        with pytest.raises(NotFoundError):
            await everywhere.blame(absent)
