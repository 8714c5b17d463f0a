"""Events: what happened in a space, in order, in streams.

Appending never contends: the store completes each event's key with the revision and the place in the batch,
so that numbers of all streams of a space are in one order, and a reader that goes on after a number
misses nothing. Each append also rewrites the head of its stream, blindly, so that `expected` can be checked
against the head's version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from keepstate.engine import layout
from keepstate.engine.content_names import event_id_key
from keepstate.engine.describing import describe
from keepstate.engine.event_record import (
    ANY,
    EXISTS,
    NO_STREAM,
    Event,
    EventRecord,
    Expected,
    admit_ids,
    admit_number,
    admit_stream,
    details_of,
    event_of,
    number_of,
    stamp_at,
)
from keepstate.engine.hearing import hear
from keepstate.engine.positions import Positions
from keepstate.engine.scope import ATTEMPTS, Scope
from keepstate.engine.stored import damaged, opened
from keepstate.engine.streams import EventStream
from keepstate.engine.unit import Unit
from keepstate.errors import ConflictError, HistoryLostError, InvalidError, KeepstateError, PrunedError
from keepstate.stores.protocol import ABSENT, Entry
from keepstate.values import limits
from keepstate.values.key import Stamp, stamp_suffix, unpack

_LONGEST_WAIT_S = 5.0
_EVENTS_BY_APPEND = 990
_EVENTS_WITH_IDS = 490
_STAMP_TAG = stamp_suffix(0, 0)[:1]
"""Follows a stream's own name in the keys of its events; what follows in the keys of `a\\0` is no stamp."""


class Events:
    """The event streams of a space, or of a transaction on it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __repr__(self) -> str:
        return f"<Events of {self._scope.name!r}>"

    def stream(self, name: str = "main") -> EventStream:
        """Returns one stream; asks the store nothing."""
        return EventStream.of(self, name)

    async def streams(self) -> AsyncIterator[str]:
        """Yields the names of the streams in which something was appended."""
        async for _, entry in self._scope.scan(layout.HEADS):
            yield str(unpack(entry.key[len(layout.HEADS) :])[0])

    async def append(
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
        admit_stream(stream)
        if not isinstance(expected, Expected) and expected.__class__ is not int:
            raise InvalidError(f"`expected` is {expected!r}; give ANY, NO_STREAM, EXISTS or a number")
        most = _EVENTS_BY_APPEND if id is None else _EVENTS_WITH_IDS
        if not 0 < len(events) <= most:
            raise InvalidError(f"{len(events)} events were given to append; give 1 to {most}")
        ids = admit_ids(id, len(events))
        now_ms = self._scope.clock.now_ms()
        records: list[bytes] = []
        for place, event in enumerate(events):
            details = details_of(event, type, cause, correlation)
            if ids:
                details["id"] = ids[place]
            encoded = self._scope.encode(event, _prefix(stream))
            record = EventRecord(encoded, now_ms, self._scope.author, details)
            records.append(msgspec.msgpack.encode(record))
        if ids:
            return await self._append_once(stream, records, ids, expected)

        async def work(unit: Unit) -> int:
            await self._expect(unit, stream, expected)
            return _append(unit, stream, records)

        index, revision = await self._scope.run(work, attempts=ATTEMPTS if expected is ANY else 1)
        return number_of(Stamp(revision, index)) if revision else 0

    async def _append_once(
        self, stream: str, records: Sequence[bytes], ids: Sequence[str], expected: Expected | int
    ) -> int:
        """Appends the events whose ids the stream does not have, and returns the number of the last."""
        store, space = await self._scope.store(), self._scope.stored_name
        keys = [event_id_key(store, space, stream, id) for id in ids]

        async def work(unit: Unit) -> Entry:
            found = await unit.read(*keys)
            missing = [place for place, entry in enumerate(found) if entry is None]
            if missing:
                await self._expect(unit, stream, expected)
            for place in missing:
                unit.put(keys[place], _index(_append(unit, stream, [records[place]])))
            (last,) = await unit.read(keys[-1])
            assert last is not None
            return last

        try:
            last, revision = await self._scope.run(work, attempts=ATTEMPTS if expected is ANY else 1)
        except ConflictError:
            # Who came first may have been this very append, sent before by the same caller.
            known = (await self._scope.run(lambda unit: unit.read(*keys)))[0]
            if self._scope.gathers or None in known or known[-1] is None:
                raise
            last, revision = known[-1], 0
        written = last.version or revision  # one that the transaction has appended itself has no version yet
        return number_of(Stamp(written, int.from_bytes(last.value))) if written else 0

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
        return number_of(Stamp(entry.version, int.from_bytes(entry.value)))

    async def last(self, stream: str = "main") -> int | None:
        """Returns the number of a stream's last event, or None if it has none."""
        admit_stream(stream)
        return (await self._scope.run(lambda unit: self._last(unit, stream)))[0]

    async def read(
        self, *, stream: str = "main", after: str | int | None = None, limit: int = 256
    ) -> list[Event]:
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
        return await self._read(stream, after, limit, whole=after is not None)

    async def _read(self, stream: str, after: str | int | None, limit: int, *, whole: bool) -> list[Event]:
        """Returns events in order.

        Args:
            stream: Which stream.
            after: Starts behind this number.
            limit: How many at the most.
            whole: Whether to raise `PrunedError` where events between `after` and the first one are gone.
        """
        admit_stream(stream)
        limits.admit_count("limit", limit)
        found: list[Event] = []
        positions, prefix = await self._positions(), _prefix(stream)
        expected: bytes | None = None  # the digest of the event that the first one read has to be
        if isinstance(after, str):
            after, expected = positions.event_in("after", after, prefix)
        place, here = _after(stream, after, inclusive=expected is not None), positions.place(prefix)
        async for unit, entry in self._scope.scan(prefix + _STAMP_TAG, after=place):
            number = number_of(_stamp_in(entry))
            digest = positions.digest(entry.value)
            if expected is not None:
                if number != after or expected not in (digest, _removed(await unit.value(entry))):
                    break
                expected = None
                continue
            event = event_of(self._scope, await unit.value(entry), number, stream, here + digest)
            if event is None:  # what stands before it is gone, or about to go
                if whole:
                    raise _truncated(self._scope.name, stream, number)
                found.clear()
                continue
            found.append(event)
            if len(found) == limit:
                return found
        if expected is not None and after is not None:
            raise await self._missing(stream, after)
        if after is not None and not found:
            await self._refuse_lost(after)
        own = self._scope.appended(_prefix(stream))[: limit - len(found)]
        opened = (event_of(self._scope, record, None, stream) for record in own)
        return [*found, *(event for event in opened if event is not None)]

    async def _positions(self) -> Positions:
        return Positions(await self._scope.store(), self._scope.stored_name, self._scope.name)

    async def _missing(self, stream: str, number: int) -> KeepstateError:
        """Returns the error for an event that is not there: it was truncated, or the store lost it."""
        async for unit, entry in self._scope.scan(_prefix(stream) + _STAMP_TAG):
            end = number_of(_stamp_in(entry))
            if end > number and _removed(await unit.value(entry)) is not None:
                return _truncated(self._scope.name, stream, end)
        revision = stamp_at(number).revision
        return (await self._positions()).lost(revision, f"event {number} of stream {stream!r}")

    async def _refuse_lost(self, number: int) -> None:
        """Raises where a reader would wait behind a number until others have filled up to it again."""
        store, revision = await self._scope.store(), stamp_at(number).revision
        now = (await store.read(self._scope.stored_name, [])).revision
        if revision > now:
            raise HistoryLostError(
                f"space {self._scope.name!r} is at revision {now}, below {revision} of event {number}: "
                "the number is another space's, or the store lost it",
                space=self._scope.name,
                revision=revision,
            )

    async def follow(self, *, stream: str = "main", after: str | int | None = None) -> AsyncIterator[Event]:
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


def _is_as(expected: Expected | int, last: int | None) -> bool:
    if isinstance(expected, Expected):
        return (last is None) is (expected is NO_STREAM)
    return last == expected


def _prefix(stream: str) -> bytes:
    return layout.stream_key(layout.EVENTS, stream)


def _head(stream: str) -> bytes:
    return layout.stream_key(layout.HEADS, stream)


def _index(index: int) -> bytes:
    return index.to_bytes(2, "big")


def _append(unit: Unit, stream: str, records: Sequence[bytes]) -> int:
    """Appends records and rewrites the head of the stream; returns the index of the last one."""
    index = -1
    for record in records:
        index = unit.append(_prefix(stream), record)
    unit.put(_head(stream), _index(index))
    return index


def _stamp_in(entry: Entry) -> Stamp:
    stamp = unpack(entry.key[1:])[-1]
    if not isinstance(stamp, Stamp):
        raise damaged(describe(entry.key), "an event's key ends with a stamp")
    return stamp


def _truncated(space: str, stream: str, number: int) -> PrunedError:
    return PrunedError(
        f"the events of stream {stream!r} of {space!r} up to number {number} were let go; read behind "
        "it, or fold from the state that was kept"
    )


def _after(stream: str, number: int | None, *, inclusive: bool) -> bytes | None:
    if number is None:
        return None
    admit_number("after", number)
    return event_key(stream, number - 1 if inclusive and number else number)


def _removed(stored: bytes) -> bytes | None:
    """Returns the digest of the event that a stream's end stands for, None for an event."""
    record = opened(stored, EventRecord, "an event")
    return record.removed if record.is_end else None


def event_key(stream: str, number: int) -> bytes:
    """Returns the key of the event of a stream at a number."""
    stamp = stamp_at(number)
    return _prefix(stream) + stamp_suffix(stamp.revision, stamp.index)
