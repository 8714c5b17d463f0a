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
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.sync.twin import Twin, around


class EventStream(Twin[engine.EventStream]):
    """One stream of events: `EventStream(space, "orders")` is `space.events.stream("orders")`.

    Args:
        place: The space, or a transaction on it.
        name: The name of the stream; at most 200 bytes of UTF-8.

    Attributes:
        name: The name of the stream.
    """

    def __init__(self, index: HasEvents, name: str = "main") -> None:
        super().__init__(engine.EventStream(index, name, _mode="blocking"))

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._inner.name

    def append(
        self,
        *events: object,
        expected: Expected | int = ANY,
        id: str | Sequence[str | None] | None = None,
        type: str | None = None,
        cause: Event | str | None = None,
        correlation: str | None = None,
    ) -> int:
        """Append events in one batch, and return the number of the last one; see `Events.append`."""
        return finish(
            self._inner.append(
                *events, expected=expected, id=id, type=type, cause=cause, correlation=correlation
            )
        )

    def read(
        self,
        *,
        after: str | int | None = None,
        before: str | int | None = None,
        reverse: bool = False,
        limit: int = 256,
        unreadable: IfUnreadable = "raise",
    ) -> list[Event]:
        """Return events in order, by default at most 256; see `Events.read`."""
        return finish(
            self._inner.read(after=after, before=before, reverse=reverse, limit=limit, unreadable=unreadable)
        )

    def follow(self, *, after: str | int | None = None) -> Iterator[Event]:
        """Yield events in order, then wait for new ones. The iteration never ends by itself."""
        return finish_each(self._inner.follow(after=after))

    def drop(self) -> int:
        """Delete the stream, and return the number of deleted events; see `Events.drop`."""
        return finish(self._inner.drop())

    def last(self) -> int | None:
        """Return the number of the last event, or None if the stream is empty."""
        return finish(self._inner.last())

    def at(self, moment: int | datetime) -> EventStream:
        """Return the stream as of a past event or time, without a call to the store.

        Args:
            moment: The number of the last event to include, or an aware datetime: the stream then ends before
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
        """Fold the events into a state, and return it.

        The state is cached, under the reducer's name, once `cache_every` events were read. The next fold
        reads only later events. A cache made by other code or from another initial state is not used. The
        constants, classes and functions that the reducer uses are part of its code.

        Args:
            reducer: A function of the state and an event that returns the next state. It must be
                deterministic: no clock, no randomness, no store.
            initial: The state before the first event. It is not modified.
            cache_every: The number of events to read before the state is cached. None disables the cache, and
                then the state can be any object.
            name: The name of the cached state.
            version: Increase it when the reducer's behavior changes without a visible change of its code: for
                example, it reads another file, or an installed package has another version.
            from_base: Start from the state left by a truncation even if another reducer made it.

        Raises:
            PrunedError: Events that the fold needs were truncated.
            InvalidError: The reducer returned None, or a state that cannot be stored.
        """
        return finish(
            self._inner.fold(reducer, initial, cache_every, name=name, version=version, from_base=from_base)
        )

    def fold_entry(self, fold: Fold, *, from_base: bool = False) -> FoldEntry:
        """Fold as `fold` does. Return the state with the number of its last event, for `expected`."""
        return finish(self._inner.fold_entry(fold, from_base=from_base))

    def truncate(self, upto: int, *folds: Fold) -> int:
        """Delete the events up to a number, and store the resulting state of each fold.

        Each state is folded from the events twice, and the results are compared, before any event is deleted.
        The ids of deleted events can be used again.

        Args:
            upto: The number of the last event to delete.
            folds: All folds with a cached state. They continue from the stored state.

        Returns:
            The number of deleted events.

        Raises:
            InvalidError: A fold with a cached state is missing, two runs of a fold differ, or a projection
                has not reached `upto`. Nothing was deleted.
        """
        return finish(self._inner.truncate(upto, *folds))


class Events(Twin[engine.Events]):
    """The event streams of a space, or of a transaction on it."""

    def stream(self, name: str = "main") -> EventStream:
        """Return one stream, without a call to the store."""
        return around(EventStream, self._inner.stream(name))

    def streams(self) -> Iterator[str]:
        """Yield the names of the streams that have had an event."""
        return finish_each(self._inner.streams())

    def append(
        self,
        *events: object,
        stream: str = "main",
        expected: Expected | int = ANY,
        id: str | Sequence[str | None] | None = None,
        type: str | None = None,
        cause: Event | str | None = None,
        correlation: str | None = None,
    ) -> int:
        """Append events in one batch.

        Args:
            events: At most 990 values that the codec stores; 490 if they have ids.
            stream: The name of the stream; at most 200 bytes of UTF-8.
            expected: `ANY`, `NO_STREAM`, `EXISTS`, or the number of the stream's last event.
            id: The event's id, or a list with an id or None for each event. An event whose id is already in
                the stream is not appended again, regardless of its data. An event without an id is always
                appended. If all events have ids that are in the stream, `expected` is not checked.
            type: `name` or `name@version` of events that are dicts. `@upcast` converts them to newer
                versions.
            cause: The event that caused these, or its id. They get its correlation.
            correlation: An id that all events with the same origin share.

        Returns:
            The number of the last event; 0 inside a transaction, which does not have one before it commits.

        Raises:
            ConflictError: The stream is not as expected. Nothing was appended.
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
        """Return the number of a stream's last event, or None if the stream does not exist."""
        return finish(self._inner.last(stream))

    def read(
        self,
        *,
        stream: str = "main",
        after: str | int | None = None,
        before: str | int | None = None,
        reverse: bool = False,
        limit: int = 256,
        unreadable: IfUnreadable = "raise",
    ) -> list[Event]:
        """Return events in order.

        Events of unregistered classes, or of newer versions of a class, are returned in builtin form.

        Args:
            stream: The name of the stream.
            after: Only events after the one with this `position`, from any process, or, within a handle,
                after its `number`.
            before: Only events before the one with this `position`, or, within a handle, `number`.
            reverse: Whether to return the newest event first.
            limit: The largest number of events. To read on, pass the last event's position as `after`, or as
                `before` with `reverse`.
            unreadable: With `skip`, an event that is damaged, or that its class or an upcaster rejects, is
                left out. With `raw`, its data is an `Unreadable`.

        Raises:
            CompactedError: The event that `after` or `before` belongs to is gone, and the log no longer
                reaches back to it: the stream was expunged.
            HistoryLostError: The store has lost the event that `after` or `before` belongs to: a backup was
                restored, or a server failed over.
            InvalidError: `after` or `before` is not a position, or is one of another space, stream or kind.
            PrunedError: The stream was truncated past `after` or `before`.
        """
        return finish(
            self._inner.read(
                stream=stream, after=after, before=before, reverse=reverse, limit=limit, unreadable=unreadable
            )
        )

    def drop(self, stream: str) -> int:
        """Delete a stream with its events, its stored folds and the progress of its projections.

        The first batch ends the stream: a position of an earlier event raises `PrunedError`, and an id of an
        earlier event can be used again. The events are then deleted in batches of at most 400, and the
        stream's name last. Until the call ends, a read from the start may still return some of them. An
        interrupted call is completed by the next one. Events appended during the call remain. Documents of
        projections remain too.

        Args:
            stream: The name of the stream.

        Returns:
            The number of deleted events.
        """
        return finish(self._inner.drop(stream))

    def follow(self, *, stream: str = "main", after: str | int | None = None) -> Iterator[Event]:
        """Yield events in order, then wait for new ones. The iteration never ends by itself.

        Raises:
            HistoryLostError: As for `read`.
        """
        return finish_each(self._inner.follow(stream=stream, after=after))
