"""The very objects of a list: told the same way by both means, and never by what is only equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keepstate.adapters.langgraph.identities import Identities, by_address, by_id, identities

WAYS = pytest.mark.parametrize("told", [by_id, by_address])


@WAYS
def test_the_same_objects_are_told_alike(told: Callable[[list[Any]], Identities]) -> None:
    objects = ["text" * 9, 1.5, None, {}, object()]

    assert told(objects) == told([*objects])
    assert told([]) == told([])


@WAYS
@pytest.mark.parametrize("other", [[True], [1.0], [[]], ["1"], [1, 1], []])
def test_what_is_only_equal_is_told_apart(told: Callable[[list[Any]], Identities], other: list[Any]) -> None:
    assert told([1]) != told(other)


@WAYS
def test_an_equal_text_at_another_place_is_another(told: Callable[[list[Any]], Identities]) -> None:
    text = "".join(["a", "b" * 50])

    assert told([text]) != told(["".join(["a", "b" * 50])])


@WAYS
def test_the_order_counts(told: Callable[[list[Any]], Identities]) -> None:
    one, two = object(), object()

    assert told([one, two]) != told([two, one])


def test_lists_of_any_size_are_read_whole() -> None:
    objects: list[Any] = []
    for _ in range(200):
        objects.append(object())

        assert by_address(objects) == b"".join(id(one).to_bytes(8, "little") for one in objects)
    del objects[3:]

    assert by_address(objects) == b"".join(id(one).to_bytes(8, "little") for one in objects)


def test_cpython_is_asked_for_addresses() -> None:
    assert identities is by_address
