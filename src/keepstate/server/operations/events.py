"""Operations on events: streams, reading, appending and following."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec

from keepstate.engine.events.record import Event
from keepstate.engine.space.space import Transaction
from keepstate.server.operations.values import read_value, show, write_once
from keepstate.server.table import (
    Call,
    Cursor,
    InSpace,
    Instant,
    Operation,
    PageLimit,
    StreamEvent,
)

StreamName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Label = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_STREAMS_AT_ONCE = 1_000
_SCANNED_AT_ONCE = 10_000
"""The largest number of events that a request with filters reads."""
_PAGE = 1_000


class StoredEvent(msgspec.Struct, frozen=True):
    """An event. With `is_cut`, its data is too large for a stream: read it with `listEvents`."""

    position: str | None
    stream: str
    data: Any
    recorded_at: Instant
    author: str | None
    id: str | None
    type: str | None
    cause: str | None
    correlation: str | None
    is_cut: bool = False


class EventPage(msgspec.Struct, frozen=True):
    """A page of events; `next` is the position to pass as `after`, or as `before` with `reverse`.

    `scanned` is the number of events that were read. With filters it may be more than `items` has, and a
    page without items may have a `next`: a request reads at most 10,000 events.
    """

    items: list[StoredEvent]
    next: str | None
    scanned: int


class StreamList(msgspec.Struct, frozen=True):
    """The names of the streams of a space, the first 1,000."""

    items: list[str]
    is_complete: bool


class AppendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Events to append in one batch. An event whose id is in the stream is not appended again."""

    events: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=490)]
    ids: list[Label | None] | None = None
    type: Label | None = None
    correlation: Label | None = None
    cause: Label | None = None


class AppendResult(msgspec.Struct, frozen=True):
    """The number of events that were given, and the revision; 0 if all of them were there before."""

    count: int
    revision: int


class StreamQuery(InSpace, frozen=True, kw_only=True):
    """A stream of a space."""

    stream: StreamName = "main"


class FilterQuery(StreamQuery, frozen=True, kw_only=True):
    """The events of a stream that fit all filters.

    `type` is a name, of any version, or `name@version`. `author` is compared whole. `text` is part of the
    data as JSON, in upper or lower case.
    """

    type: Label | None = None
    author: Label | None = None
    text: Label | None = None

    def takes_all(self) -> bool:
        """Return whether there is no filter."""
        return self.type is None and self.author is None and self.text is None

    def takes(self, event: StoredEvent) -> bool:
        """Return whether an event fits the filters."""
        if self.type is not None and self.type not in (event.type, (event.type or "").rpartition("@")[0]):
            return False
        if self.author is not None and event.author != self.author:
            return False
        return self.text is None or self.text.casefold() in _json_of(event.data).casefold()


class EventsQuery(FilterQuery, frozen=True, kw_only=True):
    """A page of a stream."""

    after: Cursor | None = None
    before: Cursor | None = None
    reverse: bool = False
    limit: PageLimit = 100


class FollowQuery(FilterQuery, frozen=True, kw_only=True):
    """The events of a stream, from its beginning without `after`."""

    after: Cursor | None = None


async def list_events(call: Call, query: EventsQuery) -> EventPage:
    """Return one page of events."""
    if query.takes_all():
        found = await _read(call, query, query.after, query.before, query.limit)
        more = found[-1].position if len(found) == query.limit else None
        return EventPage(found, more, len(found))
    items: list[StoredEvent] = []
    after, before, scanned = query.after, query.before, 0
    while scanned < _SCANNED_AT_ONCE:
        page = await _read(call, query, after, before, _PAGE)
        for event in page:
            scanned += 1
            if query.takes(event):
                items.append(event)
                if len(items) == query.limit:
                    return EventPage(items, event.position, scanned)
        if len(page) < _PAGE:
            return EventPage(items, None, scanned)
        after, before = (after, page[-1].position) if query.reverse else (page[-1].position, before)
    return EventPage(items, before if query.reverse else after, scanned)


async def _read(
    call: Call, query: EventsQuery, after: str | None, before: str | None, limit: int
) -> list[StoredEvent]:
    """Return the next events of a stream, whether they fit the filters or not."""
    found = await call.space(query).events.read(
        stream=query.stream,
        after=after,
        before=before,
        reverse=query.reverse,
        limit=limit,
        unreadable="raw",
    )
    return [_event(event) for event in found]


def _json_of(data: Any) -> str:
    return msgspec.json.encode(data).decode("utf-8")


async def append_events(call: Call, query: StreamQuery, body: AppendRequest) -> AppendResult:
    """Append events."""
    events = [read_value(raw) for raw in body.events]

    async def work(tx: Transaction) -> int:
        await tx.events.append(
            *events,
            stream=query.stream,
            id=body.ids,
            type=body.type,
            cause=body.cause,
            correlation=body.correlation,
        )
        return len(events)

    count, revision = await write_once(call, call.space(query), f"appendEvents {query.stream}", work, int)
    return AppendResult(count, revision)


async def list_streams(call: Call, query: InSpace) -> StreamList:
    """Return the names of streams."""
    names: list[str] = []
    async for name in call.space(query).events.streams():
        if len(names) == _STREAMS_AT_ONCE:
            return StreamList(names, is_complete=False)
        names.append(name)
    return StreamList(names, is_complete=True)


async def follow_events(call: Call, query: FollowQuery) -> AsyncIterator[StreamEvent]:
    """Yield the events of a stream that fit the filters, and then each as it comes."""
    after = call.last_event_id or query.after
    async for event in call.space(query).events.follow(stream=query.stream, after=after):
        shown = _event(event)
        if not query.takes(shown):
            continue
        short = msgspec.structs.replace(shown, data=None, is_cut=True)
        yield StreamEvent(shown, event.position, short=short)


def _event(event: Event) -> StoredEvent:
    return StoredEvent(
        event.position,
        event.stream,
        show(event.data),
        event.recorded_at,
        event.author,
        event.id,
        event.type,
        event.cause,
        event.correlation,
    )


OPERATIONS = (
    Operation(
        method="GET", path="/v1/events", name="listEvents", summary="Read the events of a stream.",
        right="read", query=EventsQuery, run=list_events, answer=EventPage,
    ),
    Operation(
        method="POST", path="/v1/events", name="appendEvents", summary="Append events to a stream.",
        right="write", query=StreamQuery, run=append_events, answer=AppendResult, body=AppendRequest,
        takes_key=True,
    ),
    Operation(
        method="GET", path="/v1/events/streams", name="listStreams", summary="List the streams of a space.",
        right="read", query=InSpace, run=list_streams, answer=StreamList,
    ),
    Operation(
        method="GET", path="/v1/events/follow", name="followEvents",
        summary="Follow the events of a stream.", right="read", query=FollowQuery, run=follow_events,
        answer=StoredEvent, is_stream=True,
    ),
)  # fmt: skip
