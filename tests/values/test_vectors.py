"""Vectors: packed, compared with and without numpy, and kept in a matrix."""

from __future__ import annotations

import sys
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.values.vectors import (
    DISTANCES,
    Distance,
    VectorMatrix,
    nearness,
    pack_vector,
    unpack_vector,
)

NUMBERS = st.floats(-100, 100, width=32).map(
    lambda number: number if abs(number) > 1e-6 else 0.0  # the square of less is 0 in 4 bytes
)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=8)


@pytest.fixture(params=["numpy", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setitem(sys.modules, "numpy", None)
    return str(request.param)


@pytest.mark.parametrize("wrong", [[], [[1.0]], ["a"], [nan], [inf], [1e300], 1.0, None, "ab", [None]])
def test_only_finite_numbers_are_a_vector(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        pack_vector(wrong)


def test_a_vector_of_numpy_is_packed_alike() -> None:
    assert pack_vector(np.array([1.5, -2.0])) == pack_vector([1.5, -2]) == b"\0\0\xc0?\0\0\0\xc0"
    assert unpack_vector(pack_vector([1.5, -2])) == [1.5, -2.0]


@given(rows=ROWS, query=st.tuples(NUMBERS, NUMBERS, NUMBERS), distance=st.sampled_from(DISTANCES))
def test_numpy_and_plain_comparison_agree(
    rows: list[tuple[float, ...]], query: tuple[float, ...], distance: Distance
) -> None:
    packed, asked = [pack_vector(row) for row in rows], pack_vector(query)
    with_numpy = nearness(packed, asked, distance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        plain = nearness(packed, asked, distance)

    assert plain == pytest.approx(with_numpy, rel=1e-3, abs=1e-2)


@pytest.mark.usefixtures("way")
def test_a_matrix_follows_puts_and_removals() -> None:
    matrix = VectorMatrix(8)
    for number in range(200):
        matrix.put(f"{number:03d}", pack_vector([1.0, float(number)]))
    for number in range(0, 200, 2):
        matrix.discard(f"{number:03d}")
    matrix.discard("none")
    matrix.put("001", pack_vector([0.0, 1.0]))

    found = sorted(matrix.nearest(pack_vector([0.0, 2.0]), 2), key=lambda row: -row[1])
    assert [key for key, _ in found] == ["001", "199"] and len(matrix) == 100
    assert [key for key, _ in matrix.nearest(pack_vector([0.0, 2.0]), 1, {"003", "005", "000"})] == ["005"]


@pytest.mark.usefixtures("way")
def test_all_of_equal_nearness_are_returned() -> None:
    matrix = VectorMatrix(4)
    for key in "cab":
        matrix.put(key, pack_vector([1.0]))

    assert sorted(key for key, _ in matrix.nearest(pack_vector([3.0]), 1)) == ["a", "b", "c"]
