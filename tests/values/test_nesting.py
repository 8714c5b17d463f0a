from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.values.codec import canonical
from keepstate.values.guards import nesting, nests_deeper
from tests.values.strategies import values


def depth(value: Any) -> int:
    """Say how deep the encoding must be: a tag's parts stand in an array."""
    if isinstance(value, BaseException):
        return 2 + max(map(depth, value.args), default=0)
    if isinstance(value, deque | range | Fraction | re.Pattern):
        return 1 + max(map(depth, value if isinstance(value, deque) else ()), default=0)
    if isinstance(value, dict):
        return 1 + max((depth(part) for pair in value.items() for part in pair), default=0)
    if isinstance(value, list | tuple | set | frozenset):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(values)
def test_an_encoding_nests_as_deep_as_its_value(value: Any) -> None:
    assert nesting(canonical(value)) == depth(value)


@given(st.binary(max_size=300), st.integers(0, 20))
def test_deeper_means_a_greater_depth(data: bytes, depth: int) -> None:
    assert nests_deeper(data, depth) == (nesting(data) > depth)


@given(st.binary(max_size=300))
def test_any_bytes_have_a_depth(data: bytes) -> None:
    assert 0 <= nesting(data) <= len(data)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_every_length_is_stepped_over(size: int) -> None:
    assert nesting(canonical([b"\x91" * size, [1]])) == 2
    assert nesting(canonical(["x" * size, [1]])) == 2
    assert nesting(canonical([10 ** (2 * size), [1]])) == 2
    assert nesting(canonical([[0] * size, [[1]]])) == 3
    assert nesting(canonical([{str(number): 0 for number in range(size)}, [[1]]])) == 3


def test_depth_is_found_without_recursion() -> None:
    assert nesting(b"\x91" * 1_000_000) == 1_000_000
