"""From a request to a response: conversion, rights, body, deadline, and the operation itself.

Invariant: a request holds the process for no longer than its deadline. A read is cancelled when its client
has gone. A write runs to its end, or to the deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import coroutine
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keepstate._clock import Clock
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import KeepstateError
from keepstate.opening import open as open_store
from keepstate.server.conditions import Conditions, conditions_of, tag_of
from keepstate.server.keys import Grant, Key, Keys
from keepstate.server.limits import Limits
from keepstate.server.metrics import Metrics
from keepstate.server.problems import (
    RefusedError,
    respond,
    respond_to,
    unexpected_problem,
)
from keepstate.server.request_parts import RequestHeaders
from keepstate.server.streams import Stream, cancel, disconnect
from keepstate.server.table import JSON, Call, Operation, Query, TaggedAnswer

GRANT: Final = "keepstate.grant"
OPERATION: Final = "keepstate.operation"
HEADERS: Final = "keepstate.headers"
ABORT: Final = "keepstate.abort"
"""Names in the scope of a request: its grant, the name of its operation, its headers, and what closes its
connection."""
_QUICK_S: Final = 0.2
"""Seconds after which a read begins to watch whether its client is still there."""
_KEY_CHARS: Final = 255
_UNCONDITIONAL: Final = Conditions()
_PERSON_BYTES: Final = 200
_NO_STORE: Final = (b"cache-control", b"no-store")
_PRIVATE: Final = (b"cache-control", b"private, no-cache")
_OF_JSON: Final = (b"content-type", JSON.encode())
_to_json: Final = msgspec.json.Encoder().encode
_log = logging.getLogger("keepstate.server")


@dataclass(slots=True)
class ServerParts:
    """Parts of the server that all requests share.

    Attributes:
        ks: The administrator's handle, which reads values in builtin form.
        keys: The keys.
        limits: The limits.
        metrics: The counts.
        stopping: Set when open streams have to end.
        trace_url: The address of a trace, with `{trace_id}`, for links of the inspector; or None.
    """

    ks: Keepstate
    keys: Keys
    limits: Limits
    metrics: Metrics
    stopping: asyncio.Event
    trace_url: str | None = None
    _typed: Keepstate | None = None

    async def typed(self) -> Keepstate:
        """Return a handle on the same store that reads objects of keepstate's own classes, for sessions."""
        store = await self.ks.opened()
        if self._typed is None:
            self._typed = open_store(store, observe=self.ks.observer, meta=self.ks.meta)
        return self._typed

    def call(
        self,
        grant: Grant,
        author: str,
        conditions: Conditions = _UNCONDITIONAL,
        *,
        idempotency_key: str | None = None,
        last_event_id: str | None = None,
    ) -> Call:
        """Return a call of the holder of a key."""
        tenant = grant.key.tenant
        return Call(
            grant,
            author,
            self.ks if tenant is None else self.ks.tenant(tenant),
            self.ks,
            self.typed,
            self.keys,
            self.limits,
            conditions,
            idempotency_key,
            last_event_id=last_event_id,
            trace_url=self.trace_url,
        )

    async def close(self) -> None:
        """Close the handle for sessions, and leave the store open."""
        if self._typed is not None:
            await self._typed.close()
            self._typed = None


class Endpoint:
    """The operations of one path, as an ASGI application."""

    def __init__(self, operations: Sequence[Operation], services: ServerParts) -> None:
        self._rows: dict[str, Operation] = {row.method: row for row in operations}
        if "GET" in self._rows and not self._rows["GET"].is_stream:
            self._rows["HEAD"] = self._rows["GET"]
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            row = self._rows.get(scope["method"])
            if row is None:
                allowed = ", ".join(self._rows)
                raise RefusedError(
                    405,
                    "method_not_allowed",
                    f"{scope['method']} is not a method of this path; use {allowed}",
                    headers={"Allow": allowed},
                )
            scope[OPERATION] = row.name
            response = await self._answer(row, scope, receive, send)
        except (KeepstateError, RefusedError) as error:
            may_read = scope[GRANT].key.allows("read")
            refusal = response = respond_to(error, may_read=may_read)
            if refusal.status_code >= 500:
                _log.warning("%s: %s: %s", scope[OPERATION], type(error).__name__, error)
        except Exception as error:  # noqa: BLE001  # an error of ours: logged, and told without its text
            _log.error("%s failed", scope.get(OPERATION, scope["path"]), exc_info=error)
            response = respond(unexpected_problem())
        if response is not None:
            await response(scope, receive, send)

    async def _answer(self, row: Operation, scope: Scope, receive: Receive, send: Send) -> ASGIApp | None:
        """Return the response; None for a stream, which has been sent."""
        headers, grant = scope[HEADERS], scope[GRANT]
        query = row.read_query(scope["query_string"])
        row.authorise(grant.key, query)
        call = self._call(row, grant, headers)
        given: list[Any] = []
        if row.body is not None:
            body = await read_body(receive, headers, self._services.limits)
            require_valid(grant, self._services.ks.clock)
            given = [row.read_body(headers, body)]
            call = msgspec.structs.replace(call, body_digest=sha256(body).digest())
        elif _has_body(headers):
            await read_body(receive, headers, self._services.limits, is_expected=False)
        if row.is_audited:
            await self._services.keys.audit(
                "called", key=grant.key.name, author=call.author, operation=row.name, query=_facts(query)
            )
        if row.is_stream:
            await self._stream(row, call, query, scope, receive, send)
            return None
        answer = await self._run(row, call, (query, *given), receive)
        return _encode(row, call, answer)

    def _call(self, row: Operation, grant: Grant, headers: RequestHeaders) -> Call:
        author = author_of(grant.key, headers)
        token = headers.get("idempotency-key")
        if token is not None:
            token = token.strip().strip('"')
            if not row.takes_key:
                raise RefusedError(
                    422, "invalid", f"{row.name} takes no Idempotency-Key; it can be repeated as it is"
                )
            if not 0 < len(token) <= _KEY_CHARS:
                raise RefusedError(422, "invalid", f"an Idempotency-Key has 1 to {_KEY_CHARS} characters")
        return self._services.call(
            grant,
            author,
            self._conditions(row, headers),
            idempotency_key=token,
            last_event_id=headers.get("last-event-id") or None,
        )

    def _conditions(self, row: Operation, headers: RequestHeaders) -> Conditions:
        if "if-match" not in headers and "if-none-match" not in headers:
            return Conditions()
        found = conditions_of(headers.all_of("if-match"), headers.all_of("if-none-match"))
        if found and not row.has_etag and not row.is_read:
            raise RefusedError(422, "invalid", f"{row.name} has no conditions; leave If-Match out")
        return found if row.has_etag else Conditions()

    async def _run(self, row: Operation, call: Call, given: tuple[Any, ...], receive: Receive) -> Any:
        working = row.run(call, *given)
        try:
            waited_for = working.send(None)
        except StopIteration as done:  # it had nothing to wait for, so it needs no deadline
            return done.value
        return await self._run_on(row, call, _resume(working, waited_for), receive)

    async def _run_on(self, row: Operation, call: Call, rest: Awaitable[Any], receive: Receive) -> Any:
        """Await the rest of an operation until its deadline, or until its client has gone."""
        limits, loop = self._services.limits, asyncio.get_running_loop()
        watch: asyncio.Task[None] | None = None
        until_s = loop.time() + limits.request_s
        deadline = asyncio.timeout(None)
        refusal: Callable[[], RefusedError] = partial(_late, limits)

        def begin() -> None:
            nonlocal watch
            deadline.reschedule(until_s)
            if row.is_read or row.is_wait:
                watch = loop.create_task(end_early())

        async def end_early() -> None:
            nonlocal refusal
            refusal = await self._first_end(row, call, receive)
            deadline.reschedule(loop.time())

        # Most requests are answered before their deadline and a watch cost anything.
        timer = loop.call_later(min(_QUICK_S, limits.request_s), begin)
        try:
            async with deadline:
                return await rest
        except TimeoutError:
            if not deadline.expired():
                raise  # of the operation itself
            raise refusal() from None
        finally:
            timer.cancel()
            if watch is not None:
                await cancel(watch)

    async def _first_end(self, row: Operation, call: Call, receive: Receive) -> Callable[[], RefusedError]:
        """Wait until the client has gone, or what a waiting request depends on has ended."""
        ends: dict[asyncio.Task[Any], Callable[[], RefusedError]] = {
            asyncio.create_task(disconnect(receive)): _gone
        }
        if row.is_wait:
            ends[asyncio.create_task(call.grant.ended.wait())] = _revoked
            ends[asyncio.create_task(self._services.stopping.wait())] = _stopping
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return next(refusal for end, refusal in ends.items() if end in done)
        finally:
            await cancel(*ends)

    async def _stream(
        self, row: Operation, call: Call, query: Query, scope: Scope, receive: Receive, send: Send
    ) -> None:
        services = self._services
        if call.grant.streams >= services.limits.streams:
            raise RefusedError(
                429,
                "too_many_streams",
                f"the key {call.key.name!r} has {call.grant.streams} open streams; close one",
                headers={"Retry-After": "5"},
                retryable=True,
            )
        if services.stopping.is_set():
            raise _stopping()
        abort: Callable[[], None] | None = scope.get(ABORT)
        stream = Stream(
            row.run(call, query),
            call.grant,
            clock=services.ks.clock,
            limits=services.limits,
            stopping=services.stopping,
            abort=abort,
            log=lambda error: _log.error("%s failed", row.name, exc_info=error),
        )
        await stream.run(receive, send, services.metrics)


def author_of(key: Key, headers: RequestHeaders) -> str:
    """Return the author of the writes of a request: its key, or the key and the person that it acts for.

    Raises:
        RefusedError: `On-Behalf-Of` names several persons, or one whose name is empty, too long, not
            printable, or not UTF-8.
    """
    persons = headers.all_of("on-behalf-of")
    if not persons:
        return key.name
    if len(persons) > 1:
        raise RefusedError(422, "invalid", "the header On-Behalf-Of was sent twice; name one person")
    try:
        person = unquote(persons[0], errors="strict")
    except UnicodeDecodeError:  # two persons must not become one
        person = ""
    is_name = person.isprintable() and person == person.strip()
    if not is_name or not 0 < len(person.encode()) <= _PERSON_BYTES:
        told = f"On-Behalf-Of has 1 to {_PERSON_BYTES} bytes of printable text, without spaces around it"
        raise RefusedError(422, "invalid", told)
    return f"{key.name}/{person}"


def require_valid(grant: Grant, clock: Clock) -> None:
    """Raise `RefusedError` if a key was revoked or has expired while the body of its request came."""
    left_s = grant.left_s(clock)
    if grant.ended.is_set() or (left_s is not None and left_s <= 0):
        raise _revoked()


async def read_body(
    receive: Receive, headers: Mapping[str, str], limits: Limits, *, is_expected: bool = True
) -> bytes:
    """Return the body of a request, counted as it comes, whatever its `Content-Length` says.

    Raises:
        RefusedError: It is too large, too slow, compressed, or not expected; or the client has gone.
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RefusedError(
            415, "unsupported_media_type", f"the body is encoded as {encoding[:40]!r}; send it plain"
        )
    most = limits.body_bytes if is_expected else 0
    length = headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise _gone()
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise RefusedError(
            408, "slow_body", f"the body took over {limits.body_s:g} s", headers={"Connection": "close"}
        ) from None


def _has_body(headers: RequestHeaders) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _late(limits: Limits) -> RefusedError:
    return RefusedError(
        504,
        "deadline",
        f"the request took over {limits.request_s:g} s and was cancelled; a write may have been applied. "
        "Read before you repeat it",
    )


def _gone() -> RefusedError:
    return RefusedError(499, "client_gone", "the client has closed the connection")


def _revoked() -> RefusedError:
    return RefusedError(401, "unauthenticated", "the key was revoked or changed, or has expired")


def _stopping() -> RefusedError:
    return RefusedError(503, "stopping", "the server is stopping; connect again", retryable=True)


def _too_large(most: int) -> RefusedError:
    # The rest of the body is not read, so the connection cannot be used again.
    headers = {"Connection": "close"}
    if not most:
        return RefusedError(422, "invalid", "this operation takes no body; leave it out", headers=headers)
    return RefusedError(413, "too_large", f"a body has at most {most} bytes", headers=headers)


@coroutine
def _resume(working: Coroutine[Any, Any, Any], waited_for: Any) -> Generator[Any, Any, Any]:
    """Await the rest of a coroutine that has begun, and has yielded what it waits for."""
    while True:
        try:
            sent = yield waited_for
        except BaseException as error:  # noqa: BLE001  # also a cancellation; thrown into the coroutine
            going_on = partial(working.throw, error)
        else:
            going_on = partial(working.send, sent)
        try:
            waited_for = going_on()
        except StopIteration as done:
            return done.value


class _Answer:
    """A response of JSON, as an ASGI application without a step between."""

    __slots__ = ("_body", "_headers", "_status")

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self._status, self._headers, self._body = status, headers, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await send({"type": "http.response.start", "status": self._status, "headers": self._headers})
        body = b"" if scope["method"] == "HEAD" else self._body
        await send({"type": "http.response.body", "body": body})


def _encode(row: Operation, call: Call, answer: Any) -> _Answer:
    headers = [_NO_STORE]
    if isinstance(answer, TaggedAnswer):
        tagged: TaggedAnswer = answer
        if tagged.version is not None:
            headers = [_PRIVATE, (b"etag", tag_of(tagged.version).encode("latin-1"))]
            if row.is_read and call.conditions.check(tagged.version, is_read=True):
                return _Answer(304, headers, b"")
        answer = tagged.content
    body = _to_json(answer)
    return _Answer(200, [*headers, _OF_JSON, (b"content-length", b"%d" % len(body))], body)


def _facts(query: Query) -> Mapping[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(query).items() if value is not None}
