"""Values as JSON and back, and the refusals that name a path."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from enum import Enum, IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from keepstate import StateError
from tests.contracts.typed.keys import Visits
from tests.typed.keys import Person, Profile
from tests.typed.test_declaring import key_of

EAST = timezone(timedelta(hours=2))


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


class Level(IntEnum):
    LOW = 1


@dataclass
class Cached:
    size: int = 0
    cache: Any = field(default=None, compare=False)


@dataclass
class Heir(Cached):
    more: int = 0


@pydantic.dataclasses.dataclass
class Checked:
    size: int = Field(default=1, ge=1)
    tags: list[int] = field(default_factory=list)


def out_of_bounds() -> Checked:
    checked = Checked()
    checked.size = 0
    return checked


class Dated(BaseModel):
    at: datetime
    until: time | None = None


class Inner(BaseModel):
    sizes: list[Model] = []


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
    (Heir, Heir(1, [1], more=2)),
    (Checked, Checked(2, [1])),
    (list[datetime], [datetime(2026, 10, 25, 2, 30)]),
    (dict[str, Mood], {"a": Mood.CALM}),
    (list[Level], [Level.LOW]),
    (Inner, Inner(sizes=[Model(size=2)])),
    (list[Dated], [Dated(at=datetime(2026, 5, 1, tzinfo=UTC), until=time(1, tzinfo=EAST))]),
    (list[Dated], [Dated(at=datetime(2026, 5, 1, tzinfo=EAST)), Dated(at=datetime(2026, 5, 1))]),
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
        (dict[str, Any], {"a": [Level.LOW]}, "['a'][0]"),
        (list[int], [0, Level.LOW], "[1]"),
        (set[int], {Level.LOW}, ""),
        (dict[int, str], {Level.LOW: "x"}, ""),
        (set[int], frozenset({1}), ""),
        (bytes, bytearray(b"x"), ""),
        (list[float], [1.0, 1], "[1]"),
        (Report, Report(at=datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))), "at"),
        (list[datetime], [datetime(2026, 10, 25, 2, 30, fold=1)], "[0]"),
        (list[Dated], [Dated(at=datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))], "[0].at"),
        (Cached, Cached(1, {"k": (1,)}), "cache['k']"),
        (Cached, Heir(1), ""),
        (Checked, out_of_bounds(), "size"),
        (dict[str, Checked], {"a": out_of_bounds()}, "['a'].size"),
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
    ("kind", "raw", "path"),
    [
        (Profile, {"name": "x", "tags": "y"}, "tags"),
        (Model, {"size": 0}, "size"),
        (HoldsModel, {"model": {"size": 0}}, "model.size"),
        (dict[str, Model], {"a": {"size": 0}}, "['a'].size"),
        (Inner, {"sizes": [{"size": 1}, {"size": 0}]}, "sizes[1].size"),
        (list[Mood], ["calm", "wild"], "[1]"),
        (Checked, {"size": 0}, "size"),
        (list[Checked], [{}, {"size": 0}], "[1].size"),
        (dict[str, Checked | None], {"a": {"size": 0}}, "['a'].size"),
    ],
    ids=str,
)
def test_what_does_not_validate_is_refused_with_its_path(kind: Any, raw: Any, path: str) -> None:
    with pytest.raises(StateError) as refused:
        key_of(kind).decode(raw)

    assert (refused.value.state_key, refused.value.path) == ("k", path)


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


leaves: list[st.SearchStrategy[Any]] = [
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(-9, 9),
    st.text(max_size=2),
    st.binary(max_size=2),
    st.sampled_from([Level.LOW, Mood.CALM]),
    st.datetimes(),
]
mixed = st.recursive(
    st.one_of(leaves),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=2) | st.integers(0, 2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(mixed)
def test_what_nobody_declares_comes_back_of_its_types_or_is_refused(value: Any) -> None:
    key = key_of(list[Any])

    with suppress(StateError):
        assert repr(key.decode(key.encode([value]))) == repr([value])


@given(plain)
def test_any_json_comes_back(value: Any) -> None:
    key = key_of(list[Any])

    assert key.decode(key.encode([value])) == [value]


@given(st.integers())
def test_any_int_comes_back(value: int) -> None:
    assert Visits.decode(Visits.encode(value)) == value
