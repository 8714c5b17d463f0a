"""Which parameters count as equal: one name for all that do, the same for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepstate import InvalidError, parameters_hash, register
from keepstate.managers.records import encode_canonical

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=8)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@register("tests.Place")
@dataclass(frozen=True)
class Place:
    name: str
    tags: dict[str, int]


@register("tests.Unit")
class Unit(Enum):
    METRIC = 1


def in_order(value: Any) -> Any:
    """Return an equal value whose dicts were filled in the order of their keys."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return type(value)(map(in_order, value))
    return value


def turned_around(value: Any) -> Any:
    """Return an equal value whose dicts were filled the other way round."""
    if isinstance(value, dict):
        return {key: turned_around(value[key]) for key in reversed(list(value))}
    if isinstance(value, list | tuple):
        return type(value)(map(turned_around, value))
    return value


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_the_order_in_which_dicts_were_filled_does_not_count(parameters: dict[str, Any]) -> None:
    assert parameters_hash("t", parameters) == parameters_hash("t", turned_around(parameters))


@given(VALUES, VALUES)
@example(
    {"a": float("nan"), "b": 0}, {"a": float("nan"), "b": 0}
)  # stored alike, though no NaN equals another
def test_values_that_are_stored_unlike_are_unlike(one: Any, other: Any) -> None:
    if repr(in_order(one)) == repr(in_order(other)) or one == other:
        return

    assert encode_canonical(one) != encode_canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0, False),
        ("1", 1),
        ([1], (1,)),
        ({1}, frozenset({1})),
        ({}, []),
        (None, ""),
        (0.0, -0.0),
        (b"a", "a"),
        ({"a": None}, {}),
        (Place("a", {}), {"name": "a", "tags": {}}),
        (Unit.METRIC, 1),
        (("object", {"@type": "x"}), {"@type": "x"}),
    ],
)
def test_types_count(one: Any, other: Any) -> None:
    assert parameters_hash("t", {"p": one}) != parameters_hash("t", {"p": other})


def test_equal_objects_and_sets_are_equal_however_they_came_about() -> None:
    one = {"place": Place("a", {"x": 1, "y": 2}), "of": {1, 2, 3}, "also": {Unit.METRIC}}
    other = {"also": {Unit.METRIC}, "of": {3, 2, 1}, "place": Place("a", {"y": 2, "x": 1})}

    assert parameters_hash("t", one) == parameters_hash("t", other)
    assert parameters_hash("t", {"n": float("nan")}) == parameters_hash("t", {"n": -float("nan")})


def test_the_tool_counts() -> None:
    assert parameters_hash("a", {}) != parameters_hash("b", {})


@pytest.mark.parametrize(
    ("tool", "parameters", "name"),
    [
        ("search_web", {}, "c18fc60e62074457f549a432ae8c00e0abe1684e5fc308c77fc0f7225bba3f6f"),
        (
            "search_web",
            {"query": "AI news", "limit": 10},
            "54b771da4b635333a700458e549a31f41d8093434480426c27abfec6f0c81361",
        ),
        (
            "naïve 🦜",
            {"at": datetime(2001, 1, 1), "of": (1, [2.5, {b"x"}]), "more": ...},
            "5b7f43fc8e927859f3865cde7f82b4f91bb440605aecfc318f397cfcceb5cbfe",
        ),
    ],
)
def test_names_stay_the_same_for_ever(tool: str, parameters: Mapping[str, Any], name: str) -> None:
    assert parameters_hash(tool, parameters) == name


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(InvalidError, match="client"):
        parameters_hash("t", {"client": object()})
    with pytest.raises(InvalidError, match="Pass a dict"):
        parameters_hash("t", [1])  # type: ignore[arg-type]
