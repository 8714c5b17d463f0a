"""Blocking twins of `keepstate.engine.streams`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.engine import streams as engine
from keepstate.engine.event_record import ANY, Event, Expected
from keepstate.engine.folding import FoldEntry
from keepstate.engine.reducers import Fold, Reducer
from keepstate.engine.streams import HasEvents
from keepstate.sync.twin import Twin, around


class EventStream(Twin[engine.EventStream]):
    """One stream of events: `EventStream(space, "orders")` is `space.events.stream("orders")`.

    Args:
        place: The space, or a transaction on it.
        name: Its name in the space; at most 200 bytes of UTF-8.

    Attributes:
        name: Its name in the space.
    """

    def __init__(self, place: HasEvents, name: str = "main") -> None:
        super().__init__(engine.EventStream(place, name, _colour="blocking"))

    @property
    def name(self) -> str:
        """Its name in the space."""
        return self._inner.name

    def append(
        self,
        *events: object,
        expected: Expected | int = ANY,
        id: str | Sequence[str] | None = None,
        type: str | None = None,
        cause: Event | str | None = None,
        correlation: str | None = None,
    ) -> int:
        """Appends events together, and returns the number of the last; see `Events.append`."""
        return finish(
            self._inner.append(
                *events, expected=expected, id=id, type=type, cause=cause, correlation=correlation
            )
        )

    def read(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order, 256 if not told otherwise; see `Events.read`."""
        return finish(self._inner.read(after=after, limit=limit))

    def follow(self, *, after: str | int | None = None) -> Iterator[Event]:
        """Yields events in order, and then each new one when it comes; it never ends by itself."""
        return finish_each(self._inner.follow(after=after))

    def last(self) -> int | None:
        """Returns the number of the last event, or None if there is none."""
        return finish(self._inner.last())

    def at(self, moment: int | datetime) -> EventStream:
        """Returns the stream as it was; asks the store nothing.

        Args:
            moment: The number of the last event to be in it; or a time with its zone: then it ends before
                the first event that was recorded later.
        """
        return around(EventStream, self._inner.at(moment))

    def fold(
        self,
        reducer: Reducer,
        initial: Any = None,
        cache_every: int | None = 100,
        *,
        name: str | None = None,
        version: int = 1,
        from_base: bool = False,
    ) -> Any:
        """Returns the state that the events make of an initial one.

        The state is kept, under the reducer's name, whenever `cache_every` events were read; the next fold
        reads only what came after it. What was kept by other code or from another initial state is not used:
        constants, classes and functions that the reducer uses count as its code.

        Args:
            reducer: Called with the state so far and each event, and returns the state after it. It must do
                the same each time: no clock, no chance, no store.
            initial: The state before the first event; it is not changed.
            cache_every: After how many events to keep the state; None keeps nothing, and lets the state be
                anything.
            name: What the kept state is called.
            version: Goes up when the reducer does something else and nothing shows it, neither its code nor
                what that uses: another file is read, or an installed package is of another version.
            from_base: Goes on from the state that truncation left, also if another reducer made that.

        Raises:
            PrunedError: Events that it needs were let go by truncation.
            InvalidError: The reducer returned None, or a state that cannot be kept.
        """
        return finish(
            self._inner.fold(reducer, initial, cache_every, name=name, version=version, from_base=from_base)
        )

    def fold_entry(self, fold: Fold, *, from_base: bool = False) -> FoldEntry:
        """Returns the same with the number of its last event, which an append that builds on it expects."""
        return finish(self._inner.fold_entry(fold, from_base=from_base))

    def truncate(self, upto: int, *folds: Fold) -> int:
        """Lets go of the events up to a number; what they came to is kept for each fold.

        Each state is folded from the events twice and compared before any event is removed. Events that are
        let go forget their ids.

        Args:
            upto: The number of the last event to let go.
            folds: All folds whose state has been kept; theirs go on from what is kept for them.

        Returns:
            How many events were removed.

        Raises:
            InvalidError: A fold is not given that has a kept state, or came to something else the second
                time; or a projection has not come so far. Nothing was removed.
        """
        return finish(self._inner.truncate(upto, *folds))
