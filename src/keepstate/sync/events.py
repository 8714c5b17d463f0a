"""Blocking twins of `keepstate.engine.events.events`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.engine.events import events as engine
from keepstate.engine.events.events import HasEvents
from keepstate.engine.events.folds import FoldEntry
from keepstate.engine.events.record import ANY, Event, Expected
from keepstate.engine.events.reducers import Fold, Reducer
from keepstate.sync.twin import Twin, around


class EventStream(Twin[engine.EventStream]):
    """One stream of events: `EventStream(space, "orders")` is `space.events.stream("orders")`.

    Args:
        place: The space, or a transaction on it.
        name: Its name in the space; at most 200 bytes of UTF-8.

    Attributes:
        name: Its name in the space.
    """

    def __init__(self, index: HasEvents, name: str = "main") -> None:
        super().__init__(engine.EventStream(index, name, _mode="blocking"))

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
        """Append events together, and return the number of the last; see `Events.append`."""
        return finish(
            self._inner.append(
                *events, expected=expected, id=id, type=type, cause=cause, correlation=correlation
            )
        )

    def read(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Return events in order, 256 if not told otherwise; see `Events.read`."""
        return finish(self._inner.read(after=after, limit=limit))

    def follow(self, *, after: str | int | None = None) -> Iterator[Event]:
        """Yield events in order, and then each new one when it comes; it never ends by itself."""
        return finish_each(self._inner.follow(after=after))

    def last(self) -> int | None:
        """Return the number of the last event, or None if there is none."""
        return finish(self._inner.last())

    def at(self, moment: int | datetime) -> EventStream:
        """Return the stream as it was; asks the store nothing.

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
        """Return the state that the events make of an initial one.

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
        """Return the same with the number of its last event, which an append that builds on it expects."""
        return finish(self._inner.fold_entry(fold, from_base=from_base))

    def truncate(self, upto: int, *folds: Fold) -> int:
        """Let go of the events up to a number; what they came to is kept for each fold.

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


class Events(Twin[engine.Events]):
    """The event streams of a space, or of a transaction on it."""

    def stream(self, name: str = "main") -> EventStream:
        """Return one stream; asks the store nothing."""
        return around(EventStream, self._inner.stream(name))

    def streams(self) -> Iterator[str]:
        """Yield the names of the streams in which something was appended."""
        return finish_each(self._inner.streams())

    def append(
        self,
        *events: object,
        stream: str = "main",
        expected: Expected | int = ANY,
        id: str | Sequence[str] | None = None,
        type: str | None = None,
        cause: Event | str | None = None,
        correlation: str | None = None,
    ) -> int:
        """Append events together.

        Args:
            events: At most 990 values that the codec keeps; 490 if they have ids.
            stream: Which stream; at most 200 bytes of UTF-8.
            expected: `ANY`, `NO_STREAM`, `EXISTS`, or the number of the stream's last event.
            id: What the event is called, or a list with an id for each. An event whose id the stream has
                already is not appended again, whatever it holds; if all are there, the stream may be as it
                likes.
            type: `name` or `name@version` of events that are dicts; `@upcast` brings them up to date.
            cause: The event that they follow from, or its id; they have its correlation.
            correlation: What they have in common with all that follows from the same beginning.

        Returns:
            The number of the last one; 0 inside a transaction, which has none before it ends.

        Raises:
            ConflictError: The stream is not as expected; nothing was appended.
        """
        return finish(
            self._inner.append(
                *events,
                stream=stream,
                expected=expected,
                id=id,
                type=type,
                cause=cause,
                correlation=correlation,
            )
        )

    def last(self, stream: str = "main") -> int | None:
        """Return the number of a stream's last event, or None if it has none."""
        return finish(self._inner.last(stream))

    def read(self, *, stream: str = "main", after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Return events in order.

        Args:
            stream: Which stream.
            after: Starts behind the event of this `position`, in this process or another; or, within a
                handle, behind its `number`. Without it, at the first event.
            limit: How many at the most; to read on, give the position of the last one as `after`.

        Raises:
            HistoryLostError: The store no longer has the event that `after` stands behind: a backup was
                restored, or a server failed over, and others may have written since.
            InvalidError: `after` is not a position, or one of another space, stream or kind.
            PrunedError: The stream was truncated behind `after`.
        """
        return finish(self._inner.read(stream=stream, after=after, limit=limit))

    def follow(self, *, stream: str = "main", after: str | int | None = None) -> Iterator[Event]:
        """Yield events in order, and then each new one when it comes; it never ends by itself.

        Raises:
            HistoryLostError: As for `read`.
        """
        return finish_each(self._inner.follow(stream=stream, after=after))
