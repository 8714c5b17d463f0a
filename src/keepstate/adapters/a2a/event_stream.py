"""`KeepstateEventStream`: the events of tasks, in a space for each task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, cast

from keepstate.adapters.a2a.pieces import dump
from keepstate.adapters.base import BoundSpace, StoreAdapter, outlast_cancellation
from keepstate.engine.events.record import Event as StoredEvent
from keepstate.engine.space.space import Space
from keepstate.errors import MissingExtraError

if TYPE_CHECKING:
    from a2a.server.events.event_queue import Event

try:
    from a2a.server.cluster.event_stream import TaskEventStream, VersionedEvent
    from a2a.server.cluster.version import TaskVersion
    from a2a.types import a2a_pb2
    from a2a.utils.proto_utils import to_stream_response
except ImportError as error:
    raise MissingExtraError.of("a2a", "a2a-sdk 1.3") from error

_POLL_S: Final = 0.05


class KeepstateEventStream(StoreAdapter, TaskEventStream):
    """The events of tasks, for `event_stream=` of a request handler, so that any replica can follow a task.

    A server's store tells a follower at once. An embedded store (memory, file, SQLite) is asked every 50 ms.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "a2a-events"

    async def publish(self, task_id: str, event: VersionedEvent) -> None:
        """Append an event of a task. A cancelled call is waited for."""
        stored = [_value(event.version), dump(to_stream_response(event.event))]
        await outlast_cancellation(self.space(task_id).call(lambda space: space.events.append(stored)))

    async def subscribe(self, task_id: str, *, after: TaskVersion) -> AsyncGenerator[VersionedEvent, None]:
        """Yield the events of a task after a version, then wait for new ones, until the caller stops."""
        space = self.space(task_id)
        last = await space.call(lambda target: _last_up_to(target, after))
        following = self._follow(space, last)
        async with aclosing(following):
            async for stored in following:
                version = TaskVersion(stored.data[0])
                if version.is_after(after):
                    yield VersionedEvent(event=_event_of(stored), version=version)

    async def _follow(self, space: BoundSpace, after: int | None) -> AsyncGenerator[StoredEvent, None]:
        if not self._handles.is_embedded:
            following = space.on(self._handles.here()).events.follow(after=after)
            async with aclosing(cast("AsyncGenerator[StoredEvent, None]", following)) as found:
                async for stored in found:
                    yield stored
        while True:
            # A thread that waits for an event could not be cancelled.
            events = await _read_after(space, after)
            for stored in events:
                after = stored.number
                yield stored
            if not events:
                await asyncio.sleep(_POLL_S)

    async def destroy(self, task_id: str) -> None:
        """Delete the events of a task."""
        name = self.space_name(task_id)
        await outlast_cancellation(self.call(lambda ks: ks.drop(name)))


async def _read_after(space: BoundSpace, after: int | None) -> list[StoredEvent]:
    return await space.call(lambda target: target.events.read(after=after))


async def _last_up_to(space: Space, after: TaskVersion) -> int | None:
    """Return the number of the last event that is not after a version, or None."""
    before: int | None = None
    while found := await space.events.read(reverse=True, before=before, limit=64):
        for event in found:
            if not TaskVersion(event.data[0]).is_after(after):
                return event.number
        before = found[-1].number
    return None


def _event_of(stored: StoredEvent) -> Event:
    response = a2a_pb2.StreamResponse.FromString(stored.data[1])
    event: Event = getattr(response, str(response.WhichOneof("payload")))
    return event


def _value(version: TaskVersion) -> int | str:
    value: int | str = version._value  # pyright: ignore[reportPrivateUsage] - theirs alone can be stored
    return value
