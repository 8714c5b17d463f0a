from __future__ import annotations

import json
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given

from keepstate.errors import InvalidError
from keepstate.values import types
from keepstate.values.builtin import FORM_READERS, Record, json_form
from keepstate.values.codec import PLAIN, Codec, encode, to_builtin
from keepstate.values.schema import Registry
from tests.values.sameness import same
from tests.values.strategies import values


@dataclass(frozen=True)
class Profile:
    name: str
    tags: Any = ()


@pytest.fixture
def stored() -> bytes:
    registry = Registry()
    registry.register(Profile, "profile", version=2)
    boss = Profile("Bo")
    return Codec(registry).encode({"who": Profile("Ann", [boss]), "all": {boss}, "by": {boss: 1}})


@given(values)
def test_a_value_without_objects_is_its_own_builtin_form(value: Any) -> None:
    assert same(to_builtin(encode(value)), value)


def test_objects_become_dicts_that_name_their_type(stored: bytes) -> None:
    boss = {"@type": "profile@2", "name": "Bo", "tags": ()}

    form = to_builtin(stored)

    assert form["who"] == {"@type": "profile@2", "name": "Ann", "tags": [boss]}
    assert list(form["all"]) == [boss]
    assert list(form["by"].items()) == [(boss, 1)]


def test_an_array_is_shown_without_numpy() -> None:
    form = to_builtin(encode([np.arange(2, dtype="<u2"), np.float32(1)]))

    assert form == [
        {"@type": "numpy", "dtype": "<u2", "shape": [2], "data": b"\0\0\1\0"},
        {"@type": "numpy scalar", "dtype": "<f4", "shape": [], "data": b"\0\0\x80\x3f"},
    ]


def test_a_zone_that_this_machine_does_not_know_is_shown_as_it_is_stored() -> None:
    zone = b"\x02Nowhere/Land"
    stored = PLAIN + b"\xc7" + bytes((len(zone), 12)) + zone

    assert to_builtin(stored) == {"@type": "unreadable here", "tag": 12, "data": zone}


@given(values)
def test_every_value_has_a_json_form(value: Any) -> None:
    form = json_form(value)

    assert same(json.loads(json.dumps(form, allow_nan=False, ensure_ascii=False).encode()), form)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"a": [1, "x", None, True, 1.5]}, {"a": [1, "x", None, True, 1.5]}),
        ({"@type": "x"}, {"@type": "map", "items": [["@type", "x"]]}),
        ({1: 2}, {"@type": "map", "items": [[1, 2]]}),
        ((1, (2,)), {"@type": "tuple", "items": [1, {"@type": "tuple", "items": [2]}]}),
        ({3, 1, 2}, {"@type": "set", "items": [1, 2, 3]}),
        (frozenset("a"), {"@type": "frozenset", "items": ["a"]}),
        (b"\xff", {"@type": "bytes", "base64": "/w=="}),
        (math.nan, {"@type": "float", "value": "nan"}),
        (-math.inf, {"@type": "float", "value": "-inf"}),
        (2**64, {"@type": "int", "value": "0x10000000000000000"}),
        ("\ud800", {"@type": "str", "escaped": "\\ud800"}),
        (..., {"@type": "ellipsis"}),
        (1 + 2j, {"@type": "complex", "real": 1.0, "imaginary": 2.0}),
        (Decimal("1.10"), {"@type": "decimal", "value": "1.10"}),
        (UUID(int=1), {"@type": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
        (date(2020, 1, 2), {"@type": "date", "value": "2020-01-02"}),
        (time(1, 2, fold=1), {"@type": "time", "value": "01:02:00", "fold": 1}),
        (datetime(2020, 1, 2, tzinfo=UTC), {"@type": "datetime", "value": "2020-01-02T00:00:00+00:00"}),
        (
            datetime(2020, 1, 2, tzinfo=ZoneInfo("Asia/Tokyo")),
            {"@type": "datetime", "value": "2020-01-02T00:00:00+09:00", "zone": "Asia/Tokyo"},
        ),
        (timedelta(1, 2, 3), {"@type": "timedelta", "days": 1, "seconds": 2, "microseconds": 3}),
        (timezone(timedelta(hours=1)), {"@type": "timezone", "value": "UTC+01:00"}),
        (ZoneInfo("Asia/Tokyo"), {"@type": "zone", "value": "Asia/Tokyo"}),
        (PurePosixPath("/a"), {"@type": "path", "kind": "PurePosixPath", "value": "/a"}),
        (deque([1], 2), {"@type": "deque", "maxlen": 2, "items": [1]}),
        (Counter("a"), {"@type": "counter", "items": [["a", 1]]}),
        (OrderedDict(b=1), {"@type": "ordered dict", "items": [["b", 1]]}),
        (defaultdict(int), {"@type": "defaultdict", "default_factory": "int", "items": []}),
        (range(3), {"@type": "range", "start": 0, "stop": 3, "step": 1}),
        (Fraction(1, 3), {"@type": "fraction", "numerator": 1, "denominator": 3}),
        (re.compile("a"), {"@type": "pattern", "pattern": "a", "flags": 32}),
        (KeyError("x"), {"@type": "exception", "kind": "KeyError", "args": ["x"], "attributes": {}}),
        (
            Record({"@type": "profile@2", "a": (1,)}),
            {"@type": "profile@2", "a": {"@type": "tuple", "items": [1]}},
        ),
    ],
    ids=lambda part: type(part).__name__,
)
def test_json_says_what_json_does_not_have(value: Any, form: Any) -> None:
    assert same(json_form(value), form)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Profile("x"), "the value"),
        ([Profile("x")], "[0]"),
        ({"a": [{"b": Profile("x")}]}, "a[0].b"),
        ({"a": ({1: Profile("x")},)}, "a[0].1"),
        ({"a": [{Profile("x"): 1}]}, "a[0]."),
    ],
    ids=str,
)
def test_what_has_no_form_in_json_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(
        InvalidError, match=rf"^{re.escape(path)}.*: .*Profile has no form in JSON; store its"
    ):
        json_form(value)


def test_a_value_too_deep_for_json_is_an_error_of_ours() -> None:
    value: Any = 1
    for _ in range(100_000):
        value = [value]

    with pytest.raises(InvalidError, match="too deep"):
        json_form(value)


def test_no_reader_of_builtin_form_needs_a_class() -> None:
    assert set(FORM_READERS) == set(types.LEAF_READERS)
