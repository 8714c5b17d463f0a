"""Blocking twins of `keepstate.typed.changes`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from keepstate._finish import finish
from keepstate.sync.twin import Twin
from keepstate.typed import changes as typed
from keepstate.typed.changes import StateChange

V = TypeVar("V")


class StateWatch(Twin[typed.StateWatch[V]], Generic[V]):
    """An iterator over the changes of one key."""

    @property
    def position(self) -> str:
        """An opaque text. Pass it as `after=` in any process to continue where this watch is."""
        return self._inner.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StateChange[V]:
        try:
            return finish(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
