"""The very objects of a list: told from all that are only equal."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from keepstate.adapters.langgraph.identities import ARE_TOLD, identities


def by_id(objects: list[Any]) -> bytes:
    """Return the same, one by one."""
    size = sys.maxsize.bit_length() // 8 + 1
    return b"".join(id(one).to_bytes(size, sys.byteorder) for one in objects)


def test_this_python_tells_them() -> None:
    assert ARE_TOLD


def test_the_same_objects_are_told_alike() -> None:
    objects = ["text" * 9, 1.5, None, {}, object()]

    assert identities(objects) == identities([*objects])
    assert identities([]) == b""


@pytest.mark.parametrize("other", [[True], [1.0], [[]], ["1"], [1, 1], []])
def test_what_is_only_equal_is_told_apart(other: list[Any]) -> None:
    assert identities([1]) != identities(other)


def test_an_equal_text_at_another_place_is_another() -> None:
    text, other = "".join(["a", "b" * 50]), "".join(["a", "b" * 50])

    assert text == other
    assert identities([text]) != identities([other])


def test_the_order_counts() -> None:
    one, two = object(), object()

    assert identities([one, two]) != identities([two, one])


def test_lists_of_any_size_are_read_whole() -> None:
    objects: list[Any] = []
    for _ in range(200):
        objects.append(object())

        assert identities(objects) == by_id(objects)
    del objects[3:]

    assert identities(objects) == by_id(objects)
