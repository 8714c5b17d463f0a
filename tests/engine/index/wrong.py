"""The calls that list subjects with one argument left open, and wrong values of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from math import inf, nan
from typing import Any

VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("kind", "state", "owner", "after"), (1, b"a", ["a"], "\ud800")),
    "under": (1, None, b"a", ["a"], "\ud800"),
    "limit": ("1", nan, inf, -1, 0, 1.0, True, None, [1], 2**31),
    "changed_since": (1, "noon", datetime.max),
    "order": (1, None, b"due", ["due"], "name"),
    "timeout_s": ("1", nan, inf, -1, True, [1]),
}
LISTINGS = {
    "find": ("kind", "state", "owner", "changed_since", "under", "order", "after", "limit"),
    "watch": ("kind", "state", "owner", "under", "after", "timeout_s"),
}


def _with(call: str, what: str) -> Callable[[Any, Any], Any]:
    return lambda ks, wrong: getattr(ks, call)(**{what: wrong})


CALLS = {
    f"Keepstate.{call}({what})": (_with(call, what), VALUES[what])
    for call, names in LISTINGS.items()
    for what in names
}
