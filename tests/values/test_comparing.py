"""What the caller changed in place leads to the same Merkle form as planting the whole."""

from __future__ import annotations

import copy
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate.values.codec import Codec
from keepstate.values.comparing import compared
from keepstate.values.merkle import Planted, shared
from keepstate.values.patch import Edits, edited
from tests.values.edits import a_value, changed
from tests.values.fetching import Objects

CODEC = Codec()


def rewritten(before: object, after: object, objects: Objects) -> Planted:
    """Returns the Merkle form of `after`, made from that of `before`."""
    planted = CODEC.plant(before)
    objects.update(planted.objects)
    verdict = compared(CODEC.canonical(before), CODEC.canonical(after), after, CODEC.plant)
    if verdict is None:
        return Planted(planted.encoding, {})
    return objects.serve(edited(planted.encoding, verdict)) if isinstance(verdict, Edits) else verdict


@given(st.integers(0, 2**32))
def test_changes_in_place_make_the_root_of_the_whole(seed: int) -> None:
    dice, objects = random.Random(seed), Objects()
    before = a_value(dice, 3)
    after = changed(dice, before, 3)

    made = rewritten(before, after, objects)

    planted = CODEC.plant(after)
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
    old, new = CODEC.plant(before), CODEC.plant(changed(dice, before, 3))
    objects.update(old.objects)

    found = objects.serve(shared([old.encoding], new.objects))

    assert found == old.objects.keys() & new.objects.keys()


@pytest.mark.parametrize("place", [0, 500, 1_999])
def test_what_is_shared_is_found_by_reading_what_differs(place: int) -> None:
    messages = [f"{n} " * 99 for n in range(2_000)]
    objects = Objects()
    old = CODEC.plant({"messages": messages})
    new = CODEC.plant({"messages": [*messages[:place], "other", *messages[place + 1 :]]})
    objects.update(old.objects)

    found = objects.serve(shared([old.encoding], new.objects))

    assert len(new.objects) - len(found) < 8
    assert objects.asked < 8
