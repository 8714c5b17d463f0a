from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keepstate.values.codec import FORMAT, canonical, decode, encode
from keepstate.values.refs import DIGEST_SIZE, digest
from tests.values.strategies import keys, values


@given(st.lists(keys, max_size=8), st.randoms())
def test_equal_sets_have_the_same_bytes_in_whatever_order_they_were_filled(
    members: list[Any], shuffle: Any
) -> None:
    shuffled = members.copy()
    shuffle.shuffle(shuffled)
    unique = dict.fromkeys(members)
    refilled: set[Any] = set()
    for member in sorted(unique, key=shuffled.index):
        refilled.add(member)

    assert canonical(set(unique)) == canonical(refilled)


@given(values)
def test_what_comes_back_has_the_same_bytes(value: Any) -> None:
    data = canonical(value)

    assert canonical(decode(encode(value))) == data


def test_a_set_has_the_same_bytes_in_every_process() -> None:
    code = "from keepstate.values.codec import canonical; print(canonical({*'abcdefgh', 1, (2, 'x')}).hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(outputs) == 1


def test_the_order_in_which_a_dict_was_filled_counts() -> None:
    assert canonical({"a": 1, "b": 2}) != canonical({"b": 2, "a": 1})


def test_values_that_python_calls_equal_differ_by_type() -> None:
    alike = [1, 1.0, True, [1], (1,), {1}, frozenset({1}), "1", b"1", 1 + 0j, 0.0, -0.0]

    assert len({canonical(value) for value in alike}) == len(alike)


def test_there_is_one_nan() -> None:
    assert canonical(-math.nan) == canonical(math.nan)
    assert canonical({"a": (complex(-math.nan, 1),)}) == canonical({"a": (complex(math.nan, 1),)})


def test_canonical_bytes_are_never_compressed() -> None:
    assert len(canonical("a" * 100_000)) > 100_000


def test_a_digest_has_160_bits() -> None:
    assert DIGEST_SIZE == len(digest("node", FORMAT, b"")) == 20


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 65_535), st.binary(max_size=5)), unique=True
    )
)
def test_kind_format_and_content_each_give_another_name(parts: list[tuple[str, int, bytes]]) -> None:
    assert len({digest(*part) for part in parts}) == len(parts)


def test_a_kind_does_not_run_into_the_content() -> None:
    assert digest("node", 1, b"xy") != digest("node", 1 << 8, b"xy"[1:])
    assert digest("no", 1, b"dexy") != digest("node", 1, b"xy")
