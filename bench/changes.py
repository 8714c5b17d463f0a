"""What an agent does to its state between two commits, by name, and the states that it does it to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

State = dict[str, Any]

KEYS = 1_000


def message(dice: random.Random, number: int) -> dict[str, Any]:
    """Return a message of about 500 bytes that hardly compresses."""
    return {"role": "user", "n": number, "content": dice.randbytes(236).hex()}


def value(dice: random.Random) -> str:
    """Return 0.5 KB of text."""
    return dice.randbytes(250).hex()


def conversation(size: int) -> State:
    """Return a state with so many messages."""
    dice = random.Random(size)
    return {"messages": [message(dice, number) for number in range(size)], "plan": "x"}


def nested(size: int) -> State:
    """Return a state whose messages stand deeper."""
    return {"runs": [{"steps": conversation(size)["messages"], "done": False}, {"steps": [], "done": True}]}


def keyed(size: int) -> State:
    """Return a state of so many keys."""
    dice = random.Random(size)
    return {f"key{number}": value(dice) for number in range(size)}


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change.

    Attributes:
        name: What is done.
        state: Makes the state that it is done to, of a size.
        sizes: How large that is.
        edit: Does it in place, and returns the key.
    """

    name: str
    state: Callable[[int], State]
    sizes: tuple[int, ...]
    edit: Callable[[Any, random.Random, int], str]


def _append(state: Any, dice: random.Random, size: int) -> str:
    state["messages"].append(message(dice, size))
    return "messages"


def _pop(state: Any, dice: random.Random, size: int) -> str:
    state["messages"].pop(0)
    return "messages"


def _summarise(state: Any, dice: random.Random, size: int) -> str:
    state["messages"][: size // 100] = [message(dice, -1)]
    return "messages"


def _append_deep(state: Any, dice: random.Random, size: int) -> str:
    state["runs"][0]["steps"].append(message(dice, size))
    return "runs"


def _set_key(state: Any, dice: random.Random, size: int) -> str:
    key = f"key{dice.randrange(size)}"
    state[key] = value(dice)
    return key


SIZES = (100, 1_000, 10_000)
APPEND = Change("append", conversation, SIZES, _append)
KEY = Change("one of the keys", keyed, (KEYS,), _set_key)
CHANGES = (
    APPEND,
    Change("pop(0)", conversation, SIZES, _pop),
    Change("first hundredth to a summary", conversation, SIZES, _summarise),
    Change("append to a nested list", nested, SIZES, _append_deep),
    KEY,
)
