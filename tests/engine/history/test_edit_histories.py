"""Edit histories against a plain model: a list of deep copies."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keepstate
from keepstate.engine.history.history import History
from tests.engine.history.conftest import history_of
from tests.values.edits import a_value, changed


def a_state(dice: random.Random) -> dict[str, Any]:
    return {f"key{n}": a_value(dice, 2) for n in range(dice.choice((1, 3, 40)))}


def edited(dice: random.Random, state: Any) -> None:
    """Changes a dict with text for keys in place, as an agent would."""
    for _ in range(dice.randrange(1, 4)):
        key = dice.choice([*state, f"new{dice.randrange(9)}"])
        value = state.get(key)
        match dice.randrange(5):
            case 0 if key in state:
                del state[key]
            case 1 if isinstance(value, list):
                value.append(a_value(dice, 1))
            case 2 if isinstance(value, list) and value:
                value.pop(0)
            case 3 if isinstance(value, dict) and value:
                inner = dice.choice(list(value))
                value[inner] = changed(dice, value[inner], 2)
            case _:
                state[key] = a_value(dice, 2)


async def follow(history: History, seed: int) -> None:
    """Commits a history of edits, and compares each of its moments and its objects with the model."""
    dice = random.Random(seed)
    model: list[Any] = [a_state(dice)]
    await history.commit(model[0])
    draft = await history.begin(load=dice.random() < 0.7)
    for _ in range(dice.randrange(2, 12)):
        match dice.randrange(6):
            case 0 if isinstance(model[-1].get("list", []), list):
                item, path = a_value(dice, 2), "list"
                await history.append(path, item)
                model.append(copy.deepcopy(model[-1]))
                model[-1].setdefault(path, []).append(item)
                draft = await history.begin()
            case 1:
                whole = changed(dice, copy.deepcopy(model[-1]), 2)
                model.append({key: value for key, value in whole.items() if isinstance(key, str)})
                await history.commit(model[-1])
                draft = await history.begin()
            case 2:
                steps = dice.randrange(len(model))
                if steps:
                    await history.rollback(steps=steps)
                    model.append(copy.deepcopy(model[-1 - steps]))
                    draft = await history.begin()
            case _:
                await draft.load()
                edited(dice, draft)
                await draft.commit()
                model.append(copy.deepcopy(dict(draft)))
    for number, state in enumerate(model, 1):
        checkout = await history.checkout(f"main#{number}")
        assert dict(checkout) == state
    old, new = dice.randrange(len(model)), dice.randrange(len(model))
    changes = await history.diff(f"main#{old + 1}", f"main#{new + 1}")
    assert model[old] != model[new] or {change.kind for change in changes} <= {"reordered"}
    roots = [(await history.find(f"main#{n + 1}")).id for n in range(len(model))]
    assert len(set(roots)) == len(roots)


@pytest.mark.slow
@pytest.mark.searched
@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_every_moment_of_an_edit_history_comes_back(seed: int) -> None:
    async def whole() -> None:
        async with keepstate.open("memory://") as ks:
            await follow(history_of(ks.space("run/1")), seed)

    asyncio.run(whole())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_every_moment_comes_back_on_each_backend(everywhere: History, seed: int) -> None:
    await follow(everywhere, seed)
