"""The order of a large dict's keys is stored as it always was."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.values.codec import Codec

CODEC = Codec()
VECTORS: list[tuple[dict[Any, Any], str, dict[str, str]]] = [
    (
        {"b": "x" * 5_000, "a": (1,), 7: None},
        "c72e304410355f164d3f2a2f08ccbf75d39df6a4726f6055952703f1d633b6627bda9eb0d0c002f0801c1698b9caed0502",
        {
            # The root of the sorted items, with 7 first, and the list of keys.
            "10355f164d3f2a2f08ccbf75d39df6a4726f6055": (
                "919607c0a161d5209101a162c71730004cfdfdb772427d9556c534f3727f9502446888678b27"
            ),
            "f1d633b6627bda9eb0d0c002f0801c1698b9caed": "9193a162a16107",
        },
    ),
    (
        {f"k{n}": n for n in reversed(range(700))},
        (
            "c7313044d91352a6352c4fcde30d82a48f0466e3f024407cf227bc05e04c796301e2fb50638542901adf80812c1f40"
            "1ebe1abb05"
        ),
        {},
    ),
]


@pytest.mark.parametrize(("value", "encoding", "objects"), VECTORS)
def test_a_dict_in_another_order_is_stored_as_before(
    value: dict[Any, Any], encoding: str, objects: dict[str, str]
) -> None:
    made = CODEC.to_merkle(value)

    assert made.encoding.hex() == encoding
    assert {name: made.objects[bytes.fromhex(name)].hex() for name in objects} == objects
    assert list(CODEC.assemble(bytes.fromhex(encoding), made.objects)) == list(value)
