from __future__ import annotations

import enum
import functools
import re
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pydantic
import pytest

from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.codec import Codec, canonical, decode, encode
from keepstate.values.schema import Registry


class Name(str):
    pass


class Count(int):
    pass


class Share(float):
    pass


class Blob(bytes):
    pass


class Items(list[Any]):
    pass


class Fields(dict[str, Any]):
    pass


class Pair(tuple[int, int]):
    pass


class Colour(enum.Enum):
    RED = 1


class Level(enum.StrEnum):
    LOW = "low"


class Rank(enum.IntEnum):
    FIRST = 1


@dataclass
class Plain:
    a: int = 1


class Point(NamedTuple):
    x: int = 1


class Packed(msgspec.Struct):
    a: int = 1


class Model(pydantic.BaseModel):
    a: int = 1


class Named(OrderedDict[str, Any]):
    pass


class Tally(Counter[str]):
    pass


class Line(deque[int]):
    pass


class OddError(ValueError):
    pass


class Zone(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    def dst(self, dt: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, dt: datetime | None) -> str:
        return "odd"


REFUSED = [
    *(Name("x"), Count(1), Share(1.5), Blob(b"x"), Items(), Fields(), Pair((1, 2))),
    *(Colour.RED, Level.LOW, Rank.FIRST, Plain(), Point(), Packed(), Model()),
    *(Named(), defaultdict(lambda: 1), defaultdict(Plain), Tally(), Line(), array("b")),
    *(OddError("x"), SystemError(object()), re.compile(Name("x")), re.compile("x" * 4097)),
    *(
        re.compile("[\u0100-\uffff]", re.IGNORECASE),
        Fraction(1, 1 << 40_000),
        functools.partial(len),
        (i for i in "a"),
    ),
    *(bytearray(b"x"), memoryview(b"x"), slice(1), object(), int, len, lambda: 1, NotImplemented, re),
    *(datetime(2020, 1, 1, tzinfo=Zone()), Zone()),
    *(
        np.array([object()]),
        np.zeros(2, dtype=[("a", "i4")]),
        np.longdouble(1),
        np.str_("x"),
        np.bytes_(b"x"),
    ),
    np.ma.masked_array([1]),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_does_not_come_back_is_refused_with_its_path(value: Any) -> None:
    state = {"messages": [0, 1, {"meta": {"client": value}}], "n": 1}

    with pytest.raises(InvalidError, match=r"^messages\[2\]\.meta\.client") as caught:
        encode(state)

    assert str(caught.value.path).startswith("messages[2].meta.client")


@pytest.mark.parametrize("value", REFUSED, ids=lambda v: type(v).__name__)
def test_what_does_not_come_back_is_refused_as_a_key(value: Any) -> None:
    try:
        state = {"by": {value: 1}}
    except TypeError:
        state = {"by": {(): value}}

    with pytest.raises(InvalidError, match=r"^by(\{key|\[)"):
        encode(state)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), ""),
        ([object()], "[0]"),
        ({"a": {"b c": object()}}, "a['b c']"),
        ({"a": {7: object()}}, "a[7]"),
        ({"a": {object(): 7}}, "a{key object}"),
        ({"a": (1, object())}, "a[1]"),
        ({"a": {(1, object())}}, "a{tuple}[1]"),
        ({"a": {(1,): [object()]}}, "a[tuple][0]"),
        ([[0, {"\ud800": object()}]], "[0][1]['\\ud800']"),
    ],
)
def test_the_path_is_written_as_one_would_index(value: Any, path: str) -> None:
    with pytest.raises(InvalidError, match="not registered") as caught:
        encode(value)

    assert caught.value.path == path


def test_the_path_goes_through_objects() -> None:
    registry = Registry()
    registry.register(Plain, "plain")

    with pytest.raises(InvalidError, match=r"^state\.a\[0\]: builtins.object is not registered"):
        Codec(registry).encode({"state": Plain([object()])})  # type: ignore[arg-type]


def test_a_long_path_is_shown_shortened() -> None:
    value: Any = object()
    for _ in range(100):
        value = {"abcdefgh": value}

    with pytest.raises(InvalidError) as caught:
        encode(value)

    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", [list, dict])
def test_a_cycle_is_refused(kind: type) -> None:
    value: Any = kind()
    if kind is list:
        value.append([value])
    else:
        value["a"] = {"b": value}

    with pytest.raises(InvalidError, match="contains itself"):
        encode({"state": value})


def test_a_cycle_through_a_tuple_is_refused() -> None:
    inner: list[Any] = []
    inner.append((inner,))

    with pytest.raises(InvalidError, match=r"^\[0\]\[0\]: the value contains itself"):
        encode(inner)


def test_a_cycle_through_objects_is_refused() -> None:
    registry = Registry()
    registry.register(Plain, "plain")
    value = Plain()
    value.a = [value]  # type: ignore[assignment]

    with pytest.raises(InvalidError, match=r"^a\[0\]: the value contains itself"):
        Codec(registry).encode(value)


def nested(depth: int, wrap: Any) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = wrap(value)
    return value


def depth_of(value: Any) -> int:
    depth = 0
    while type(value) in (list, tuple, dict):
        value = next(iter(value.values() if isinstance(value, dict) else value))
        depth += 1
    return depth


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"a": v}], ids=["list", "dict"])
def test_lists_and_dicts_nest_as_deep_as_the_limit_says(wrap: Any) -> None:
    assert depth_of(decode(encode(nested(limits.PLAIN_DEPTH, wrap)))) == limits.PLAIN_DEPTH

    with pytest.raises(InvalidError, match="deep in one another"):
        encode(nested(limits.PLAIN_DEPTH + 1, wrap))


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: {1: v}], ids=["tuple", "map"])
def test_tagged_values_nest_as_deep_as_the_limit_says(wrap: Any) -> None:
    assert depth_of(decode(encode(nested(limits.TAG_DEPTH, wrap)))) == limits.TAG_DEPTH

    with pytest.raises(InvalidError, match="deep in one another"):
        encode(nested(limits.TAG_DEPTH + 1, wrap))


@pytest.mark.parametrize("last", ["plain", "\ud800"], ids=["fast way", "complete way"])
def test_the_deepest_value_of_all_comes_back(last: str) -> None:
    inside = nested_in(last, limits.INNER_DEPTH - 1)
    value = nested_in((nested_in((inside,), limits.PLAIN_DEPTH - 1),), limits.PLAIN_DEPTH)

    back = decode(encode(value))

    assert depth_of(back) == depth_of(value) == 2 * limits.PLAIN_DEPTH + limits.INNER_DEPTH


def nested_in(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def test_a_tuple_in_a_tuple_is_only_so_deep() -> None:
    value = ((nested_in(1, limits.INNER_DEPTH),),)

    with pytest.raises(InvalidError, match="inside another"):
        encode(value)


def test_a_value_of_absurd_depth_is_refused_not_a_crash() -> None:
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}):
        with pytest.raises(InvalidError):
            encode(nested(50_000, wrap))


def test_a_full_call_stack_is_an_error_of_ours() -> None:
    def sink(depth: int) -> bytes:
        try:
            return sink(depth + 1)
        except RecursionError:
            return encode({1: nested_in(1, 100)})

    with pytest.raises((InvalidError, RecursionError)):
        sink(0)


def test_canonical_refuses_alike() -> None:
    with pytest.raises(InvalidError, match=r"^a: "):
        canonical({"a": object()})
