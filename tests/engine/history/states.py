"""States as agents have them, nested and large in places, and edits of them in place, at any depth."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

_ALPHABET = "abc αβ😀"


def a_scalar(dice: random.Random) -> Any:
    """Return a value that holds no other."""
    match dice.randrange(9):
        case 0:
            return dice.randrange(-3, 300)
        case 1:
            return dice.choice((2**70, -(2**64), True, False, None, 0.5, -0.0))
        case 2:
            return dice.randbytes(dice.choice((0, 3, 700)))
        case 3:
            return "long " * dice.randrange(200, 1_200)
        case _:
            return "".join(dice.choices(_ALPHABET, k=dice.choice((0, 2, 9, 120))))


def a_member(dice: random.Random) -> Any:
    """Return what may stand in a set."""
    return dice.choice((dice.randrange(50), f"m{dice.randrange(50)}", b"b", (1, f"t{dice.randrange(9)}")))


def a_value(dice: random.Random, depth: int) -> Any:
    """Return a value whose containers stand up to `depth` deep; a few are large enough to be trees."""
    kind = dice.randrange(7)
    if depth == 0 or kind == 0:
        return a_scalar(dice)
    count = dice.choice((0, 1, 2, 3, 5, 40 if depth == 1 else 9))
    if kind == 1:
        return {a_member(dice) for _ in range(count)}
    if kind == 2:
        return tuple(a_value(dice, depth - 1) for _ in range(min(count, 4)))
    if kind < 5:
        return [a_value(dice, depth - 1) for _ in range(count)]
    return {dice.choice((f"k{n}", n)): a_value(dice, depth - 1) for n in range(count)}


def edit(dice: random.Random, value: Any, *, fresh: int = 2) -> None:
    """Change something that can be changed in place, at any depth of a list, dict or set."""
    inner = [child for child in _children(value) if _is_mutable(child)]
    if inner and dice.random() < 0.7:
        edit(dice, dice.choice(inner), fresh=max(0, fresh - 1))
    elif isinstance(value, list):
        _edit_list(dice, value, fresh)
    elif isinstance(value, dict):
        _edit_dict(dice, value, fresh)
    elif isinstance(value, set):
        value.symmetric_difference_update({a_member(dice), a_member(dice)})
    elif isinstance(value, tuple) and inner:
        edit(dice, dice.choice(inner), fresh=fresh)


def _edit_list(dice: random.Random, items: list[Any], fresh: int) -> None:
    place = dice.randint(0, len(items))
    match dice.randrange(8):
        case 0 if items:
            items.pop(0)
        case 1 if items:
            half = (len(items) + 1) // 2
            items[:half] = [f"summary of {half}"]
        case 2:
            items.insert(place, a_value(dice, fresh))
        case 3:
            del items[place : place + dice.choice((1, 2, 20))]
        case 4 if place < len(items):
            items[place] = a_value(dice, fresh)
        case 5:
            items.reverse()
        case 6:
            items.extend(a_value(dice, 0) for _ in range(dice.choice((2, 30))))
        case _:
            items.append(a_value(dice, fresh))


def _edit_dict(dice: random.Random, fields: dict[Any, Any], fresh: int) -> None:
    key = dice.choice([*fields, f"k{dice.randrange(9)}"])
    match dice.randrange(5):
        case 0 if key in fields:
            del fields[key]
        case 1 if key in fields:
            fields[key] = fields.pop(key)
        case 2:
            fields.update({f"k{dice.randrange(60)}": a_scalar(dice) for _ in range(3)})
        case _:
            fields[key] = a_value(dice, fresh)


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _is_mutable(value: Any) -> bool:
    return isinstance(value, list | dict | set) or (isinstance(value, tuple) and any(map(_is_mutable, value)))


def unlike(one: Any, other: Any, *, path: str = "state", ordered: bool = True) -> str | None:
    """Return where and how two values differ, in type or value; None if they are the same.

    Args:
        one: A value.
        other: Another.
        path: Where they stand.
        ordered: Whether a dict's order counts.
    """
    if type(one) is not type(other):
        return f"{path} is {one!r:.80} and {other!r:.80}"
    if isinstance(one, dict):
        if one.keys() != other.keys() or (ordered and list(one) != list(other)):
            return f"{path} has the keys {list(one)!r:.200} and {list(other)!r:.200}"
        pairs = ((f"{path}[{key!r}]", one[key], other[key]) for key in one)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{path} has {len(one)} items and {len(other)}"
        pairs = ((f"{path}[{n}]", *pair) for n, pair in enumerate(zip(one, other, strict=True)))
    else:
        return (
            None if repr(one) == repr(other) or one == other else f"{path} is {one!r:.80} and {other!r:.80}"
        )
    return next(
        (found for at, a, b in pairs if (found := unlike(a, b, path=at, ordered=ordered)) is not None), None
    )
