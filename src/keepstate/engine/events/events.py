"""Ordered streams of events in a space.

Appends never conflict: the store completes each event's key with the revision and the index in the batch. The
numbers of all streams of a space are therefore in one order, and a reader that continues after a number
misses nothing. Each append also rewrites the head of its stream without reading it, so that `expected` can
be checked against the version of the head.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any, Protocol, cast

import msgspec

from keepstate._runner import Mode
from keepstate.engine.events.folds import FoldEntry, Folding, ReadPoint, is_after
from keepstate.engine.events.record import (
    ANY,
    EXISTS,
    NO_STREAM,
    Event,
    EventRecord,
    Expected,
    LateMark,
    append_records,
    build_details,
    check_ids,
    check_number,
    check_stream,
    decode_event,
    decode_listed_event,
    event_id_key,
    event_key,
    events_prefix,
    head_key,
    index_bytes,
    is_drop_end,
    key_after,
    pruned_error,
    read_ids,
    read_number,
    read_stamp,
    removed_digest,
    stamp_at,
    to_number,
)
from keepstate.engine.events.reducers import Fold, Reducer
from keepstate.engine.events.truncation import drop_stream, truncate
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_flag, require_instance
from keepstate.engine.kernel.executor import ATTEMPTS, Executor
from keepstate.engine.kernel.large_values import MANIFEST_BYTE
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.kernel.store_abilities import listen
from keepstate.engine.kernel.stored import corrupt_error, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import IfUnreadable, check_unreadable
from keepstate.errors import CompactedError, ConflictError, HistoryLostError, InvalidError, KeepstateError
from keepstate.stores.protocol import ABSENT, SCAN_LIMIT, Entry
from keepstate.values import limits
from keepstate.values.key import Stamp, stamp_suffix, unpack
from keepstate.values.types import Missing

_LONGEST_WAIT_S = 5.0
_EVENTS_BY_APPEND = 990
_EVENTS_WITH_IDS = 490
_STAMP_TAG = stamp_suffix(0, 0)[:1]
"""The byte after the stream's name in event keys. It excludes the keys of stream `a\\0` from stream `a`."""


class Events:
    """The event streams of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __repr__(self) -> str:
        return f"<Events of {self._executor.name!r}>"

    @property
    def executor(self) -> Executor:
        """The executor of the space; for the layers above."""
        return self._executor

    def stream(self, name: str = "main") -> EventStream:
        """Return one stream, without a call to the store."""
        return EventStream.of(self, name)

    async def streams(self) -> AsyncIterator[str]:
        """Yield the names of the streams that have had an event."""
        async for _, entry in self._executor.scan(layout.HEADS):
            yield str(unpack(entry.key[len(layout.HEADS) :])[0])

    async def append(
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
        check_stream(stream)
        if not isinstance(expected, Expected) and expected.__class__ is not int:
            raise InvalidError(f"`expected` is {expected!r}; give ANY, NO_STREAM, EXISTS or a number")
        most = _EVENTS_BY_APPEND if id is None else _EVENTS_WITH_IDS
        if not 0 < len(events) <= most:
            raise InvalidError(f"{len(events)} events were given to append; give 1 to {most}")
        ids = check_ids(id, len(events))
        now_ms = self._executor.clock.now_ms()
        records: list[bytes] = []
        for index, event in enumerate(events):
            details = build_details(event, type, cause, correlation)
            if ids and (own := ids[index]) is not None:
                details["id"] = own
            encoded = self._executor.encode(event, events_prefix(stream))
            record = EventRecord(encoded, now_ms, self._executor.author, details)
            records.append(msgspec.msgpack.encode(record))
        if ids:
            return await self._append_once(stream, records, ids, expected)

        async def work(unit: Unit) -> int:
            await self._expect(unit, stream, expected)
            return append_records(unit, stream, records)

        index, revision = await self._executor.run(work, attempts=ATTEMPTS if expected is ANY else 1)
        return to_number(Stamp(revision, index)) if revision else 0

    async def _append_once(
        self, stream: str, records: Sequence[bytes], ids: Sequence[str | None], expected: Expected | int
    ) -> int:
        """Append the events whose ids are not in the stream, and return the number of the last event."""
        store, space = await self._executor.store(), self._executor.stored_name
        keys = [None if id is None else event_id_key(store, space, stream, id) for id in ids]
        named = [key for key in keys if key is not None]

        async def work(unit: Unit) -> Entry | int:
            known = {entry.key for entry in await read_ids(unit, stream, named) if entry is not None}
            missing = [index for index, key in enumerate(keys) if key is None or key not in known]
            if missing:
                await self._expect(unit, stream, expected)
            place = 0
            for index in missing:
                place = append_records(unit, stream, [records[index]])
                if (key := keys[index]) is not None:
                    unit.put(key, index_bytes(place))
            if keys[-1] is None:
                return place
            (last,) = await unit.read(keys[-1])
            assert last is not None
            return last

        last: Entry | int
        try:
            last, revision = await self._executor.run(work, attempts=ATTEMPTS if expected is ANY else 1)
        except ConflictError:
            # The conflicting write may be this same append, sent earlier by the same caller.
            known = (await self._executor.run(lambda unit: read_ids(unit, stream, named)))[0]
            if self._executor.gathers or None in known or None in keys or known[-1] is None:
                raise
            last, revision = known[-1], 0
        if isinstance(last, int):
            return to_number(Stamp(revision, last)) if revision else 0
        written = last.version or revision  # an event of the current transaction does not have a version yet
        return to_number(Stamp(written, int.from_bytes(last.value))) if written else 0

    async def _expect(self, unit: Unit, stream: str, expected: Expected | int) -> None:
        head = head_key(stream)
        if expected is ANY:
            return
        if expected is NO_STREAM and not unit.knows(head):
            unit.check(head, version=ABSENT, argument="expected=NO_STREAM")
            return
        was_known = unit.knows(head)
        last = await self._last(unit, stream)
        if not _matches(expected, last):
            found = "does not exist" if last is None else f"ends at {last}"
            wanted = expected.name if isinstance(expected, Expected) else expected
            raise ConflictError(
                f"stream {stream!r} of {self._executor.name!r} {found}, but expected={wanted} was required. "
                "Read it again",
                space=self._executor.name,
                key=head,
                actual=last or 0,
            )
        if expected is EXISTS and not was_known:  # otherwise a stricter check may exist already
            entry = await unit.get(head)
            unit.check(head, created=entry.created if entry else 0, argument="expected=EXISTS")

    async def _last(self, unit: Unit, stream: str) -> int | None:
        entry = await unit.get(head_key(stream))
        if entry is None:
            return None
        if len(entry.value) != 2:
            raise corrupt_error(describe(entry.key), "a stream's head must be the index of its last event")
        return to_number(Stamp(entry.version, int.from_bytes(entry.value)))

    async def last(self, stream: str = "main") -> int | None:
        """Return the number of a stream's last event, or None if the stream does not exist."""
        check_stream(stream)
        return (await self._executor.run(lambda unit: self._last(unit, stream)))[0]

    async def read(
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
        check_stream(stream)
        limits.admit_count("limit", limit)
        if not check_flag("reverse", reverse) and before is None:
            return await self.page(
                stream, after, limit, whole=after is not None, unreadable=check_unreadable(unreadable)
            )
        check_unreadable(unreadable)
        return await self._read_between(stream, after, before, limit, reverse=reverse, unreadable=unreadable)

    async def _read_between(
        self,
        stream: str,
        after: str | int | None,
        before: str | int | None,
        limit: int,
        *,
        reverse: bool,
        unreadable: IfUnreadable,
    ) -> list[Event]:
        """Return events between two events, in either order."""
        prefix, positions = events_prefix(stream), await self._positions()
        first = None if after is None else await self.find("after", after, stream)
        end = None if before is None else await self.find("before", before, stream)
        low = None if first is None else event_key(stream, first)
        high = None if end is None else event_key(stream, end)
        own = [] if before is not None else self._executor.appended(prefix)
        opened = (decode_event(self._executor, record, None, stream) for record in own)
        appended = [event for event in opened if event is not None]
        found = appended[::-1][:limit] if reverse else []
        target, at_once = positions.target(prefix), limit + 1 if limit < SCAN_LIMIT else None
        if len(found) == limit or (low is not None and high is not None and low >= high):
            return found
        async for unit, entry in self._executor.scan(
            prefix + _STAMP_TAG, after=low, before=high, reverse=reverse, at_once=at_once
        ):
            number = to_number(read_stamp(entry))
            mark = target + positions.digest(entry.value)
            stored = await unit.value(entry)
            event = decode_listed_event(self._executor, stored, number, stream, mark, unreadable)
            if isinstance(event, Missing):
                continue
            if event is None:  # a truncation end: earlier events are deleted, or about to be
                if after is not None:
                    raise pruned_error(self._executor.name, stream, number)
                if reverse:
                    return found
                found.clear()
                continue
            found.append(event)
            if len(found) == limit:
                return found
        if not found and not appended and first is not None:
            await self._require_not_lost(first)
        if not found and end is not None:
            await self._require_not_pruned(stream, end)
        return found if reverse else [*found, *appended][:limit]

    async def find(self, what: str, given: str | int, stream: str) -> int:
        """Return the number of an event, after verifying that the event of a position is still there."""
        if not isinstance(given, str):
            check_number(what, given)
            return given
        positions = await self._positions()
        number, digest = positions.event_in(what, given, events_prefix(stream))
        found = await self._executor.read_once(event_key(stream, number))
        if found is None or digest not in (positions.digest(found[0].value), removed_digest(found[1])):
            raise await self._missing_error(stream, number)
        return number

    async def page(
        self,
        stream: str,
        after: str | int | None,
        limit: int,
        *,
        whole: bool,
        unreadable: IfUnreadable | None = None,
    ) -> list[Event]:
        """Return events in order, as `read` does.

        Args:
            stream, after, limit: As for `read`.
            whole: Whether to raise `PrunedError` if events after `after` were truncated.
            unreadable: As for `read`; None raises errors that do not name this option.
        """
        found: list[Event] = []
        positions, prefix = await self._positions(), events_prefix(stream)
        expected: bytes | None = None  # the digest that the first event read must have
        if isinstance(after, str):
            after, expected = positions.event_in("after", after, prefix)
        index, target = key_after(stream, after, inclusive=expected is not None), positions.target(prefix)
        at_once = min(limit + 1, limits.PAGE_ROWS)
        async for unit, entry in self._executor.scan(prefix + _STAMP_TAG, after=index, at_once=at_once):
            number, stored = read_number(entry), entry.value
            if stored.startswith(MANIFEST_BYTE):
                stored = await unit.value(entry)
            if expected is not None:
                digests = positions.digest(entry.value), removed_digest(stored)
                if number != after or expected not in digests:
                    break
                expected = None
                continue
            mark = LateMark(positions, target, entry.value)
            event = decode_listed_event(self._executor, stored, number, stream, mark, unreadable)
            if isinstance(event, Missing):
                continue
            if event is None:  # a truncation end: earlier events are deleted, or about to be
                if whole and not (after is None and is_drop_end(await unit.value(entry))):
                    raise pruned_error(self._executor.name, stream, number)
                found.clear()
                continue
            found.append(event)
            if len(found) == limit:
                return found
        if expected is not None and after is not None:
            raise await self._missing_error(stream, after)
        if after is not None and not found:
            await self._require_not_lost(after)
        own = self._executor.appended(events_prefix(stream))[: limit - len(found)]
        opened = (decode_event(self._executor, record, None, stream) for record in own)
        return [*found, *(event for event in opened if event is not None)]

    async def drop(self, stream: str) -> int:
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
        check_stream(stream)
        return await drop_stream(self._executor, stream)

    async def _positions(self) -> Positions:
        return Positions(await self._executor.store(), self._executor.stored_name, self._executor.name)

    async def _missing_error(self, stream: str, number: int) -> KeepstateError:
        """Return the error for a missing event: it was truncated, or the store lost it."""
        async for unit, entry in self._executor.scan(events_prefix(stream) + _STAMP_TAG):
            end = to_number(read_stamp(entry))
            if end > number and removed_digest(await unit.value(entry)) is not None:
                return pruned_error(self._executor.name, stream, end)
        revision = stamp_at(number).revision
        store = await self._executor.store()
        try:
            await store.changes(self._executor.stored_name, revision, limit=1)
        except CompactedError as error:
            return CompactedError(
                f"space {self._executor.name!r} no longer has event {number} of stream {stream!r}, and its "
                f"log begins after revision {error.floor}: the stream was expunged, or the store lost the "
                "event. Read the stream from its start",
                space=self._executor.name,
                floor=error.floor,
            )
        except HistoryLostError:
            pass  # told below
        return (await self._positions()).lost(revision, f"event {number} of stream {stream!r}")

    async def _require_not_pruned(self, stream: str, before: int) -> None:
        """Raise `PrunedError` if the stream was truncated past a number below which no event was found."""
        async for unit, entry in self._executor.scan(events_prefix(stream) + _STAMP_TAG, at_once=1):
            number = to_number(read_stamp(entry))
            if number > before and removed_digest(await unit.value(entry)) is not None:
                raise pruned_error(self._executor.name, stream, number)
            return

    async def _require_not_lost(self, number: int) -> None:
        """Raise `HistoryLostError` for a number beyond the space's revision, instead of waiting for it."""
        store, revision = await self._executor.store(), stamp_at(number).revision
        now = (await store.read(self._executor.stored_name, [])).revision
        if revision > now:
            raise HistoryLostError(
                f"space {self._executor.name!r} is at revision {now}, below revision {revision} of event "
                f"{number}: the number belongs to another space, or the store lost the event",
                space=self._executor.name,
                revision=revision,
            )

    async def follow(self, *, stream: str = "main", after: str | int | None = None) -> AsyncIterator[Event]:
        """Yield events in order, then wait for new ones. The iteration never ends by itself.

        Raises:
            HistoryLostError: As for `read`.
        """
        self._executor.require_outside_transaction("following a stream")
        store = await self._executor.store()
        async with listen(store, self._executor.stored_name) as hints:
            while True:
                events = await self.read(stream=stream, after=after)
                for event in events:
                    after = event.position
                    yield event
                if not events:
                    await hints.wait(_LONGEST_WAIT_S)


class HasEvents(Protocol):
    """A space, or a transaction on one."""

    @property
    def events(self) -> Any:
        """The streams of the space."""
        ...


class EventStream:
    """One stream of events: `EventStream(space, "orders")` is `space.events.stream("orders")`.

    Args:
        place: The space, or a transaction on it.
        name: The name of the stream; at most 200 bytes of UTF-8.

    Attributes:
        name: The name of the stream.
    """

    name: str

    def __init__(self, index: HasEvents, name: str = "main", *, _mode: Mode = "async") -> None:
        given: Any = getattr(index, "_inner", index) if _mode == "blocking" else index
        events: Any = getattr(given, "events", None)
        executor = getattr(events, "_executor", None)
        if not isinstance(executor, Executor):
            raise InvalidError(f"{index!r} has no events; give a space or a transaction of {_mode} mode")
        if executor.runner.mode != _mode:
            right = "keepstate" if executor.runner.mode == "async" else "keepstate.sync"
            raise InvalidError(f"{index!r} is {executor.runner.mode}; pass it to the EventStream of {right}")
        check_stream(name)
        self._events, self._executor, self.name = cast(Events, events), executor, name
        self._upto: ReadPoint = None

    @classmethod
    def of(cls, events: Events, name: str, upto: ReadPoint = None) -> EventStream:
        """Return a stream of a space, optionally as of a past time, without a call to the store."""
        check_stream(name)
        stream = cls.__new__(cls)
        executor = events.executor
        stream._events, stream._executor, stream.name, stream._upto = events, executor, name, upto
        return stream

    @property
    def executor(self) -> Executor:
        """The executor of the space; for the layers above."""
        return self._executor

    def __repr__(self) -> str:
        at = "" if self._upto is None else f" at {self._upto}"
        return f"<EventStream {self.name!r}{at} of {self._events!r}>"

    async def append(
        self,
        *events: object,
        expected: Expected | int = ANY,
        id: str | Sequence[str | None] | None = None,
        type: str | None = None,
        cause: Event | str | None = None,
        correlation: str | None = None,
    ) -> int:
        """Append events in one batch, and return the number of the last one; see `Events.append`."""
        if self._upto is not None:
            raise InvalidError(f"{self!r} is a past state of the stream; append to the stream itself")
        return await self._events.append(
            *events,
            stream=self.name,
            expected=expected,
            id=id,
            type=type,
            cause=cause,
            correlation=correlation,
        )

    async def read(
        self,
        *,
        after: str | int | None = None,
        before: str | int | None = None,
        reverse: bool = False,
        limit: int = 256,
        unreadable: IfUnreadable = "raise",
    ) -> list[Event]:
        """Return events in order, by default at most 256; see `Events.read`."""
        if self._upto is not None and check_flag("reverse", reverse):
            upto = await self.last() if isinstance(self._upto, datetime) else self._upto
            if upto is None:
                return []
            if before is not None:
                upto = min(upto, await self._events.find("before", before, self.name) - 1)
            return await self._events.read(
                stream=self.name,
                after=after,
                before=upto + 1,
                reverse=True,
                limit=limit,
                unreadable=unreadable,
            )
        return self._within(
            await self._events.read(
                stream=self.name,
                after=after,
                before=before,
                reverse=reverse,
                limit=limit,
                unreadable=unreadable,
            )
        )

    async def page(self, after: int | None, limit: int, *, whole: bool) -> list[Event]:
        """Return events in order; see `Events.page`."""
        return await self._events.page(self.name, after, limit, whole=whole)

    def _within(self, events: list[Event]) -> list[Event]:
        for index, event in enumerate(events):
            if is_after(event, self._upto):
                return events[:index]
        return events

    async def follow(self, *, after: str | int | None = None) -> AsyncIterator[Event]:
        """Yield events in order, then wait for new ones. The iteration never ends by itself."""
        if self._upto is not None:
            raise InvalidError(f"{self!r} is a past state of the stream; follow the stream itself")
        async for event in self._events.follow(stream=self.name, after=after):
            yield event

    async def drop(self) -> int:
        """Delete the stream, and return the number of deleted events; see `Events.drop`."""
        if self._upto is not None:
            raise InvalidError(f"{self!r} is a past state of the stream; drop the stream itself")
        return await self._events.drop(self.name)

    async def last(self) -> int | None:
        """Return the number of the last event, or None if the stream is empty."""
        if self._upto is None:
            return await self._events.last(self.name)
        number = after = None
        while events := await self.read(after=after, limit=1_024):
            number = after = events[-1].number
        return number

    # ---- states

    def at(self, moment: int | datetime) -> EventStream:
        """Return the stream as of a past event or time, without a call to the store.

        Args:
            moment: The number of the last event to include, or an aware datetime: the stream then ends before
                the first event that was recorded later.
        """
        require_instance("moment", moment, int, datetime)
        if not isinstance(moment, datetime):
            check_number("moment", moment)
        elif moment.tzinfo is None:
            raise InvalidError(f"`moment` is {moment!r}, without a time zone; give one with tzinfo")
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
        fold = Fold(reducer, initial, cache_every, name, version)
        return (await self.fold_entry(fold, from_base=from_base)).state

    async def fold_entry(self, fold: Fold, *, from_base: bool = False) -> FoldEntry:
        """Fold as `fold` does. Return the state with the number of its last event, for `expected`."""
        require_instance("fold", fold, Fold)
        check_flag("from_base", from_base)
        folding = Folding(self._executor, self.name, self)
        return await folding.fold(fold, self._upto, from_base=from_base)

    async def truncate(self, upto: int, *folds: Fold) -> int:
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
        if self._upto is not None:
            raise InvalidError(f"{self!r} is a past state of the stream; truncate the stream itself")
        return await truncate(
            self._executor, self.name, Folding(self._executor, self.name, self), upto, folds
        )


def _matches(expected: Expected | int, last: int | None) -> bool:
    if isinstance(expected, Expected):
        return (last is None) is (expected is NO_STREAM)
    return last == expected
