"""Values as JSON and back, and the refusals that name a path."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from keepstate import StateError
from tests.typed.keys import Person, Profile, Visits
from tests.typed.test_declaring import key_of


class Mood(Enum):
    CALM = "calm"


@dataclass
class Report:
    title: str = ""
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    moods: list[Mood] = field(default_factory=list)
    by: dict[int, set[str]] = field(default_factory=dict)


class Model(BaseModel):
    size: int = Field(default=1, ge=1)
    name: str = Field(default="", alias="theName")


@dataclass
class HoldsModel:
    model: Model = field(default_factory=Model)


class Struct(msgspec.Struct):
    parts: tuple[int, ...] = ()


@attrs.define
class Plate:
    tags: list[str] = attrs.field(factory=list)


VALUES = [
    (int, -(2**70)),
    (float, 0.5),
    (str, "lone \ud800"),
    (bytes, b"\x00\xff"),
    (list[Any], [None, True, 1, 1.5, "x", [{}], {"a": []}]),
    (dict[str, float], {"a": 1.0}),
    (dict[int, str], {1: "a", -2: "b"}),
    (set[int], {3, 1, 2}),
    (tuple[int, ...], (1, 2)),
    (Report, Report("r", datetime(2026, 5, 1, 12, tzinfo=UTC), [Mood.CALM], {1: {"x"}})),
    (Model, Model(size=5, theName="n")),
    (HoldsModel, HoldsModel(Model(size=2))),
    (Struct, Struct((1, 2))),
    (Plate, Plate(["x"])),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda each: str(each)[:20])
def test_a_value_comes_back_equal_and_of_its_type(kind: Any, value: Any) -> None:
    key = key_of(kind)

    raw = key.encode(value)
    back = key.decode(raw)

    assert back == value
    assert type(back) is type(value)
    assert json.loads(json.dumps(raw)) == raw


def test_nan_is_kept() -> None:
    key = key_of(list[float])

    assert str(key.decode(key.encode([float("nan")]))) == "[nan]"


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        (Profile, Profile("x", ["a", 3]), "tags[1]"),  # type: ignore[list-item]
        (dict[str, Any], {"a": [1, (2, 3)]}, "['a'][1]"),
        (list[Any], [{"when": datetime(2026, 1, 1, tzinfo=UTC)}], "[0]['when']"),
        (list[Any], [1, 1j], "[1]"),
        (HoldsModel, HoldsModel(model=3), "model"),  # type: ignore[arg-type]
        (int, "three", ""),
    ],
    ids=str,
)
def test_what_would_not_come_back_is_refused_with_its_path(kind: Any, value: Any, path: str) -> None:
    with pytest.raises(StateError) as refused:
        key_of(kind).encode(value)

    assert (refused.value.state_key, refused.value.path) == ("k", path)


@pytest.mark.parametrize(
    ("kind", "raw", "told"),
    [
        (Profile, {"name": "x", "tags": "y"}, "tags"),
        (Model, {"size": 0}, "size"),
        (HoldsModel, {"model": {"size": 0}}, "model"),
        (list[Mood], ["calm", "wild"], "[1]"),
    ],
    ids=str,
)
def test_what_does_not_validate_is_refused_with_its_path(kind: Any, raw: Any, told: str) -> None:
    with pytest.raises(StateError) as refused:
        key_of(kind).decode(raw)

    assert told in f"{refused.value.path}{refused.value}"


def test_a_value_nested_too_deep_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(StateError):
        key_of(list[Any]).encode(deep)


def test_what_is_decoded_shares_nothing_with_what_it_was_decoded_from() -> None:
    raw = Person.encode(Profile("x", ["a"]))
    Person.decode(raw).tags.append("b")

    assert Person.decode(raw).tags == ["a"]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(plain)
def test_any_json_comes_back(value: Any) -> None:
    key = key_of(list[Any])

    assert key.decode(key.encode([value])) == [value]


@given(st.integers())
def test_any_int_comes_back(value: int) -> None:
    assert Visits.decode(Visits.encode(value)) == value
