"""Differences as a JSON Patch, judged by the package `jsonpatch`."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

import jsonpatch
import pytest

import keepstate
from keepstate import InvalidError, to_json_patch
from keepstate.engine.history.history import History
from tests.engine.history.conftest import history_of

KEYS = ("a", "b/c", "d~e", "", "0", "~1", "x.y", "ü")


def a_value(dice: random.Random, depth: int) -> Any:
    """Return a JSON value; some lists and dicts are large enough to be trees."""
    if depth == 0 or dice.random() < 0.3:
        return dice.choice((None, True, 0, -1.5, 2**40, "", "text " * dice.randrange(400)))
    count = dice.choice((0, 1, 3, 9, 40 if depth < 3 else 5))
    if dice.random() < 0.5:
        return [a_value(dice, depth - 1) for _ in range(count)]
    return {dice.choice((*KEYS, f"k{n}")): a_value(dice, depth - 1) for n in range(count)}


def edit(dice: random.Random, value: Any, depth: int) -> Any:
    """Return the value after a few changes, at any depth."""
    if isinstance(value, list):
        items = [*value]
        for _ in range(dice.randrange(1, 5)):
            place = dice.randint(0, len(items))
            match dice.randrange(4):
                case 0:
                    items.insert(place, a_value(dice, max(depth - 1, 0)))
                case 1:
                    del items[place : place + dice.choice((1, 1, 5))]
                case _ if place < len(items):
                    items[place] = edit(dice, items[place], depth - 1)
                case _:
                    items.reverse()
        return items
    if isinstance(value, dict):
        fields = dict(value)
        for key in [dice.choice([*fields, *KEYS]) for _ in range(dice.randrange(1, 5))]:
            if key in fields and dice.random() < 0.3:
                del fields[key]
            elif key in fields and dice.random() < 0.2:
                fields[key] = fields.pop(key)
            else:
                fields[key] = edit(dice, fields.get(key), depth - 1)
        return fields
    return a_value(dice, max(depth - 1, 0))


def assert_leads(state: Any, other: Any, patch: list[dict[str, Any]]) -> None:
    """Apply a patch as text, as another program would get it."""
    patched = jsonpatch.apply_patch(copy.deepcopy(state), json.dumps(patch))
    assert json.dumps(patched, sort_keys=True) == json.dumps(other, sort_keys=True)


async def test_differences_as_a_json_patch_lead_from_one_state_to_the_other() -> None:
    async with keepstate.open("memory://") as ks:
        for seed in range(500):
            dice = random.Random(seed)
            state = {"s": a_value(dice, 4), "t": a_value(dice, 2)}
            other = edit(dice, state, 4)
            history = history_of(ks.space(f"{seed}"))
            await history.commit(state)
            await history.commit(other)

            there = to_json_patch(await history.diff("main~1", "main"))
            back = to_json_patch(await history.diff("main", "main~1"))

            assert_leads(state, other, there)
            assert_leads(other, state, back)


async def test_removals_come_first_and_from_the_end(history: History) -> None:
    await history.commit({"log": [{"l": [1, 2, 3]}, "b", "c", "d"], "gone/~": 1})
    await history.commit({"log": ["first", {"l": [1]}, "d", "last"]})

    patch = to_json_patch(await history.diff("main~1", "main"))

    operations = [(one["op"], one["path"]) for one in patch]
    assert operations == sorted(operations, key=lambda one: ["remove", "add", "replace"].index(one[0]))
    assert ("remove", "/gone~1~0") in operations
    assert_leads(dict(await history.checkout("main~1")), dict(await history.checkout()), patch)


async def test_a_diff_of_a_path_is_a_patch_of_the_whole_state(history: History) -> None:
    await history.commit({"a": [{"n": 1}, 2], "b": 1})
    await history.commit({"a": [{"n": 2}], "b": 2})

    patch = to_json_patch(await history.diff("main~1", "main", path="a"))

    assert_leads({"a": [{"n": 1}, 2], "b": 1}, {"a": [{"n": 2}], "b": 1}, patch)


async def test_another_order_of_keys_is_no_operation(history: History) -> None:
    await history.commit({"a": 1, "b": 2})
    await history.commit({"b": 2, "a": 1})

    assert to_json_patch(await history.diff("main~1", "main")) == []


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"bytes", "x"),
        ({"y": [1, (2, 3)]}, r"x\.y\[1\]"),
        ([{1, 2}], r"x\[0\]"),
        ({"y": math.inf}, r"x\.y"),
        ({(1, 2): 3}, r"x\[\(1, 2\)\]"),
    ],
)
async def test_what_json_cannot_hold_is_refused_with_its_path(
    history: History, value: object, place: str
) -> None:
    await history.commit({"n": 1})
    await history.commit({"n": 1, "x": value})

    with pytest.raises(InvalidError, match=rf"{place} (is|has) .*JSON"):
        to_json_patch(await history.diff("main~1", "main"))
