"""Browsers that were let in by a one-use link, as `keepstate serve --open` prints it, or by a key.

The link carries its secret in the fragment, which a browser sends to no server. The page behind it posts the
secret once, and gets a cookie that scripts cannot read and other sites cannot send. The inspector posts the
secret of a key in the same way. Sessions are in the memory of the process: they end with it, after 12 hours,
and with their key.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from keepstate._clock import Clock
from keepstate.server.dispatch import read_body
from keepstate.server.keys import Grant, Key, Keys, digest_of, make_secret
from keepstate.server.limits import Limits
from keepstate.server.problems import RefusedError, respond_to
from keepstate.server.table import JSON, decode_json

_COOKIE: Final = "keepstate_session"
OPEN: Final = "/open"
SCRIPT: Final = "/open.js"
_SESSION_S: Final = 12 * 3600
_LINK_S: Final = 600
_MOST: Final = 100
"""Sessions of one key. A further one ends the oldest."""
_PAGE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<link rel="icon" href="data:,">
<title>keepstate</title>
<p id="said">This page needs JavaScript.</p>
<p><a href="openapi.json">The operations of this server</a></p>
<script type="module" src="open.js"></script>
</html>
"""
_CODE: Final = """const said = document.getElementById("said");
const secret = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
const response = await fetch("open", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ secret }),
});
if (response.ok) location.replace("./");
else
  said.textContent =
    "The link was used before, or has expired. Print a new one with: keepstate serve --open";
"""


class _Exchange(msgspec.Struct, forbid_unknown_fields=True):
    secret: str


class BrowserSessions:
    """The links that were printed, and the browsers that were let in."""

    def __init__(self, keys: Keys, clock: Clock, limits: Limits) -> None:
        self._keys, self._clock, self._limits = keys, clock, limits
        self._links: dict[bytes, tuple[Key, float]] = {}
        self._sessions: dict[bytes, tuple[Grant, float]] = {}

    def make_link(self, key: Key) -> str:
        """Return the path and fragment of a link, which lets one browser act as a key; for ten minutes."""
        secret = make_secret(self._clock)
        self._links[digest_of(secret)] = key, self._clock.monotonic_s() + _LINK_S
        return f"{OPEN}#{secret}"

    def find(self, secret: str) -> Grant | None:
        """Return the grant of a session's cookie; None if there is none, or it or its key has ended."""
        grant, until_s = self._sessions.get(digest_of(secret), (None, 0.0))
        if grant is None or self._clock.monotonic_s() >= until_s or grant.ended.is_set():
            return None
        left_s = grant.left_s(self._clock)
        return grant if left_s is None or left_s > 0 else None

    async def page(self, request: Request) -> Response:
        """Answer `GET /open`."""
        return Response(_PAGE, 200, {"Cache-Control": "no-store"}, "text/html; charset=utf-8")

    async def script(self, request: Request) -> Response:
        """Answer `GET /open.js`."""
        return Response(_CODE, 200, {"Cache-Control": "no-cache"}, "text/javascript")

    async def exchange(self, request: Request) -> Response:
        """Answer `POST /open`: take a link's secret, once, or that of a key, and set the cookie."""
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip()
            if kind != JSON:  # a form of another site cannot send this type
                raise RefusedError(415, "unsupported_media_type", f"send {JSON}")
            body = await read_body(request.receive, request.headers, self._limits)
            given: _Exchange = decode_json(body, _Exchange)
            grant = self._grant(given.secret)
        except RefusedError as refused:
            return respond_to(refused)
        secret, now_s = make_secret(self._clock), self._clock.monotonic_s()
        self._forget(grant, now_s)
        self._sessions[digest_of(secret)] = grant, now_s + _SESSION_S
        response = Response(None, 204, {"Cache-Control": "no-store"})
        response.set_cookie(
            cookie_name(request.headers["host"]),
            secret,
            max_age=_SESSION_S,
            httponly=True,
            samesite="strict",
            # Behind a proxy with TLS the request is plain, but its browser names the page's origin.
            secure="https" in (request.url.scheme, request.headers.get("origin", "").partition(":")[0]),
        )
        return response

    def _forget(self, grant: Grant, now_s: float) -> None:
        """Forget sessions that have ended, and the oldest ones of a key that has many."""
        self._sessions = {
            each: (own, until_s)
            for each, (own, until_s) in self._sessions.items()
            if until_s > now_s and not own.ended.is_set()
        }
        same = [each for each, (own, _) in self._sessions.items() if own is grant]
        for each in same[: max(0, len(same) + 1 - _MOST)]:
            del self._sessions[each]

    def _grant(self, secret: str) -> Grant:
        key, until_s = self._links.pop(digest_of(secret), (None, 0.0))
        if key is not None and self._clock.monotonic_s() < until_s:
            return Grant(key)
        if (grant := self._keys.find(secret)) is not None:
            return grant
        raise RefusedError(403, "not_valid", "the link was used before, or it or the key has expired")


def cookie_name(host: str) -> str:
    """Return the name of the cookie for a `Host` header: browsers share cookies of all ports of a host."""
    _, colon, port = host.rpartition(":")
    return f"{_COOKIE}_{port}" if colon and port.isdecimal() else _COOKIE
