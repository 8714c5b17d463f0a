"""The endpoint of stores over HTTP: it serves an opened store under the names that each sender may reach.

A request is judged in this order: its sender, its headers, its size, its form, its names, its marks. Nothing
is applied before all of them have passed, and then the store applies each batch whole or not at all. A
request ends by its deadline, and a stream of hints when its sender may not read on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from keepstate.errors import (
    InvalidError,
    KeepstateError,
    NotAllowedError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
)
from keepstate.server.store_calls import StoreCalls, StoreScope, problem, unspoken_error
from keepstate.stores.base import StoreBase
from keepstate.stores.hints import HintListener
from keepstate.stores.http import wire
from keepstate.stores.http.wire import Call, Problem
from keepstate.stores.urls import missing_extra
from keepstate.stores.wrappers.wrapper import StoreWrapper

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
except ImportError as error:
    raise missing_extra("http", "starlette", "server", error) from error

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

Authorise: TypeAlias = Callable[[Request], StoreScope | Awaitable[StoreScope]]
"""Returns the names that the sender of a request may reach, or raises."""

_LOOK_S: Final = 1.0
"""Interval in which a stream looks whether its sender may still read, and is still there."""

_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
_RETRY_AFTER: Final = (b"retry-after", b"1")
_OK: Final = 200

_log = logging.getLogger("keepstate.server")


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one endpoint."""

    deadline_s: float = 30.0
    """Seconds after which a request ends, with its body. A client may ask for less."""
    held_bytes: int = 64 << 20
    """Size of all bodies that are being received, half of it for one tenant. Further requests get 503."""
    streams: int = 1000
    """Number of open streams of hints of one tenant. Further ones get 503."""
    streamed_spaces: int = 16_384
    """Number of spaces in one stream."""


def store_app(
    store: StoreBase | StoreWrapper,
    *,
    authorise: Authorise,
    withheld: Sequence[str] = (),
    bounds: StoreLimits | None = None,
) -> StoreApp:
    """Return an ASGI application that serves an opened store to `keepstate.open("http://…")`.

    Mount it at `/store`. It answers POST only, and tells nothing before `authorise` has returned. A store
    that was opened without its keys of encryption is served sealed, so that clients with the keys can use it.

    Args:
        store: The store, opened in async mode in the event loop that serves. The caller closes it.
        authorise: Returns the names that the sender of a request may reach, or raises `NotAllowedError` or
            Starlette's `HTTPException`. It may be a coroutine function. It is called every second for an open
            stream of hints, which ends when the answer has changed.
        withheld: Prefixes of stored names that no sender reaches here, such as those of the keys themselves.
        bounds: The bounds of bodies, times and streams.

    Raises:
        InvalidError: `store` is not an open async store.
    """
    if store.mode != "async" or not store.is_open:
        raise InvalidError(f"`store` is {store!r}. Pass a store that was opened in async mode.")
    return StoreApp(StoreCalls(store, tuple(withheld)), authorise, bounds or StoreLimits())


class StoreApp:
    """The application; see `store_app`."""

    def __init__(self, calls: StoreCalls, authorise: Authorise, bounds: StoreLimits) -> None:
        self._calls, self._authorise, self._bounds = calls, authorise, bounds
        self._held = Counter[StoreScope]()
        self._streams = dict[HintListener, StoreScope]()
        self._is_ending = False

    def end_streams(self) -> None:
        """End all streams of hints and refuse new ones, because the server is about to stop."""
        self._is_ending = True
        for listener in self._streams:
            listener.wake()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        request, row = Request(scope, receive), None
        begun_s = asyncio.get_running_loop().time()
        try:
            reach = await self._reach_of(request)
            row = _row_of(request)
            until_s = asyncio.get_running_loop().time() + self._patience_s(request)
            call = await self._call_of(request, row, reach, until_s)
            if asyncio.get_running_loop().time() - begun_s >= _LOOK_S:  # as long as a stream is not judged
                reach = await self._reach_of(request)
            self._calls.require_names(reach, call)
            if isinstance(call, wire.HintsCall):
                await self._stream(request, reach, call, send)
                return
            async with asyncio.timeout_at(until_s):
                answer = await row.handle(self._calls, reach, call)
        except (ClientDisconnect, _StreamBrokenError):
            return
        except Exception as error:  # noqa: BLE001  the door: every error becomes an answer
            told, headers = self._told(error, row)
            await _send(send, told.status, wire.PROBLEM_TYPE, wire.encode(told), *headers)
            return
        await _send(send, _OK, wire.MEDIA_TYPE, wire.encode(answer))

    # ---- the request

    async def _reach_of(self, request: Request) -> StoreScope:
        found = self._authorise(request)
        return await found if isawaitable(found) else found

    def _patience_s(self, request: Request) -> float:
        """Return the seconds until the deadline of a request."""
        told = request.headers.get(wire.DEADLINE_HEADER, "")
        asked_s = int(told[:9]) / 1000 if told.isascii() and told.isdecimal() else self._bounds.deadline_s
        return min(asked_s, self._bounds.deadline_s)

    async def _call_of(self, request: Request, row: _Row, reach: StoreScope, until_s: float) -> Call:
        headers = request.headers
        if headers.get("content-type") != wire.MEDIA_TYPE or "content-encoding" in headers:
            raise _RefusedError(415, f"The body must be {wire.MEDIA_TYPE}, and not compressed.")
        version = headers.get(wire.VERSION_HEADER, "")
        if row.call is not wire.OpenCall and version not in map(str, wire.spoken()):
            raise unspoken_error([version[:20]])
        try:
            async with asyncio.timeout_at(until_s):
                body = await self._body(request, reach)
        except TimeoutError as error:
            raise _RefusedError(408, "The body came too slowly. Nothing was written.") from error
        try:
            return cast("Call", row.decoder.decode(body))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _RefusedError(400, f"The body is not a call of {row.call.name!r}: {error}") from error

    async def _body(self, request: Request, reach: StoreScope) -> bytes:
        """Return the body, counted as it comes."""
        told = request.headers.get("content-length", "0")
        if not (told.isascii() and told.isdecimal()) or int(told[:12]) > wire.BODY_BYTES:
            raise _too_large()
        parts, size = list[bytes](), 0
        try:
            async for part in request.stream():
                size += len(part)
                self._held[reach] += len(part)
                if size > wire.BODY_BYTES:
                    raise _too_large()
                most = self._bounds.held_bytes
                share = most // 2 if isinstance(reach.tenant, str) else most
                if self._held.total() > most or self._held[reach] > share:
                    raise _RefusedError(503, "The server receives too much at once.", _RETRY_AFTER)
                parts.append(part)
            return b"".join(parts)
        finally:
            self._held[reach] -= size
            if not self._held[reach]:
                del self._held[reach]

    # ---- hints

    async def _stream(self, request: Request, reach: StoreScope, call: wire.HintsCall, send: Send) -> None:
        """Send the names of spaces that may have changed, until the sender leaves or may not read on.

        A slow reader gets each name once, however often its space has changed in the meantime.
        """
        most = self._bounds.streamed_spaces
        if len(call.spaces) > most:
            raise _RefusedError(422, f"A stream names {len(call.spaces)} spaces. At most {most} fit.")
        if self._is_ending or [*self._streams.values()].count(reach) >= self._bounds.streams:
            raise _RefusedError(503, "The server opens no further stream now.", _RETRY_AFTER)
        listener = self._calls.store.listen(call.spaces)
        self._streams[listener] = reach
        left = asyncio.create_task(_wait_until_left(request), name="keepstate stream's reader")
        try:
            await _start(send, _OK, wire.MEDIA_TYPE, (b"x-accel-buffering", b"no"))
            await self._send_hints(request, reach, listener, left, send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:
            # The answer has begun, so nothing but its end can tell the sender.
            _log.warning("A stream of hints was broken off: %r", error)
            raise _StreamBrokenError from error
        finally:
            left.cancel()
            del self._streams[listener]
            listener.close()

    async def _send_hints(
        self,
        request: Request,
        reach: StoreScope,
        listener: HintListener,
        left: asyncio.Task[None],
        send: Send,
    ) -> None:
        clock, names = asyncio.get_running_loop().time, list[str]()
        sent_s, judged_s = -wire.HEARTBEAT_S, clock()
        while not left.done():
            if names or clock() - sent_s >= wire.HEARTBEAT_S:
                body = wire.encode(names)
                async with asyncio.timeout(self._bounds.deadline_s):
                    await send({
                        "type": "http.response.body", "body": len(body).to_bytes(4) + body, "more_body": True
                    })  # fmt: skip
                sent_s = clock()
            await listener.wait(_LOOK_S)
            if self._is_ending:
                return
            if clock() - judged_s >= _LOOK_S:
                try:
                    if await self._reach_of(request) != reach:
                        return
                except (KeepstateError, HTTPException):
                    return
                judged_s = clock()
            names = listener.take_changed()

    # ---- errors

    def _told(self, error: Exception, row: _Row | None) -> tuple[Problem, Sequence[tuple[bytes, bytes]]]:
        """Return the problem and the headers that tell a sender of an error."""
        if isinstance(error, _RefusedError):
            return problem(error.kind, error.status, error.detail), error.headers
        if isinstance(error, HTTPException):
            kind = _BY_STATUS.get(error.status_code, InvalidError)
            headers = [(name.lower().encode(), text.encode()) for name, text in (error.headers or {}).items()]
            return problem(kind, error.status_code, error.detail), headers
        if isinstance(error, TimeoutError):
            error = StoreUnavailableError("The store did not answer by the deadline of the call.")
        elif not isinstance(error, KeepstateError):
            _log.exception("A call of the store failed", exc_info=error)
            error = StorageError(f"{type(error).__name__}: {error}")
        if type(error) in (StoreUnavailableError, StorageError) and row is not None and row.writes:
            # The store may have been in the middle of it.
            error = OutcomeUnknownError(str(error))
        told = self._calls.problem_of(error)
        return told, (_RETRY_AFTER,) if told.status == 503 else ()


class _Row(NamedTuple):
    """A call that the endpoint serves."""

    call: type[Call]
    handle: Callable[[StoreCalls, StoreScope, Any], Awaitable[Any]]
    decoder: msgspec.msgpack.Decoder[Any]
    writes: bool


def _row(call: type[Call], handle: Callable[..., Awaitable[Any]], *, writes: bool = False) -> _Row:
    return _Row(call, handle, msgspec.msgpack.Decoder(call), writes)


async def _refuse(_: StoreCalls, __: StoreScope, ___: wire.HintsCall) -> None:
    raise InvalidError("A stream of hints has no single answer.")


_ROWS: Final = {
    row.call.name: row
    for row in (
        _row(wire.OpenCall, StoreCalls.open),
        _row(wire.ApplyCall, StoreCalls.apply, writes=True),
        _row(wire.ReadCall, StoreCalls.read),
        _row(wire.ScanCall, StoreCalls.scan),
        _row(wire.SizesCall, StoreCalls.sizes),
        _row(wire.ChangesCall, StoreCalls.changes),
        _row(wire.LeapCall, StoreCalls.leap),
        _row(wire.DropCall, StoreCalls.drop, writes=True),
        _row(wire.TrimCall, StoreCalls.trim, writes=True),
        _row(wire.ChangedCall, StoreCalls.changed),
        _row(wire.SpacesCall, StoreCalls.spaces),
        _row(wire.SweepCall, StoreCalls.sweep, writes=True),
        _row(wire.ScrubCall, StoreCalls.scrub, writes=True),
        _row(wire.SettingsCall, StoreCalls.settings),
        _row(wire.ClockCall, StoreCalls.clock),
        _row(wire.HintsCall, _refuse),
    )
}
_BY_STATUS: Final[dict[int, type[KeepstateError]]] = {
    401: NotAllowedError,
    403: NotAllowedError,
    408: StoreUnavailableError,
    429: StoreUnavailableError,
    503: StoreUnavailableError,
}


def _row_of(request: Request) -> _Row:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    row = _ROWS.get(path.removeprefix("/"))
    if row is None:
        raise _RefusedError(404, "The store does not have such a call.")
    if request.method != "POST":
        raise _RefusedError(405, "A call of the store is a POST.", (b"allow", b"POST"))
    return row


class _RefusedError(Exception):
    """A request that is answered before the store is asked."""

    def __init__(self, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers
        self.kind = _BY_STATUS.get(status, InvalidError)


class _StreamBrokenError(Exception):
    """A stream whose answer had begun failed."""


def _too_large() -> _RefusedError:
    return _RefusedError(413, f"A body has at most {wire.BODY_BYTES} bytes. Split the call.")


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, status: int, kind: str, *headers: tuple[bytes, bytes]) -> None:
    sent = [(b"content-type", kind.encode()), *_HEADERS, *headers]
    await send({"type": "http.response.start", "status": status, "headers": sent})


async def _send(send: Send, status: int, kind: str, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await _start(send, status, kind, (b"content-length", b"%d" % len(body)), *headers)
    await send({"type": "http.response.body", "body": body})
