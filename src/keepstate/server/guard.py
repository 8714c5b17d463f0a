"""The guard of the server: it admits a request, or refuses it, before any operation is looked up.

It compares the host and the origin, finds the key, and keeps the rate of the key. Without a key only the
paths of `KEYLESS` answer. Every response gets the headers that forbid browsers to guess, frame or leak.

Invariant: pure ASGI, so that streams are never buffered.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keepstate.server.browser_sessions import BrowserSessions, cookie_name
from keepstate.server.dispatch import GRANT, HEADERS, OPERATION, ServerParts
from keepstate.server.keys import Grant
from keepstate.server.limits import Bucket
from keepstate.server.metrics import OTHER
from keepstate.server.problems import RefusedError, respond_to
from keepstate.server.request_parts import RequestHeaders

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types svelte-trusted-html"
)
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", _CSP.encode()),
)
_HEADERS_OF_DATA: Final = (
    *_HEADERS[:-1],
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Those of an operation, whose answer is not a page. The shorter policy saves 2 us of each response."""


class Guard:
    """An ASGI application that stands in front of another one.

    Args:
        app: The application behind it.
        services: What the server shares.
        sessions: The browsers that exchanged a link.
        hosts: The hosts that a request may name, without ports.
        keyless: The paths that answer without a key.
    """

    def __init__(
        self,
        app: ASGIApp,
        services: ServerParts,
        sessions: BrowserSessions,
        *,
        hosts: Collection[str],
        keyless: Collection[str],
    ) -> None:
        self._app, self._services, self._sessions = app, services, sessions
        self._hosts = frozenset(host.lower() for host in hosts) | LOOPBACK
        self._keyless = frozenset(keyless)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit or refuse a request. Other protocols than HTTP are closed."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        metrics, clock = self._services.metrics, self._services.ks.clock
        began_s, status = clock.monotonic_s(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message.get("headers", ())
                if scope[OPERATION] is OTHER:  # a page may have stricter ones of its own
                    names = {name for name, _ in given}
                    message["headers"] = [*given, *(each for each in _HEADERS if each[0] not in names)]
                else:
                    message["headers"] = [*given, *_HEADERS_OF_DATA]
            await send(message)

        scope[OPERATION] = OTHER
        try:
            self._admit(scope)
        except RefusedError as refused:
            metrics.count_refusal(refused.code)
            await respond_to(refused)(scope, receive, sending)
            return
        try:
            await self._app(scope, receive, sending)
        finally:
            metrics.count_request(scope[OPERATION], status, clock.monotonic_s() - began_s)

    def _admit(self, scope: Scope) -> None:
        scope[HEADERS] = headers = RequestHeaders(scope)
        _check_framing(headers)
        _check_host(headers, self._hosts)
        _check_origin(headers)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path in self._keyless:
            return
        grant = self._grant(headers)
        if grant is None:
            raise RefusedError(
                401,
                "unauthenticated",
                "no valid key was shown; send `Authorization: Bearer ks_…` of a key that has not expired",
                headers={"WWW-Authenticate": "Bearer"},
            )
        scope[GRANT] = grant
        self._take_token(grant)

    def _grant(self, headers: RequestHeaders) -> Grant | None:
        given = headers.all_of("authorization")
        if given:
            scheme, _, secret = given[0].partition(" ")
            if len(given) > 1 or scheme.lower() != "bearer":
                return None
            return self._services.keys.find(secret.strip())
        cookies: dict[str, Any] = cookie_parser(headers.get("cookie", ""))
        secret = cookies.get(cookie_name(headers["host"]), "")
        return self._sessions.find(secret) if secret else None

    def _take_token(self, grant: Grant) -> None:
        rate = grant.key.rate or self._services.limits.rate
        if rate is None:
            return
        if grant.bucket is None:
            grant.bucket = Bucket(self._services.ks.clock, rate)
        wait_s = grant.bucket.take()
        if wait_s:
            raise RefusedError(
                429,
                "too_many_requests",
                f"the key {grant.key.name!r} may send {rate:g} requests a second; wait {wait_s:.1f} s",
                headers={"Retry-After": str(int(wait_s) + 1)},
                retryable=True,
            )


def _check_framing(headers: RequestHeaders) -> None:
    """Refuse a body with two lengths: a proxy in front might see its end elsewhere (RFC 9112, 6.1)."""
    if "transfer-encoding" in headers and "content-length" in headers:
        raise RefusedError(
            400,
            "malformed",
            "the request has Content-Length and Transfer-Encoding; send one of them",
            headers={"Connection": "close"},
        )


def _check_host(headers: RequestHeaders, hosts: frozenset[str]) -> None:
    """Refuse a name that is not the server's: a page of a rebound name must not reach it."""
    given = headers.all_of("host")
    if len(given) != 1 or _host_of(given[0]) not in hosts:
        raise RefusedError(
            421,
            "wrong_host",
            f"this server is not {', '.join(given)[:100]!r}; name it with --allow-host",
        )


def _check_origin(headers: RequestHeaders) -> None:
    """Refuse a request of a page of another site. Browsers send these headers, and pages cannot set them."""
    for origin in headers.all_of("origin"):
        if urlsplit(origin).netloc.lower() != headers["host"].lower():
            raise RefusedError(403, "wrong_origin", f"a page of {origin[:100]!r} may not use this server")
    site = headers.get("sec-fetch-site")
    if (
        site is not None
        and site not in ("same-origin", "none")
        and headers.get("sec-fetch-mode") != "navigate"
    ):
        raise RefusedError(403, "wrong_origin", "a page of another site may not use this server")


def _host_of(given: str) -> str:
    """Return the host of a `Host` header, in lower case and without the port."""
    host, colon, port = given.lower().rpartition(":")
    return host if colon and port.isdecimal() else given.lower()
