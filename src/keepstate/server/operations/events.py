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
    """A page of events; `next` is the position to pass as `after`, or as `before` with `reverse`."""

    items: list[StoredEvent]
    next: str | None


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


class EventsQuery(StreamQuery, frozen=True, kw_only=True):
    """A page of a stream."""

    after: Cursor | None = None
    before: Cursor | None = None
    reverse: bool = False
    limit: PageLimit = 100


class FollowQuery(StreamQuery, frozen=True, kw_only=True):
    """The events of a stream, from its beginning without `after`."""

    after: Cursor | None = None


async def list_events(call: Call, query: EventsQuery) -> EventPage:
    """Return one page of events."""
    found = await call.space(query).events.read(
        stream=query.stream,
        after=query.after,
        before=query.before,
        reverse=query.reverse,
        limit=query.limit,
        unreadable="raw",
    )
    more = found[-1].position if len(found) == query.limit else None
    return EventPage([_event(event) for event in found], more)


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
    """Yield the events of a stream, and then each as it comes."""
    after = call.last_event_id or query.after
    async for event in call.space(query).events.follow(stream=query.stream, after=after):
        shown = _event(event)
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
