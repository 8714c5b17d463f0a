"""What is read in builtin form is written back to the same bytes, also after a way through JSON."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import CorruptError, InvalidError
from keepstate.values import types
from keepstate.values.builtin import Record
from keepstate.values.codec import PLAIN, Codec
from keepstate.values.json_exchange import from_json, to_json
from keepstate.values.schema import Registry
from tests.values.strategies import keys, texts, values


@dataclass(frozen=True)
class Point:
    x: Any
    tags: Any = ()


@dataclass(eq=False)
class Node:
    name: Any
    next: Any = None


class Color(Enum):
    RED = 1


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: Any = None
    b: Any = field(default=None)


CLASSES = Registry()
for number, kind in enumerate((Point, Node, Color, Model), 1):
    CLASSES.register(kind, kind.__name__.lower(), version=number)
CODEC = Codec(CLASSES)

fields = st.dictionaries(st.sampled_from(["@type", "@unset", "c", "é", "\ud800"]) | texts, values, max_size=3)
models = st.builds(
    lambda given, extra: Model.model_construct(**{**given, **extra}),
    st.dictionaries(st.sampled_from("ab"), values),
    fields.filter(lambda extra: all(name.isidentifier() and name[0] != "_" for name in extra)),
)
objects = st.recursive(
    st.one_of(
        values,
        st.builds(Point, keys, keys),
        st.just(Color.RED),
        models,
        st.sampled_from([np.arange(3), np.float32(1), np.array("é"), np.array([[True], [False]])]),
    ),
    lambda inner: st.one_of(
        st.builds(Node, inner, inner),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.builds(Point, keys) | keys, inner, max_size=3),
        st.lists(st.builds(Node, st.booleans()), max_size=3).map(set),
        st.lists(st.builds(Node, st.just(0)), max_size=3).map(lambda nodes: OrderedDict.fromkeys(nodes, 1)),
        st.sets(st.just(Color.RED) | st.builds(Point, keys), max_size=3).map(frozenset),
    ),
    max_leaves=8,
)


def through_json(form: Any) -> Any:
    """Return a form as another program gets it and sends it back."""
    return from_json(json.loads(json.dumps(to_json(form), allow_nan=False)))


@given(objects)
def test_what_is_read_in_builtin_form_is_written_to_the_same_bytes(value: Any) -> None:
    stored = CODEC.encode(value)
    form = CODEC.to_builtin(stored)

    assert Codec(Registry()).encode(form) == stored
    assert CODEC.encode([form, form]) == CODEC.encode([value, value])


@given(objects)
def test_json_is_an_exact_inverse(value: Any) -> None:
    stored = CODEC.encode(value)

    assert CODEC.encode(through_json(CODEC.to_builtin(stored))) == stored


NOT_EQUAL = [
    ({Node(1), Node(1)}, types.SET),
    (frozenset({Node(1), Node(1)}), types.FROZENSET),
    ({Node(1): 1, Node(1): 2}, types.MAP),
    (OrderedDict([(Node(1), 1), (Node(1), 2)]), types.ORDERED),
    (defaultdict(int, {Node(1): 1, Node(1): 2}), types.DEFAULT),
    (Counter({Node(1): 1, Node(1): 2}), types.COUNTER),
]


@pytest.mark.parametrize(("value", "tag"), NOT_EQUAL, ids=lambda part: type(part).__name__)
def test_objects_with_equal_fields_do_not_become_one(value: Any, tag: int) -> None:
    stored = CODEC.encode(value)
    form = CODEC.to_builtin(stored)

    assert (form["@type"], form["tag"]) == ("parts", tag)
    assert CODEC.encode(form) == CODEC.encode(through_json(form)) == stored


def test_an_upcaster_gets_all_of_several_objects_with_equal_fields() -> None:
    older, newer = Registry(), Registry()
    older.register(Node, "node")
    newer.register(Node, "node", version=2)

    @newer.upcast("node", 1)
    def rename(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "next": found["next"]}

    read = Codec(newer).decode(Codec(older).encode(Node(1, {Node(2), Node(2)})))

    assert [each.name for each in read.next] == [2, 2]


def test_fields_that_were_not_set_stay_so() -> None:
    stored = CODEC.encode(Model(a=1))
    form = CODEC.to_builtin(stored)

    assert form == {"@type": "model@4", "@unset": ["b"], "a": 1, "b": form["b"]}
    assert CODEC.decode(CODEC.encode(through_json(form))).model_fields_set == {"a"}


def test_arrays_and_scalars_of_numpy_stay_what_they_are() -> None:
    for value in (np.arange(3), np.array(1.5), np.float64(1.5), np.array(["é", "abc"]), np.array([[True]])):
        stored = CODEC.encode(value)

        assert CODEC.encode(CODEC.to_builtin(stored)) == stored
        assert CODEC.encode(through_json(CODEC.to_builtin(stored))) == stored


def test_many_members_whose_forms_have_one_hash_are_read() -> None:
    stored = CODEC.encode({Point(str(n), (n,)) for n in range(3)} | {Point((n,)) for n in range(5_000)})

    assert CODEC.encode(CODEC.to_builtin(stored)) == stored


@pytest.mark.parametrize("tag", [types.ZONE, types.DATETIME, types.PATH])
def test_what_this_machine_cannot_create_is_written_back(tag: int) -> None:
    zone = b"\x02Nowhere/Land"
    moment = types.leaf(datetime(2020, 1, 2))
    assert moment is not None
    body = {types.ZONE: zone, types.DATETIME: moment[1] + zone, types.PATH: b"WC:\\a"}[tag]
    stored = PLAIN + b"\xc7" + bytes((len(body), tag)) + body
    form = CODEC.to_builtin(stored)

    assert type(form) is Record
    assert CODEC.encode(form) == CODEC.encode(through_json(form)) == stored


@pytest.mark.parametrize(
    "number", [2**53 - 1, 2**53, -(2**53), 2**63, 2**64, -(2**64), 2**4000, -(2**4000)], ids=str
)
def test_integers_that_a_float_does_not_hold_are_text(number: int) -> None:
    form = to_json(number)

    assert isinstance(form, dict) == (abs(number) >= 2**53)
    assert through_json(number) == number


MOMENTS: list[Any] = [
    datetime(2020, 1, 2, tzinfo=UTC),
    datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=timezone(timedelta(hours=-1, microseconds=1), "\ud800")),
    datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    timezone(timedelta(hours=1), "noon"),
    timezone(timedelta(0), ""),
    Decimal("-sNaN12"),
    Decimal("1E+999999"),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=repr)
def test_moments_and_numbers_keep_all_of_their_parts(moment: Any) -> None:
    assert CODEC.encode(through_json(moment)) == CODEC.encode(moment)


WRONG: list[Any] = [
    {"@type": "nothing"},
    {"@type": 7},
    {"@type": ["tuple"]},
    {"@type": "tuple"},
    {"@type": "tuple", "items": "ab"},
    {"@type": "tuple", "items": [], "more": 1},
    {"@type": "set", "items": [1, True]},
    {"@type": "set", "items": [[1]]},
    {"@type": "map", "items": [[1, 2], [1.0, 3]]},
    {"@type": "map", "items": [[1]]},
    {"@type": "set", "items": [n * (2**61 - 1) for n in range(5_000)]},
    {"@type": "int", "value": "1" * 5_000},
    {"@type": "int", "value": 5},
    {"@type": "str", "escaped": "\\N{DIGIT ONE}"},
    {"@type": "bytes", "base64": "!"},
    {"@type": "float", "value": "1.5"},
    {"@type": "complex", "real": 1, "imaginary": "x"},
    {"@type": "zone", "value": "../../etc/passwd"},
    {"@type": "timezone", "value": "PST"},
    {"@type": "timezone", "value": "UTC99"},
    {"@type": "timedelta", "days": 10**10, "seconds": 0, "microseconds": 0},
    {"@type": "timedelta", "days": 1.5, "seconds": 0, "microseconds": 0},
    {"@type": "datetime", "value": "yesterday"},
    {"@type": "path", "kind": "Path", "value": "/"},
    {"@type": "decimal", "value": 1.5},
    {"@type": "fraction", "numerator": 2, "denominator": 4},
    {"@type": "pattern", "pattern": "(", "flags": 0},
    {"@type": "exception", "kind": "Popen", "args": [], "attributes": {}},
    {"@type": "defaultdict", "default_factory": "eval", "items": []},
    float("nan"),
    {1: 2},
    b"bytes",
]


@pytest.mark.parametrize("form", WRONG, ids=lambda form: str(form)[:40])
def test_json_that_is_not_a_value_is_refused(form: Any) -> None:
    with pytest.raises(InvalidError):
        from_json([form])


FORGED: list[dict[str, Any]] = [
    {"@type": "point@0", "x": 1},
    {"@type": "point@x", "x": 1},
    {"@type": "@1"},
    {"@type": "point@1", "@unset": 5},
    {"@type": "point@1", "@unset": [5]},
    {"@type": "pickle", "class": "os.system", "data": b"x"},
    {"@type": "unreadable here", "tag": types.DECIMAL, "data": b"x"},
    {"@type": "unreadable here", "tag": types.PATH, "data": b"?"},
    {"@type": "unreadable here", "tag": types.ZONE, "data": b"\x09"},
    {"@type": "parts", "tag": types.TUPLE, "parts": []},
    {"@type": "parts", "tag": types.MAP, "parts": [1]},
    {"@type": "parts", "tag": types.DEFAULT, "parts": ["eval"]},
    {"@type": "parts", "tag": types.OBJECT, "parts": ["point", 1]},
    {"@type": "parts", "tag": types.OBJECT, "parts": ["point", 1, {1: 2}]},
    {"@type": "parts", "tag": [], "parts": []},
    {"@type": "numpy", "dtype": "<f4", "shape": [2], "data": b""},
    {"@type": "numpy", "dtype": "O", "shape": [1], "data": b"12345678"},
    {"@type": "numpy", "dtype": "|b1", "shape": [1], "data": b"\2"},
    {"@type": "numpy", "dtype": "<U1", "shape": [1], "data": b"\xff\xff\xff\xff"},
    {"@type": "numpy", "dtype": "<f4", "shape": [-1], "data": b""},
    {"@type": "numpy"},
]


@pytest.mark.parametrize("form", FORGED, ids=str)
def test_a_form_that_no_value_has_is_not_written(form: dict[str, Any]) -> None:
    for codec in (CODEC, Codec(Registry())):
        with pytest.raises(InvalidError):
            codec.encode(Record(form))
        with pytest.raises(InvalidError):
            codec.encode([{1: Record(form)}])


@given(objects, st.data())
def test_an_edited_form_is_written_readable_or_refused(value: Any, data: st.DataObject) -> None:
    form = to_json(CODEC.to_builtin(CODEC.encode(value)))
    text = json.dumps(form)
    at = data.draw(st.integers(0, len(text)))
    edited = text[:at] + data.draw(st.sampled_from(['"', "0", "}", "[", "@", "e"])) + text[at + 1 :]
    try:
        stored = CODEC.encode(from_json(json.loads(edited)))
    except (InvalidError, ValueError, RecursionError):
        return

    try:
        assert CODEC.encode(CODEC.to_builtin(stored)) == stored
    except CorruptError:
        raise AssertionError("a damaged value was written") from None


def test_json_too_deep_is_an_error_of_ours() -> None:
    form: Any = 1
    for _ in range(100_000):
        form = [form]

    with pytest.raises(InvalidError, match="too deep"):
        from_json(form)
    while form != 1:  # freed step by step, because the interpreter frees it recursively
        form = form[0]
