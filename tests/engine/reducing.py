"""A module that reducers of the tests use by its name."""

from __future__ import annotations

from keepstate import Event

RATE = 1


def weight(event: Event) -> int:
    return RATE * int(event.data["n"])
