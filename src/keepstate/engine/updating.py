"""Which documents the caller's own functions are changing just now.

A function that is given to `update` and writes its own document would change what it was given, be called
again, write again, and never end. Contexts carry which updates a call is made inside of, so such a write is
refused; tasks started by the function belong to its update until the function has returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any

from keepstate.stores.protocol import Store


class _Update:
    """A caller's function at work on one document, until it has returned."""

    __slots__ = ("is_over", "outer", "place", "space", "store")

    def __init__(self, store: Store, space: str, place: bytes, outer: _Update | None) -> None:
        self.store, self.space, self.place, self.outer = store, space, place, outer
        self.is_over = False


_present: ContextVar[_Update | None] = ContextVar("keepstate_updates", default=None)


async def changed(
    store: Store, space: str, place: bytes, change: Callable[[Any], Awaitable[Any] | Any], value: object
) -> Any:
    """Returns what the caller's function makes of the value of the document at this place."""
    update = _Update(store, space, place, _present.get())
    _present.set(update)
    try:
        answer = change(value)
        return await answer if isawaitable(answer) else answer
    finally:
        update.is_over = True
        _present.set(update.outer)  # a token could not be given back where a cancelled task is collected


def updated_among(store: Store, space: str, places: Container[bytes]) -> bytes | None:
    """Returns which of these places the caller is computing a new value for, if any."""
    update = _present.get()
    while update is not None:
        if not update.is_over and update.place in places and update.space == space and update.store is store:
            return update.place
        update = update.outer
    return None
