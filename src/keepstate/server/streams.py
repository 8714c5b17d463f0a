"""Server-sent events: streams that a client resumes from the last id that it saw.

Invariant: what waits for a slow reader is at most one event and the buffer of the transport. A reader that
takes nothing for some seconds gets `slow_reader`, and its stream ends. A stream also ends when its key is
revoked or expires, when its client has gone, and when the server stops; the client then resumes elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import msgspec
from starlette.types import Receive, Send

from keepstate._clock import Clock
from keepstate.errors import KeepstateError
from keepstate.server.keys import Grant
from keepstate.server.limits import Limits
from keepstate.server.metrics import Metrics
from keepstate.server.problems import Problem, RefusedError, problem_of, unexpected_problem
from keepstate.server.table import EVENT_STREAM, StreamEvent

EndReason: TypeAlias = Literal["complete", "gone", "stopping", "revoked", "expired", "slow_reader", "failed"]
_RETRY_MS: Final = 1_000
_FAREWELL_S: Final = 1.0
HEADERS: Final = [
    (b"content-type", EVENT_STREAM.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Stream:
    """One open stream.

    Args:
        events: The events. The stream closes the iterator.
        grant: The grant of the key.
        clock: The clock of the server.
        limits: The limits of the server.
        stopping: Set when the server stops.
        abort: Closes the connection at once, whatever is still to be sent; None where that cannot be done.
        log: Called with an error that is not one of keepstate.
    """

    def __init__(
        self,
        events: AsyncIterator[StreamEvent],
        grant: Grant,
        *,
        clock: Clock,
        limits: Limits,
        stopping: asyncio.Event,
        abort: Callable[[], None] | None,
        log: Callable[[BaseException], None],
    ) -> None:
        self._events, self._grant, self._clock, self._limits = events, grant, clock, limits
        self._stopping, self._abort, self._log = stopping, abort, log

    async def run(self, receive: Receive, send: Send, metrics: Metrics) -> None:
        """Send events until the stream ends."""
        self._grant.streams += 1  # before anything is awaited, so that no other stream passes the limit
        metrics.streams += 1
        reason: EndReason = "gone"
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            reason = await self._run(receive, send)
        finally:
            self._grant.streams -= 1
            metrics.streams -= 1
            metrics.count_stream_end(reason)

    async def _run(self, receive: Receive, send: Send) -> EndReason:
        ends: dict[asyncio.Task[Any], EndReason] = {
            asyncio.create_task(disconnect(receive)): "gone",
            asyncio.create_task(self._stopping.wait()): "stopping",
            asyncio.create_task(self._grant.ended.wait()): "revoked",
        }
        if (left_s := self._grant.left_s(self._clock)) is not None:
            ends[asyncio.create_task(asyncio.sleep(max(left_s, 0)))] = "expired"
        pumping = asyncio.create_task(self._pump(send))
        try:
            done, _ = await asyncio.wait({pumping, *ends}, return_when=asyncio.FIRST_COMPLETED)
            reason: EndReason
            if pumping in done:
                reason = pumping.result()
            else:
                reason = next(why for task, why in ends.items() if task in done)
        finally:
            await cancel(pumping, *ends)
        if reason == "gone":
            return reason
        last = _FAREWELLS.get(reason)
        try:
            async with asyncio.timeout(_FAREWELL_S):
                if last is not None:
                    await send(_chunk(format_event(last, name="problem")))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            reason = "slow_reader"
        if reason == "slow_reader" and self._abort is not None:
            self._abort()
        return reason

    async def _pump(self, send: Send) -> EndReason:
        """Send events as they come, and a comment while none does."""
        # Clients of a server that stopped come back one by one, and not all at once.
        retry_ms = _RETRY_MS + int(self._clock.spread() * _RETRY_MS)
        if not await self._send(send, b"retry: %d\n\n" % retry_ms):
            return "slow_reader"
        coming: asyncio.Task[StreamEvent] | None = None
        events = self._events
        try:
            while True:
                coming = coming or asyncio.ensure_future(_next(events))
                await asyncio.wait({coming}, timeout=self._limits.comment_s)
                chunk = b": no news\n\n"
                if coming.done():
                    event, coming = coming.result(), None
                    chunk = self._encode(event)
                if not await self._send(send, chunk):
                    return "slow_reader"
        except StopAsyncIteration:
            return "complete"
        except (KeepstateError, RefusedError) as error:
            await self._send(send, format_event(problem_of(error), name="problem"))
            return "failed"
        except Exception as error:  # noqa: BLE001  # an error of ours: logged, and told without its text
            self._log(error)
            await self._send(send, format_event(unexpected_problem(), name="problem"))
            return "failed"
        finally:
            if coming is not None:
                await cancel(coming)
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    def _encode(self, event: StreamEvent) -> bytes:
        chunk = format_event(event.data, id=event.id, name=event.name)
        if len(chunk) > self._limits.event_bytes and event.short is not None:
            chunk = format_event(event.short, id=event.id, name=event.name)
        return chunk

    async def _send(self, send: Send, chunk: bytes) -> bool:
        """Send bytes, and return whether the reader took them in time."""
        try:
            async with asyncio.timeout(self._limits.stall_s):
                await send(_chunk(chunk))
        except TimeoutError:
            return False
        return True


def format_event(data: object, *, id: str | None = None, name: str | None = None) -> bytes:
    """Return an event as it is sent. JSON has no line ends, so the data is one line."""
    head = "" if id is None else f"id: {id}\n"
    if name is not None:
        head += f"event: {name}\n"
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _chunk(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _next(events: AsyncIterator[StreamEvent]) -> StreamEvent:
    return await anext(events)


async def disconnect(receive: Receive) -> None:
    """Return once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait until they have ended. Their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
            await task


def _farewell(status: int, code: str, detail: str, *, retryable: bool) -> Problem:
    return problem_of(RefusedError(status, code, detail, retryable=retryable))


_FAREWELLS: Final[dict[str, Problem]] = {
    "revoked": _farewell(401, "unauthenticated", "the key was revoked or changed", retryable=False),
    "expired": _farewell(401, "unauthenticated", "the key has expired", retryable=False),
    "slow_reader": _farewell(
        408, "slow_reader", "nothing was read for too long; resume from the last id", retryable=True
    ),
}
