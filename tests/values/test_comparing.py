"""What the caller changed in place leads to the same Merkle form as planting the whole."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.values.merkle import MerkleValue, find_shared
from keepstate.values.patch import Edits, apply_edits, find_edits
from tests.values.edits import a_value, changed
from tests.values.fetching import Objects

CODEC = Codec()
FEWER = settings(max_examples=settings().max_examples // 5)
"""For values of hundreds of items, each of which is an example in itself."""


def rewritten(before: object, after: object, objects: Objects) -> MerkleValue:
    """Return the Merkle form of `after`, made from that of `before`."""
    planted = CODEC.to_merkle(before)
    objects.update(planted.objects)
    verdict = find_edits(CODEC.canonical(before), CODEC.canonical(after))
    if verdict is None:
        return MerkleValue(planted.encoding, {})
    return objects.serve(apply_edits(planted.encoding, verdict)) if isinstance(verdict, Edits) else verdict


@FEWER
@given(st.integers(0, 2**32))
def test_changes_in_place_make_the_root_of_the_whole(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    before = a_value(dice, 3)
    after = changed(dice, before, 3)

    made = rewritten(before, after, objects)

    planted = CODEC.to_merkle(after)
    assert made.encoding == planted.encoding
    assert planted.objects.items() <= (objects | made.objects).items()


def test_one_change_in_many_messages_makes_few_objects() -> None:
    before = {"messages": [{"role": "user", "content": f"{n} " * 99} for n in range(2_000)], "n": 1}
    after = copy.deepcopy(before)
    after["messages"][1_000]["content"] = "other"  # type: ignore[index]
    objects = Objects()

    made = rewritten(before, after, objects)

    assert len(made.objects) < 8
    assert objects.asked < 8


@given(st.integers(0, 2**32))
def test_what_two_values_share_is_found(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    before = a_value(dice, 3)
    old, new = CODEC.to_merkle(before), CODEC.to_merkle(changed(dice, before, 3))
    objects.update(old.objects)

    found = objects.serve(find_shared([old.encoding], new.objects))

    assert found == old.objects.keys() & new.objects.keys()


@pytest.mark.parametrize("place", [0, 500, 1_999])
def test_what_is_shared_is_found_by_reading_what_differs(place: int) -> None:
    messages = [f"{n} " * 99 for n in range(2_000)]
    objects = Objects()
    old = CODEC.to_merkle({"messages": messages})
    new = CODEC.to_merkle({"messages": [*messages[:place], "other", *messages[place + 1 :]]})
    objects.update(old.objects)

    found = objects.serve(find_shared([old.encoding], new.objects))

    assert len(new.objects) - len(found) < 8
    assert objects.asked < 8


MESSAGES = [{"role": "user", "n": n, "content": f"{n} " * 99} for n in range(2_000)]
IN_PLACE: dict[str, Callable[[list[Any]], object]] = {
    "pop": lambda messages: messages.pop(0),
    "append": lambda messages: messages.append({"n": -1}),
    "summary": lambda messages: messages.__setitem__(slice(0, 100), ["summary"]),
    "one": lambda messages: messages.__setitem__(1_000, {"n": -1}),
    "nothing": lambda messages: None,
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=list(IN_PLACE))
@pytest.mark.parametrize("is_nested", [False, True])
def test_of_a_long_list_only_what_was_changed_is_planted(
    change: Callable[[list[Any]], object], is_nested: bool
) -> None:
    after = list(MESSAGES)
    change(after)
    before: Any = [{"steps": MESSAGES, "done": False}] if is_nested else MESSAGES
    now: Any = [{"steps": after, "done": False}] if is_nested else after

    planted = planted_in(find_edits(CODEC.canonical(before), CODEC.canonical(now)))

    assert len(planted) <= 1
    assert planted in ([], [CODEC.canonical({"n": -1})], [CODEC.canonical("summary")])


def planted_in(verdict: Edits | MerkleValue | None) -> list[bytes]:
    """Return the encodings of all that was made anew."""
    if not isinstance(verdict, Edits):
        return [] if verdict is None else [verdict.encoding]
    made = [*verdict.puts.values(), *(one for some in verdict.inserted.values() for one in some)]
    return [
        *(one.encoding for one in made),
        *(encoding for inner in verdict.inside.values() for encoding in planted_in(inner)),
    ]


def test_bytes_that_end_like_the_items_of_before_are_not_taken_for_them() -> None:
    before = ["x" * 5_000, "a", "b", "c"]
    looks_alike = CODEC.canonical(["a", "b", "c"])[1:]
    after = ["x" * 5_000, b"y" * 20 + looks_alike]
    objects = Objects()

    made = rewritten(before, after, objects)

    assert made.encoding == CODEC.to_merkle(after).encoding


@FEWER
@given(st.integers(0, 2**32))
def test_a_long_encoding_is_that_of_the_whole(seed: int) -> None:
    dice = random.Random(seed)
    few = [a_value(dice, 2) for _ in range(5)]
    value = {"items": few * 60, "map": {f"k{n}": few[n % 5] for n in range(dice.randrange(300))}, "few": few}

    assert CODEC.canonical_long(value) == CODEC.canonical(value)
    assert CODEC.canonical_long(value["items"]) == CODEC.canonical(value["items"])


def written(write: Callable[[object], bytes], value: object) -> bytes | str:
    """Return the encoding of a value, or why there is none."""
    try:
        return write(value)
    except InvalidError as error:
        return str(error)


@pytest.mark.parametrize("odd", [bytearray(b"x"), {1: 2}, "\udc80", {"\udc80": 1}, 1 << 80, (1, [2])])
@pytest.mark.parametrize("count", [3, 200])
def test_what_is_lowered_is_lowered_in_a_long_value_too(odd: object, count: int) -> None:
    lists, maps = [0] * count + [odd], {f"k{n}": n for n in range(count)} | {"odd": odd}

    for value in (lists, maps, {"deep": maps}):
        assert written(CODEC.canonical_long, value) == written(CODEC.canonical, value)


@pytest.mark.parametrize("depth", range(248, 260))
def test_a_long_value_may_be_as_deep_as_another(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]

    assert written(CODEC.canonical_long, {"few": [value]}) == written(CODEC.canonical, {"few": [value]})
