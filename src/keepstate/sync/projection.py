"""Blocking twins of `keepstate.engine.space.projection`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from keepstate._finish import finish, finish_each
from keepstate.engine.events.record import Event
from keepstate.engine.space import projection as engine
from keepstate.sync.events import EventStream
from keepstate.sync.space import Transaction
from keepstate.sync.twin import Twin, inner_of, receiving


class Projection(Twin[engine.Projection]):
    """Applies each event of a stream once, to documents of the same space.

    Args:
        stream: The stream.
        name: What its cursor is called; at most 100 bytes of UTF-8.
        apply: Called with a transaction and an event; what it writes by the transaction and the cursor are
            one batch. It may be called again for the same event, if that batch met a conflict.
        documents: The names of what it writes, as for `Documents.keys`: all of this is removed when it begins
            anew, and nothing else should write there.
        version: Goes up when `apply` does something else: the next `run` begins anew, and from then on one
            of a lower version is refused.

    Attributes:
        name: What its cursor is called.
    """

    def __init__(
        self,
        stream: EventStream,
        name: str,
        apply: Callable[[Transaction, Event], None],
        *,
        documents: str,
        version: int = 1,
    ) -> None:
        super().__init__(
            engine.Projection(
                inner_of(stream),
                name,
                receiving(Transaction, apply),
                documents=documents,
                version=version,
                _mode="blocking",
            )
        )

    @property
    def name(self) -> str:
        """What its cursor is called."""
        return self._inner.name

    def number(self) -> int | None:
        """Return the number of the last event that it counted, None if there is none."""
        return finish(self._inner.number())

    def run(self, *, at_once: int = 64) -> int:
        """Apply all events that it has not counted yet, and return how many that were.

        Args:
            at_once: So many events are applied in one batch; fewer, where what they write does not fit one.

        Raises:
            PrunedError: Events that it has not counted were let go.
            UnsupportedError: A projection of a higher version has taken over; nothing was written.
            InvalidError: What it writes of one event does not fit a batch.
        """
        return finish(self._inner.run(at_once=at_once))

    def follow(self, *, at_once: int = 64) -> Iterator[int]:
        """Apply events as they come, and yield how many there were each time; it never ends by itself.

        Raises:
            UnsupportedError: A projection of a higher version has taken over.
        """
        return finish_each(self._inner.follow(at_once=at_once))

    def rebuild(self) -> int:
        """Remove what it has written, applies all events again, and return how many it applied itself.

        A rebuild that was killed goes on with the next `run`, and others that run it meanwhile take part.

        Raises:
            PrunedError: The stream was truncated; nothing was removed.
            UnsupportedError: A projection of a higher version has taken over; nothing was removed.
        """
        return finish(self._inner.rebuild())
