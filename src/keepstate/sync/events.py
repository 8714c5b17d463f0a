"""Blocking twins of `keepstate.engine.events`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from keepstate._finish import finish, finish_each
from keepstate.engine import events as engine
from keepstate.engine.events import ANY, Event, Expected
from keepstate.sync.twin import Twin


class Events(Twin[engine.Events]):
    """The event streams of a space, or of a transaction on it."""

    def stream(self, name: str = "main") -> EventStream:
        """Returns one stream; asks the store nothing."""
        return EventStream(self._inner.stream(name))

    def append(self, *events: object, stream: str = "main", expected: Expected | int = ANY) -> int:
        """Appends events together.

        Args:
            events: At most 990 values that the codec keeps.
            stream: Which stream; at most 200 bytes of UTF-8.
            expected: `ANY`, `NO_STREAM`, `EXISTS`, or the position of the stream's last event.

        Returns:
            The position of the last one; 0 inside a transaction, which has none before it ends.

        Raises:
            ConflictError: The stream is not as expected; nothing was appended.
        """
        return finish(self._inner.append(*events, stream=stream, expected=expected))

    def last(self, stream: str = "main") -> int | None:
        """Returns the position of a stream's last event, or None if it has none."""
        return finish(self._inner.last(stream))

    def read(self, *, stream: str = "main", after: int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order.

        Args:
            stream: Which stream.
            after: Starts behind this position; without it, at the first event.
            limit: How many at the most.

        Raises:
            HistoryLostError: The space has never come as far as `after`: the position is another space's, or
                the store lost what stood there.
        """
        return finish(self._inner.read(stream=stream, after=after, limit=limit))

    def follow(self, *, stream: str = "main", after: int | None = None) -> Iterator[Event]:
        """Yields events in order, and then each new one when it comes; it never ends by itself.

        Raises:
            HistoryLostError: As for `read`.
        """
        return finish_each(self._inner.follow(stream=stream, after=after))


class EventStream(Twin[engine.EventStream]):
    """One stream of events.

    Attributes:
        name: Its name in the space.
    """

    @property
    def name(self) -> str:
        """Its name in the space."""
        return self._inner.name

    def append(self, *events: object, expected: Expected | int = ANY) -> int:
        """Appends events together, and returns the position of the last; see `Events.append`."""
        return finish(self._inner.append(*events, expected=expected))

    def read(self, *, after: int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order; see `Events.read`."""
        return finish(self._inner.read(after=after, limit=limit))

    def follow(self, *, after: int | None = None) -> Iterator[Event]:
        """Yields events in order, and then each new one when it comes; it never ends by itself."""
        return finish_each(self._inner.follow(after=after))

    def last(self) -> int | None:
        """Returns the position of the last event, or None if there is none."""
        return finish(self._inner.last())
