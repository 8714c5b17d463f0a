from __future__ import annotations

import math
import re
import struct
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given

from keepstate.values.codec import COMPRESSED, PLAIN, Codec, decode, encode
from keepstate.values.encode_ext import Lowering
from keepstate.values.schema import CLASSES, Registry
from tests.values.sameness import same
from tests.values.strategies import values

pytestmark = pytest.mark.searched

BERLIN = ZoneInfo("Europe/Berlin")


def noted() -> ValueError:
    error = ValueError("odd")
    error.add_note("seen")
    error.place = {"line": 3}  # type: ignore[attr-defined]
    return error


class LimitError(Exception):
    """Gives its base other arguments than it takes."""

    def __init__(self, limit: int, used: int) -> None:
        super().__init__(f"{used} of {limit}")
        self.limit = limit


@given(values)
def test_every_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(values)
def test_the_fast_way_and_the_complete_way_give_the_same_bytes(value: Any) -> None:
    assert encode(value)[:1] == COMPRESSED or encode(value)[1:] == Lowering(CLASSES).write(value)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, -(10**5000)),
        *(0.0, -0.0, 5e-324, math.inf, -math.inf, math.nan),
        *("", "\0", "ł", "\ud800", "\udfff\ud800", "\U0001f600", "x" * 70_000),
        *(b"", b"\xc4\x01x", bytes(range(256))),
        *((), (1,), ((), ((),)), [], [[]], {}, set(), frozenset()),
        {1: "int", "1": "str", 1.5: "float", None: "none", b"1": "bytes", (1, "x"): "tuple", False: "bool"},
        {"\ud800": 1, "a": {2: {3: [4]}}},
        {frozenset({1}): {frozenset({(1, 2)})}},
        ...,
        complex(math.nan, -0.0),
        datetime.min,
        datetime.max,
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        datetime(2024, 10, 27, 2, 30, fold=0, tzinfo=BERLIN),
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1, seconds=1, microseconds=1), "odd")),
        time(1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-5))),
        time.max,
        date.min,
        date.max,
        timedelta.min,
        timedelta.max,
        timedelta(microseconds=-1),
        UTC,
        timezone(timedelta(0), "GMT"),
        BERLIN,
        *(Decimal("1.10"), Decimal("-0E+3"), Decimal("sNaN123"), Decimal("Infinity"), Decimal("1E-999999")),
        UUID(int=2**128 - 1),
        *(
            deque([1, [2]], 2),
            deque([deque()]),
            OrderedDict({2: 1, 1: OrderedDict()}),
            Counter({(1,): -1, "b": 2.5}),
        ),
        *(
            defaultdict(list, {1: [2]}),
            defaultdict(None),
            defaultdict(Counter),
            range(9, -(2**70), -3),
            range(5, 5),
        ),
        *(
            Fraction(-(2**70), 3),
            Fraction(0),
            re.compile("(?P<n>a)|b", re.IGNORECASE | re.MULTILINE | re.ASCII),
            re.compile(b"\xff"),
        ),
        *(
            re.compile("[\u4e00-\u9fff]+", re.IGNORECASE),
            re.compile("[\U0001f600-\U0001f64f\U0001f300-\U0001f5ff]"),
        ),
        *(ValueError(), KeyError("x", (1,)), FileNotFoundError(2, "gone", "f"), StopIteration([1])),
        *(
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"),
            ImportError("no", name="m"),
            noted(),
            SystemExit(3),
        ),
        ExceptionGroup("two", [ValueError(1), OSError(2, "gone")]),
        *(Path("/a/b"), Path(), PurePosixPath("a//b/."), PureWindowsPath("C:\\x"), PurePath("\udc80")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_corners_come_back(value: Any) -> None:
    assert same(decode(encode(value)), value)
    assert same(decode(encode([{"a": (value,)}])), [{"a": (value,)}])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<f4").reshape(2, 3),
        np.arange(6, dtype=">i8").reshape(3, 2).T,
        np.array([], dtype="u1").reshape(0, 3),
        np.array(5.5),
        np.array([True, False]),
        np.array(["a", "łx"]),
        np.array([b"ab", b""]),
        np.array(["2020-01-01", "NaT"], dtype="datetime64[ns]"),
        np.array([1, 2], dtype="timedelta64[25us]"),
        np.array([1 + 2j], dtype="c8"),
        np.array([math.nan, -0.0], dtype="f2"),
    ],
    ids=lambda array: f"{array.dtype}",
)
def test_arrays_come_back(array: Any) -> None:
    back = decode(encode({"embedding": array}))["embedding"]

    assert same(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize(
    "scalar",
    [
        np.float64(0.1),
        np.float32(2),
        np.int64(-1),
        np.uint8(255),
        np.bool_(True),
        np.datetime64("2020-01-01"),
    ],
    ids=lambda scalar: type(scalar).__name__,
)
def test_numpy_scalars_come_back(scalar: Any) -> None:
    assert same(decode(encode([scalar])), [scalar])


def test_every_nan_becomes_the_one_of_python() -> None:
    others = [-math.nan, math.inf - math.inf, struct.unpack(">d", b"\x7f\xf0\0\0\0\0\0\1")[0]]

    assert {encode([other]) for other in others} == {encode([math.nan])}


def test_the_factory_of_a_defaultdict_and_the_length_of_a_deque_still_act() -> None:
    groups, last = decode(encode((defaultdict(list), deque([1, 2], 2))))

    groups["a"].append(1)
    last.append(3)

    assert groups == {"a": [1]} and last == deque([2, 3])


def test_an_exception_of_a_registered_class_comes_back_without_its_constructor() -> None:
    registry = Registry()
    registry.register(LimitError, "limit error")
    error = LimitError(3, 5)
    error.add_note("seen")

    back = Codec(registry).decode(Codec(registry).encode([error]))[0]

    assert type(back) is LimitError and back.args == ("5 of 3",)
    assert (back.limit, back.__notes__) == (3, ["seen"])


def test_a_pattern_that_was_warned_of_when_it_was_written_is_read() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pattern = re.compile("[[a]")
    stored = encode(pattern)
    re.purge()

    assert decode(stored) == pattern


def test_a_value_under_two_paths_comes_back_as_two() -> None:
    shared = [1]

    one, other = decode(encode([shared, shared]))
    one.append(2)

    assert other == [1]


def test_what_is_decoded_is_a_new_copy_each_time() -> None:
    data = encode({"items": [1]})

    decode(data)["items"].append(2)

    assert decode(data) == {"items": [1]}


def test_a_value_over_4_kib_is_compressed_if_that_helps() -> None:
    assert encode("a" * 4_000)[:1] == PLAIN
    assert encode("a" * 5_000)[:1] == COMPRESSED
    assert len(encode("a" * 5_000)) < 100
    assert decode(encode("a" * 5_000)) == "a" * 5_000


def test_a_value_that_does_not_compress_is_stored_plain() -> None:
    noise = np.random.default_rng(1).bytes(10_000)

    assert encode(noise)[:1] == PLAIN
    assert decode(encode(noise)) == noise
