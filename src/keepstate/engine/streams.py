"""One stream of events: what is appended to it, what it was at any moment, and the states folded from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, cast

from keepstate._runner import Colour
from keepstate.engine.admission import admit_flag, admit_instance
from keepstate.engine.event_record import ANY, Event, Expected, admit_number, admit_stream
from keepstate.engine.folding import FoldEntry, Folding, Moment, is_behind
from keepstate.engine.reducers import Fold, Reducer
from keepstate.engine.scope import Scope
from keepstate.engine.truncating import truncate
from keepstate.errors import InvalidError

if TYPE_CHECKING:
    from keepstate.engine.events import Events


class HasEvents(Protocol):
    """A space, or a transaction on one."""

    @property
    def events(self) -> Any:
        """Returns its streams."""
        ...


class EventStream:
    """One stream of events: `EventStream(space, "orders")` is `space.events.stream("orders")`.

    Args:
        place: The space, or a transaction on it.
        name: Its name in the space; at most 200 bytes of UTF-8.

    Attributes:
        name: Its name in the space.
    """

    name: str

    def __init__(self, place: HasEvents, name: str = "main", *, _colour: Colour = "async") -> None:
        given: Any = getattr(place, "_inner", place) if _colour == "blocking" else place
        events: Any = getattr(given, "events", None)
        scope = getattr(events, "_scope", None)
        if not isinstance(scope, Scope):
            raise InvalidError(f"{place!r} has no events here; give a space or transaction of {_colour} use")
        if scope.runner.colour != _colour:
            right = "keepstate" if scope.runner.colour == "async" else "keepstate.sync"
            raise InvalidError(f"{place!r} is {scope.runner.colour}; hand it to the EventStream of {right}")
        admit_stream(name)
        self._events, self._scope, self.name = cast("Events", events), scope, name
        self._upto: Moment = None

    @classmethod
    def of(cls, events: Events, name: str, upto: Moment = None) -> EventStream:
        """Returns a stream of a space's events, as it was at a moment; asks the store nothing."""
        admit_stream(name)
        stream = cls.__new__(cls)
        scope = events._scope  # pyright: ignore[reportPrivateUsage]
        stream._events, stream._scope, stream.name, stream._upto = events, scope, name, upto
        return stream

    def __repr__(self) -> str:
        at = "" if self._upto is None else f" at {self._upto}"
        return f"<EventStream {self.name!r}{at} of {self._events!r}>"

    async def append(
        self,
        *events: object,
        expected: Expected | int = ANY,
        id: str | Sequence[str] | None = None,
        type: str | None = None,
        cause: Event | str | None = None,
        correlation: str | None = None,
    ) -> int:
        """Appends events together, and returns the number of the last; see `Events.append`."""
        if self._upto is not None:
            raise InvalidError(f"{self!r} is the stream as it was; append to the stream itself")
        return await self._events.append(
            *events,
            stream=self.name,
            expected=expected,
            id=id,
            type=type,
            cause=cause,
            correlation=correlation,
        )

    async def read(self, *, after: str | int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order, 256 if not told otherwise; see `Events.read`."""
        return self._within(await self._events.read(stream=self.name, after=after, limit=limit))

    async def page(self, after: int | None, limit: int, *, whole: bool) -> list[Event]:
        """Returns events in order, or raises where some of them are gone."""
        return await self._events._read(self.name, after, limit, whole=whole)  # pyright: ignore[reportPrivateUsage]

    def _within(self, events: list[Event]) -> list[Event]:
        for place, event in enumerate(events):
            if is_behind(event, self._upto):
                return events[:place]
        return events

    async def follow(self, *, after: str | int | None = None) -> AsyncIterator[Event]:
        """Yields events in order, and then each new one when it comes; it never ends by itself."""
        if self._upto is not None:
            raise InvalidError(f"{self!r} gets no more events; follow the stream itself")
        async for event in self._events.follow(stream=self.name, after=after):
            yield event

    async def last(self) -> int | None:
        """Returns the number of the last event, or None if there is none."""
        if self._upto is None:
            return await self._events.last(self.name)
        number = after = None
        while events := await self.read(after=after, limit=1_024):
            number = after = events[-1].number
        return number

    # ---- states

    def at(self, moment: int | datetime) -> EventStream:
        """Returns the stream as it was; asks the store nothing.

        Args:
            moment: The number of the last event to be in it; or a time with its zone: then it ends before
                the first event that was recorded later.
        """
        admit_instance("moment", moment, int, datetime)
        if not isinstance(moment, datetime):
            admit_number("moment", moment)
        elif moment.tzinfo is None:
            raise InvalidError(f"`moment` is {moment!r}, of no zone; give one with tzinfo")
        return EventStream.of(self._events, self.name, moment)

    async def fold(
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
        fold = Fold(reducer, initial, cache_every, name, version)
        return (await self.fold_entry(fold, from_base=from_base)).state

    async def fold_entry(self, fold: Fold, *, from_base: bool = False) -> FoldEntry:
        """Returns the same with the number of its last event, which an append that builds on it expects."""
        admit_instance("fold", fold, Fold)
        admit_flag("from_base", from_base)
        folding = Folding(self._scope, self.name, self)
        return await folding.fold(fold, self._upto, from_base=from_base)

    async def truncate(self, upto: int, *folds: Fold) -> int:
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
        if self._upto is not None:
            raise InvalidError(f"{self!r} is the stream as it was; truncate the stream itself")
        return await truncate(self._scope, self.name, Folding(self._scope, self.name, self), upto, folds)
