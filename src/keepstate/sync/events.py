"""Blocking twins of `keepstate.engine.events`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keepstate._finish import finish, finish_each
from keepstate.engine import events as engine
from keepstate.engine.event_record import ANY, Event, Expected
from keepstate.sync.streams import EventStream
from keepstate.sync.twin import Twin, around


class Events(Twin[engine.Events]):
    """The event streams of a space, or of a transaction on it."""

    def stream(self, name: str = "main") -> EventStream:
        """Returns one stream; asks the store nothing."""
        return around(EventStream, self._inner.stream(name))

    def streams(self) -> Iterator[str]:
        """Yields the names of the streams in which something was appended."""
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
        """Appends events together.

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
        """Returns the number of a stream's last event, or None if it has none."""
        return finish(self._inner.last(stream))

    def read(self, *, stream: str = "main", after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order.

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
        """Yields events in order, and then each new one when it comes; it never ends by itself.

        Raises:
            HistoryLostError: As for `read`.
        """
        return finish_each(self._inner.follow(stream=stream, after=after))
