"""A path on the command line says exactly which part of a state is meant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.cli.paths import path_of
from keepstate.engine.history.paths import shown
from keepstate.errors import InvalidError

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
    assert path_of(text) == steps


@given(st.text(), st.lists(KEYS, max_size=4))
def test_whatever_is_printed_is_read_back(first: str, more: list[Any]) -> None:
    steps = (first, *more)

    read = path_of(shown(steps))

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
        path_of(text)

    assert str(refused.value).startswith(f"{here} is no path")


def test_a_star_is_any_step_only_where_that_is_asked_for() -> None:
    assert path_of("messages[*].n", has_any=True) == ("messages", None, "n")
    assert path_of("*.n", has_any=True) == (None, "n")
    assert path_of("*", has_any=True) == ()
    assert path_of("*") == ("*",)
