"""Values with large parts, and values made of them by a few changes, as an agent would make them."""

from __future__ import annotations

import copy
import random
from typing import Any


def a_value(dice: random.Random, depth: int) -> Any:
    """Return a value in which lists and dicts stand `depth` deep, some large enough to be trees."""
    if depth == 0 or dice.random() < 0.2:
        return dice.choice(
            [dice.randrange(9), "x" * dice.randrange(300), "y" * dice.randrange(5_000), None, (1,)]
        )
    count = dice.choice((0, 1, 3, 8, 120)) if depth > 2 else dice.choice((0, 1, 3, 30))
    if dice.random() < 0.5:
        return [a_value(dice, depth - 1) for _ in range(count)]
    return {dice.choice((f"k{n}", n)): a_value(dice, depth - 1) for n in range(count)}


def changed(dice: random.Random, value: Any, depth: int) -> Any:
    """Return the value with some of it changed; what it was stays as it is."""
    fresh = max(0, depth - 1)
    if isinstance(value, list):
        items: list[Any] = copy.copy(value)
        for _ in range(dice.randrange(1, 4)):
            begin = dice.randint(0, len(items))
            end = min(len(items), begin + dice.choice((0, 0, 1, 1, 2, 40)))
            if end == begin + 1 and dice.random() < 0.7:
                items[begin] = changed(dice, items[begin], fresh)
            else:
                items[begin:end] = [a_value(dice, fresh) for _ in range(dice.choice((0, 1, 1, 2, 20)))]
        return items
    if isinstance(value, dict):
        fields: dict[Any, Any] = copy.copy(value)
        for _ in range(dice.randrange(1, 4)):
            key = dice.choice([*fields, "new", f"k{dice.randrange(200)}"])
            if key in fields and dice.random() < 0.3:
                del fields[key]
            else:
                fields[key] = changed(dice, fields.get(key), fresh)
        keys = list(fields)
        if dice.random() < 0.1:
            dice.shuffle(keys)
        return {key: fields[key] for key in keys}
    return a_value(dice, fresh)
