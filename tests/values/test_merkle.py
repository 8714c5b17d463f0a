"""The Merkle form of a value: it comes back, its root is the value's alone, and damage has another name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.errors import CorruptError, InvalidError
from keepstate.values.codec import Codec, canonical
from keepstate.values.merkle import TREE_BYTES, check_object, gather, reach
from keepstate.values.nodes import ref_of
from tests.values.fetching import Objects
from tests.values.strategies import values

pytestmark = pytest.mark.searched

CODEC = Codec()
long = st.sampled_from([600, 3_000, 9_000]).map("long ".__mul__)
large: st.SearchStrategy[Any] = st.recursive(
    st.one_of(values, long),
    lambda inner: st.one_of(
        st.lists(inner, max_size=40),
        st.dictionaries(st.text(max_size=8), inner, max_size=30),
        st.dictionaries(st.integers() | st.tuples(st.integers()), inner, max_size=30),
    ),
    max_leaves=60,
)


def come_back(value: object) -> Any:
    planted, objects = CODEC.to_merkle(value), Objects()
    objects.update(planted.objects)
    gathered = objects.serve(gather([planted.encoding]))
    assert gathered.keys() == planted.objects.keys()  # nothing is made that is not part of the value
    return CODEC.assemble(planted.encoding, gathered)


@given(large)
def test_a_value_comes_back_from_its_objects(value: Any) -> None:
    back = come_back(value)

    assert type(back) is type(value)
    assert canonical(back) == canonical(value)


def test_a_value_is_a_tree_exactly_when_its_items_are_too_many_bytes() -> None:
    fits = ["x" * 1_021] * 4  # three bytes of head each
    assert sum(len(canonical(item)) for item in fits) == TREE_BYTES

    assert CODEC.to_merkle(fits).encoding == canonical(fits)
    assert ref_of(CODEC.to_merkle([*fits, 0]).encoding) is not None
    assert ref_of(CODEC.to_merkle({"key": "x" * TREE_BYTES}).encoding) is not None


def test_only_the_large_part_of_a_small_state_is_a_tree() -> None:
    planted = CODEC.to_merkle({"messages": ["x" * 100] * 100, "n": 1, (1, 2): None})

    assert len(planted.encoding) < 100
    assert come_back({"messages": ["x" * 100] * 100, "n": 1, (1, 2): None}) == {
        "messages": ["x" * 100] * 100,
        "n": 1,
        (1, 2): None,
    }


def test_text_and_tuples_are_never_taken_apart() -> None:
    for value in ("x" * 9_000, ("x" * 9_000,), b"x" * 9_000):
        assert CODEC.to_merkle(value).encoding == canonical(value)


@pytest.mark.parametrize("value", [[["x" * 5_000]] * 3, {"a": {"b": {"c": ["x"] * 5_000}}}])
def test_equal_parts_are_one_object(value: object) -> None:
    planted = CODEC.to_merkle([value, value])

    assert len(planted.objects) <= len(CODEC.to_merkle(value).objects) + 1
    assert come_back([value, value]) == [value, value]


def test_what_cannot_be_stored_names_its_path() -> None:
    with pytest.raises(InvalidError, match=r"messages\[3\]\.client"):
        CODEC.to_merkle({"messages": ["x" * 5_000, 1, 2, {"client": object()}]})


def test_another_object_under_a_name_is_found() -> None:
    planted = CODEC.to_merkle({"messages": [f"{n} " * 50 for n in range(500)]})
    for name, data in planted.objects.items():
        objects = Objects(planted.objects)
        objects[name] = data[:-1] + bytes((data[-1] ^ 1,))

        with pytest.raises(CorruptError, match=name.hex()):
            objects.serve(reach([planted.encoding], set(), check_object))


def test_a_missing_object_is_named() -> None:
    planted = CODEC.to_merkle({"messages": [f"{n} " * 50 for n in range(500)]})
    for name in planted.objects:
        objects = {other: data for other, data in planted.objects.items() if other != name}

        with pytest.raises(CorruptError, match=name.hex()):
            CODEC.assemble(planted.encoding, objects)
