"""Objects go down to each version that may be written, and come back up as they were, inside any value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keepstate.values.codec import Codec
from keepstate.values.nodes import classes_in
from keepstate.values.schema import Registry
from tests.values.strategies import keys


@dataclass(frozen=True)
class Price:
    cents: int
    notes: Any = ()


def _to_pairs(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"price": divmod(fields["cents"], 100), "notes": fields["notes"]}


def _from_pairs(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"cents": fields["price"][0] * 100 + fields["price"][1], "notes": fields["notes"]}


def registry(written: int) -> Registry:
    """Return the class in its third version, written as another one."""
    made = Registry()
    made.register(Price, "price", version=3)
    made.upcast("price", 2)(_from_pairs)
    made.downcast("price", 3)(_to_pairs)
    made.upcast("price", 1)(lambda fields: {"price": fields["price"], "notes": fields["remarks"]})
    made.downcast("price", 2)(lambda fields: {"price": fields["price"], "remarks": fields["notes"]})
    made.register_write_version("price", written)
    return made


prices = st.recursive(
    st.builds(Price, st.integers(), keys),
    lambda inner: st.builds(
        Price, st.integers(), st.lists(inner | keys, max_size=3) | inner.map(lambda price: {1: price})
    ),
    max_leaves=4,
)
nested = st.one_of(
    prices,
    st.lists(prices | keys, max_size=3).map(tuple),
    st.dictionaries(st.builds(Price, st.integers(), keys) | keys, prices | keys, max_size=3),
    st.sets(st.builds(Price, st.integers(), keys), max_size=3),
)


@given(nested, st.permutations([1, 2, 3]))
def test_a_value_that_goes_down_and_up_ends_in_the_same_bytes(value: Any, path: list[int]) -> None:
    newest = Codec(registry(3))
    stored = start = newest.encode(value)
    for version in path:
        codec = Codec(registry(version))
        stored = codec.encode(codec.decode(stored))
        found = {name for name in classes_in(stored[1:]) if name.startswith("price@")}

        assert found <= {f"price@{version}"}

    assert newest.encode(newest.decode(stored)) == start
