from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepstate.errors import CorruptError, InvalidError
from keepstate.values.key import (
    BY_KEY,
    OBJECTS,
    STAMP_SIZE,
    WITH_VALUES,
    Segment,
    Stamp,
    pack,
    stamp_suffix,
    stored_key,
    successor,
    unpack,
)

texts = st.text(st.characters(codec=None, exclude_categories=()))
numbers = st.integers() | st.integers(-(2**4000), 2**4000)
stamps = st.builds(Stamp, st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1))
segments = texts | numbers | st.binary() | st.uuids() | stamps
paths = st.lists(segments, max_size=5).map(tuple)

RANK: dict[type, int] = {bytes: 0, str: 1, int: 2, UUID: 3, Stamp: 4}


def order(path: tuple[Any, ...]) -> list[tuple[int, Any]]:
    return [(RANK[type(segment)], segment) for segment in path]


@given(paths)
@example(("a\0b", b"\0\xff", 0, -1, 255, 256, 2**64, -(2**64), 2**72 - 1, "\ud800"))
def test_a_path_comes_back_as_it_was(path: tuple[Segment | Stamp, ...]) -> None:
    back = unpack(pack(*path))

    assert back == path
    assert [type(segment) for segment in back] == [type(segment) for segment in path]


@given(paths, paths)
@example(("a",), ("a\0",))
@example(("a", 5), ("a\0", 1))
@example((-(2**64),), (-(2**64) + 1,))
def test_packed_paths_sort_as_their_segments_do(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (pack(*one) < pack(*other)) == (order(one) < order(other))
    assert (pack(*one) == pack(*other)) == (order(one) == order(other))


@given(numbers, numbers)
def test_numbers_sort_as_numbers(one: int, other: int) -> None:
    assert (pack(one) < pack(other)) == (one < other)


@given(paths, paths)
def test_a_path_starts_with_the_path_above_it(parent: tuple[Any, ...], child: tuple[Any, ...]) -> None:
    assert pack(*parent, *child) == pack(*parent) + pack(*child)


@given(paths, paths)
def test_only_paths_below_start_with_a_packed_path(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert pack(*other).startswith(pack(*one)) == (order(other)[: len(one)] == order(one))


@given(st.binary(max_size=60))
@example(b"\x02abc")
@example(b"\x02\xff\x00")
@example(b"\x29\xff\xff\x01")
@example(b"\x29\x00\x08" + bytes(8))
@example(b"\x21\x00")
@example(b"\x1f\xff")
@example(b"\x31\x00")
@example(b"\x30" + bytes(15))
def test_foreign_bytes_are_a_path_or_corrupt(data: bytes) -> None:
    try:
        path = unpack(data)
    except CorruptError:
        return

    assert pack(*path) == data


@pytest.mark.parametrize("segment", [True, 1.5, None, bytearray(b"x"), type("Name", (str,), {})("x"), ("x",)])
def test_what_does_not_come_back_is_no_segment(segment: Any) -> None:
    with pytest.raises(InvalidError, match="exactly a str, int, bytes or UUID"):
        pack("documents", segment)


def test_an_int_of_more_than_64_kib_is_no_segment() -> None:
    with pytest.raises(InvalidError, match="too large for a key segment"):
        pack(1 << (8 * 0x10000))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**16 - 1))
def test_a_stamp_has_one_size_and_comes_back(revision: int, index: int) -> None:
    suffix = stamp_suffix(revision, index)

    assert len(suffix) == STAMP_SIZE
    assert unpack(pack("log") + suffix) == ("log", Stamp(revision, index))


@pytest.mark.parametrize("section", [OBJECTS, BY_KEY, WITH_VALUES])
def test_a_stored_key_starts_with_its_section(section: int) -> None:
    assert stored_key(section, "documents", "x") == bytes([section]) + pack("documents", "x")


def test_a_section_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidError, match="section 3"):
        stored_key(3, "documents")


@given(st.binary(), st.binary())
def test_the_successor_is_above_all_that_start_with_the_prefix(prefix: bytes, rest: bytes) -> None:
    above = successor(prefix)

    assert above is None or above > prefix + rest
    assert (above is None) == (prefix == b"\xff" * len(prefix))


@given(st.binary(), st.binary())
def test_nothing_lies_between_a_prefix_and_its_successor(prefix: bytes, other: bytes) -> None:
    above = successor(prefix)

    if other >= prefix and (above is None or other < above):
        assert other.startswith(prefix)
