"""Events: what happened in a space, in order, in streams.

Appending never contends: the store completes each event's key with the revision and the place in the batch,
so that positions of all streams of a space are in one order, and a reader that goes on after a position
misses nothing. Each append also rewrites the head of its stream, blindly, so that `expected` can be checked
against the head's version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import msgspec

from keepstate.engine import layout
from keepstate.engine.describing import describe
from keepstate.engine.hearing import hear
from keepstate.engine.scope import ATTEMPTS, Scope
from keepstate.engine.stored import StoredMs, damaged, opened
from keepstate.engine.unit import Unit
from keepstate.errors import ConflictError, CorruptError, HistoryLostError, InvalidError
from keepstate.stores.protocol import ABSENT, LAST_REVISION, Entry
from keepstate.values import limits
from keepstate.values.key import Stamp, stamp_suffix, unpack

_LONGEST_WAIT_S = 5.0
_INDEX_BITS = 16
_EVENTS_BY_APPEND = 990
_STAMP_TAG = stamp_suffix(0, 0)[:1]
"""Follows a stream's own name in the keys of its events; what follows in the keys of `a\\0` is no stamp."""


class Expected(Enum):
    """What a stream may be like before an append."""

    ANY = "any"
    NO_STREAM = "no stream"
    EXISTS = "exists"


ANY: Final = Expected.ANY
"""Whatever stands in the stream."""
NO_STREAM: Final = Expected.NO_STREAM
"""Only if nothing was ever appended to it."""
EXISTS: Final = Expected.EXISTS
"""Only if something was."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        position: Its place among all events of the space; higher is later. None if the transaction that reads
            it has
            appended it itself.
        stream: The stream that it is in.
        data: What was appended; a copy.
        recorded_at: When, by the clock of who appended it. No order follows from it.
        author: Who appended it, or None.
    """

    position: int | None
    stream: str
    data: Any
    recorded_at: datetime
    author: str | None


class EventRecord(msgspec.Struct, array_like=True, frozen=True):
    """An event as it is stored, in its place."""

    data: bytes
    recorded_at_ms: StoredMs
    author: str | None = None
    details: dict[str, Any] = {}


class Events:
    """The event streams of a space, or of a transaction on it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"<Events of {self._scope.name!r}>"

    def stream(self, name: str = "main") -> EventStream:
        """Returns one stream; asks the store nothing."""
        _admit_stream(name)
        return EventStream(self, name)

    async def append(self, *events: object, stream: str = "main", expected: Expected | int = ANY) -> int:
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
        _admit_stream(stream)
        if not isinstance(expected, Expected) and type(expected) is not int:
            raise InvalidError(f"`expected` is {expected!r}; give ANY, NO_STREAM, EXISTS or a position")
        if not 0 < len(events) <= _EVENTS_BY_APPEND:
            raise InvalidError(f"{len(events)} events were given to append; give 1 to {_EVENTS_BY_APPEND}")
        now_ms = self._scope.clock.now_ms()
        records = [
            msgspec.msgpack.encode(
                EventRecord(self._scope.encode(event, _prefix(stream)), now_ms, self._scope.author)
            )
            for event in events
        ]

        async def work(unit: Unit) -> int:
            await self._expect(unit, stream, expected)
            index = -1
            for record in records:
                index = unit.append(_prefix(stream), record)
            unit.put(_head(stream), index.to_bytes(2, "big"))
            return index

        index, revision = await self._scope.run(work, attempts=ATTEMPTS if expected is ANY else 1)
        return _position(Stamp(revision, index)) if revision else 0

    async def _expect(self, unit: Unit, stream: str, expected: Expected | int) -> None:
        head = _head(stream)
        if expected is ANY:
            return
        if expected is NO_STREAM and not unit.knows(head):
            unit.check(head, version=ABSENT, asked="expected=NO_STREAM")
            return
        was_known = unit.knows(head)
        last = await self._last(unit, stream)
        if not _is_as(expected, last):
            found = "is absent" if last is None else f"ends at {last}"
            asked = expected.name if isinstance(expected, Expected) else expected
            raise ConflictError(
                f"stream {stream!r} of {self._scope.name!r} {found}, and expected={asked} was asked; "
                "read it again",
                space=self._scope.name,
                key=head,
                actual=last or 0,
            )
        if expected is EXISTS and not was_known:  # else a stricter check may stand already
            entry = await unit.get(head)
            unit.check(head, created=entry.created if entry else 0, asked="expected=EXISTS")

    async def _last(self, unit: Unit, stream: str) -> int | None:
        entry = await unit.get(_head(stream))
        if entry is None:
            return None
        if len(entry.value) != 2:
            raise damaged(describe(entry.key), "a stream's head holds the index of its last event")
        return _position(Stamp(entry.version, int.from_bytes(entry.value)))

    async def last(self, stream: str = "main") -> int | None:
        """Returns the position of a stream's last event, or None if it has none."""
        _admit_stream(stream)
        return (await self._scope.run(lambda unit: self._last(unit, stream)))[0]

    async def read(self, *, stream: str = "main", after: int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order.

        Args:
            stream: Which stream.
            after: Starts behind this position; without it, at the first event.
            limit: How many at the most.

        Raises:
            HistoryLostError: The space has never come as far as `after`: the position is another space's, or
                the store lost what stood there.
        """
        _admit_stream(stream)
        limits.admit_count("limit", limit)
        found: list[Event] = []
        place = _after(stream, after)
        async for unit, entry in self._scope.scan(_prefix(stream) + _STAMP_TAG, after=place):
            found.append(await self._event(unit, entry, stream))
            if len(found) == limit:
                return found
        if after is not None and not found:
            await self._refuse_lost(after)
        own = self._scope.appended(_prefix(stream))[: limit - len(found)]
        return [*found, *(self._opened(record, None, stream) for record in own)]

    async def _refuse_lost(self, position: int) -> None:
        """Raises where a reader would wait behind a position until others have filled up to it again."""
        store, revision = await self._scope.store(), position >> _INDEX_BITS
        now = (await store.read(self._scope.stored_name, [])).revision
        if revision > now:
            raise HistoryLostError(
                f"space {self._scope.name!r} is at revision {now}, below {revision} of position {position}: "
                "the position is another space's, or the store lost it",
                space=self._scope.name,
                revision=revision,
            )

    async def follow(self, *, stream: str = "main", after: int | None = None) -> AsyncIterator[Event]:
        """Yields events in order, and then each new one when it comes; it never ends by itself.

        Raises:
            HistoryLostError: As for `read`.
        """
        self._scope.refuse_inside("following a stream")
        store = await self._scope.store()
        async with hear(store, self._scope.stored_name) as hints:
            while True:
                events = await self.read(stream=stream, after=after)
                for event in events:
                    after = event.position
                    yield event
                if not events:
                    await hints.wait(_LONGEST_WAIT_S)

    async def _event(self, unit: Unit, entry: Entry, stream: str) -> Event:
        stamp = unpack(entry.key[1:])[-1]
        if not isinstance(stamp, Stamp):
            raise damaged(describe(entry.key), "an event's key ends with a stamp")
        return self._opened(await unit.value(entry), _position(stamp), stream)

    def _opened(self, stored: bytes, position: int | None, stream: str) -> Event:
        place = f"event {position} of stream {stream!r} of {self._scope.name!r}"
        record = opened(stored, EventRecord, place)
        try:
            data = self._scope.decode(record.data, _prefix(stream))
        except CorruptError as error:
            raise CorruptError(f"{place} is damaged: {error}", space=self._scope.name, place=place) from error
        recorded_at = datetime.fromtimestamp(record.recorded_at_ms / 1000, UTC)
        return Event(position, stream, data, recorded_at, record.author)


class EventStream:
    """One stream of events.

    Attributes:
        name: Its name in the space.
    """

    def __init__(self, events: Events, name: str) -> None:
        self._events, self.name = events, name

    def __repr__(self) -> str:
        return f"<EventStream {self.name!r} of {self._events!r}>"

    async def append(self, *events: object, expected: Expected | int = ANY) -> int:
        """Appends events together, and returns the position of the last; see `Events.append`."""
        return await self._events.append(*events, stream=self.name, expected=expected)

    async def read(self, *, after: int | None = None, limit: int = 256) -> list[Event]:
        """Returns events in order; see `Events.read`."""
        return await self._events.read(stream=self.name, after=after, limit=limit)

    async def follow(self, *, after: int | None = None) -> AsyncIterator[Event]:
        """Yields events in order, and then each new one when it comes; it never ends by itself."""
        async for event in self._events.follow(stream=self.name, after=after):
            yield event

    async def last(self) -> int | None:
        """Returns the position of the last event, or None if there is none."""
        return await self._events.last(self.name)


def _is_as(expected: Expected | int, last: int | None) -> bool:
    if isinstance(expected, Expected):
        return (last is None) is (expected is NO_STREAM)
    return last == expected


def _admit_stream(name: str) -> None:
    if type(name) is not str or not 0 < len(name.encode("utf-8", "surrogatepass")) <= limits.SPACE_BYTES:
        raise InvalidError(f"stream {name!r} has no name of 1 to {limits.SPACE_BYTES} bytes of UTF-8")


def _prefix(stream: str) -> bytes:
    return layout.stream_key(layout.EVENTS, stream)


def _head(stream: str) -> bytes:
    return layout.stream_key(layout.HEADS, stream)


def _position(stamp: Stamp) -> int:
    return stamp.revision << _INDEX_BITS | stamp.index


def _after(stream: str, position: int | None) -> bytes | None:
    if position is None:
        return None
    if type(position) is not int or not 0 <= position >> _INDEX_BITS <= LAST_REVISION:
        raise InvalidError(f"`after` is {position!r}; give the position of an event")
    return _prefix(stream) + stamp_suffix(position >> _INDEX_BITS, position & ((1 << _INDEX_BITS) - 1))
