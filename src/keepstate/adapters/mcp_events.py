"""`KeepstateEventStore`: the events of MCP's streamable HTTP, so that a client which reconnects misses none.

MCP names a stream by the number of a request, which two sessions may share. So each session has a space of$
its own, and the id of an event is good in its session alone.
"""

from __future__ import annotations

import re
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, Unpack

from keepstate._clock import SystemClock
from keepstate.adapters.base import StoreAdapter, StoreLike, StoreOptions, outlast_cancellation
from keepstate.engine.events.record import Event
from keepstate.engine.kernel.arguments import check_duration_ms
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import HistoryLostError, InvalidError, MissingExtraError, PrunedError
from keepstate.names import DEFAULT_URL, segment

try:
    from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp_types import JSONRPCMessage, jsonrpc_message_adapter
except ImportError as error:
    raise MissingExtraError.of("mcp", "mcp 2") from error

_AT_ONCE: Final = 256
_EVENT_ID: Final = re.compile(r"([^/]{1,56})/([0-9]{1,20})/([0-9a-f]{16})", re.ASCII)
"""A stream, as a segment of a name, the number of the event, and a hash of the session's space."""


class KeepstateEventStore(StoreAdapter, EventStore):
    """The events of an MCP server, for `event_store=` of FastMCP, which tells the sessions apart by itself.

    A server of the MCP SDK gives each session its own events with `ResumableSessions`.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        ttl_s: Seconds after the last event of a stream after which `sweep` deletes it; None means never.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "mcp"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        ttl_s: float | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        if ttl_s is not None:
            check_duration_ms("ttl_s", ttl_s)
        self.ttl_s = ttl_s
        super().__init__(store, **options)
        self._shared = SessionEvents(self, self.space_name("shared"))

    def session(self, id: str, *, owner: str | None = None) -> SessionEvents:
        """Return the events of one session, without a call to the store.

        Args:
            id: The session, any text.
            owner: The person whose session it is, if any. `erase` removes all sessions of an owner.
        """
        return SessionEvents(self, self.space_name("session", id, owner=owner))

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Append a message to a stream of the shared space; see `SessionEvents.store_event`."""
        return await self._shared.store_event(stream_id, message)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send later messages of the shared space; see `SessionEvents.replay_events_after`."""
        return await self._shared.replay_events_after(last_event_id, send_callback)

    async def sweep_space(self, space: Space) -> int:
        """Delete the streams that had no event for `ttl_s`, and return the number of their events.

        An event that is appended to such a stream while it is examined may be deleted with it.
        """
        if self.ttl_s is None:
            return 0
        removed, now = 0, await space.now()
        for stream in [stream async for stream in space.events.streams()]:
            last = await space.events.read(stream=stream, reverse=True, limit=1)
            if not last or now - last[0].recorded_at > timedelta(seconds=self.ttl_s):
                removed += await space.events.drop(stream)
        return removed


class SessionEvents(EventStore):
    """The events of one session. Made by `KeepstateEventStore.session`."""

    def __init__(self, adapter: KeepstateEventStore, space: str) -> None:
        self._adapter, self._name = adapter, space
        self._hash = sha256(space.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<events in {self._name!r} of {self._adapter!r}>"

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Append a message to a stream, and return the event's id. None only marks a place in the stream."""
        stream = segment(stream_id)
        dumped: Any = None
        if message is not None:
            dumped = message.model_dump(mode="json", by_alias=True, exclude_unset=True)

        async def work(ks: Keepstate) -> int:
            return await ks.space(self._name).events.append([stream_id, dumped], stream=stream)

        return self._event_id(stream, await outlast_cancellation(self._adapter.call(work)))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the later messages of an event's stream, in order.

        Returns:
            The id of the stream. None if the session does not have such an event.
        """
        found = _EVENT_ID.fullmatch(last_event_id)
        if found is None or found[3] != self._hash:
            return None
        stream, last = found[1], int(found[2])
        try:
            events = await self._read(stream, last - 1)
        except (InvalidError, PrunedError, HistoryLostError):  # a client may send any id
            return None
        if not events or events[0].number != last:
            return None
        stream_id: str = events[0].data[0]
        events = events[1:]
        while events:
            for event in events:
                last = event.number or last
                if (dumped := event.data[1]) is not None:
                    message = jsonrpc_message_adapter.validate_python(dumped)
                    await send_callback(EventMessage(message, self._event_id(stream, last)))
            events = await self._read(stream, last)
        return stream_id

    def _event_id(self, stream: str, number: int) -> str:
        return f"{stream}/{number}/{self._hash}"

    async def _read(self, stream: str, after: int) -> list[Event]:
        async def work(ks: Keepstate) -> list[Event]:
            return await ks.space(self._name).events.read(stream=stream, after=after, limit=_AT_ONCE)

        return await self._adapter.call(work)

    async def clear(self) -> None:
        """Delete all events of the session."""
        await outlast_cancellation(self._adapter.call(lambda ks: ks.drop(self._name)))


class ResumableSessions(StreamableHTTPSessionManager):
    """The session manager of the MCP SDK, in which a client resumes only streams of its own session.

    Takes the arguments of `StreamableHTTPSessionManager`; `event_store` is a `KeepstateEventStore`.

    Raises:
        InvalidError: `event_store` is another kind of store.
    """

    # The base class assigns the attribute once, and reads it once for each session that it begins.
    @property
    def event_store(self) -> EventStore:
        """The events of a session that begins."""
        return self._events.session(SystemClock().random_bytes(16).hex())

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        if not isinstance(value, KeepstateEventStore):
            raise InvalidError(f"`event_store` is {value!r}; give a KeepstateEventStore")
        self._events = value
