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
        name: The name of its cursor; at most 100 bytes of UTF-8.
        apply: A function of a transaction and an event. Its writes and the cursor are one batch. It may be
            called again for the same event if that batch had a conflict.
        documents: A pattern of the names that `apply` writes, as for `Documents.keys`. A rebuild deletes all
            of these documents, so do not let anything else write them.
        version: Increase it when the behavior of `apply` changes. The next `run` then rebuilds the
            documents, and projections of a lower version are rejected.

    Attributes:
        name: The name of its cursor.
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
        """The name of its cursor."""
        return self._inner.name

    def number(self) -> int | None:
        """Return the number of the last applied event, or None."""
        return finish(self._inner.number())

    def run(self, *, at_once: int = 64) -> int:
        """Apply all new events, and return their number.

        Args:
            at_once: The number of events to apply in one batch; fewer if their writes do not fit into one.

        Raises:
            PrunedError: Events that were not applied yet were truncated.
            UnsupportedError: A projection of a higher version has taken over. Nothing was written.
            InvalidError: The writes of one event do not fit into a batch.
        """
        return finish(self._inner.run(at_once=at_once))

    def follow(self, *, at_once: int = 64) -> Iterator[int]:
        """Apply events as they arrive, and yield their number each time. It never ends by itself.

        Raises:
            UnsupportedError: A projection of a higher version has taken over.
        """
        return finish_each(self._inner.follow(at_once=at_once))

    def rebuild(self) -> int:
        """Delete the documents, apply all events again, and return the number of events applied here.

        A rebuild that was killed continues with the next `run`. Other processes that run the projection at
        the same time take part.

        Raises:
            PrunedError: The stream was truncated. Nothing was deleted.
            UnsupportedError: A projection of a higher version has taken over. Nothing was deleted.
        """
        return finish(self._inner.rebuild())
