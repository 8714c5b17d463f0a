"""The page and its requests as an ASGI application, to be mounted in another one or served alone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias

from keepstate.approval_links.answering import handle
from keepstate.approval_links.form import JSON_HEADERS, form
from keepstate.engine.approvals.signers import Signer
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.space.keepstate import Keepstate
from keepstate.values import limits

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_BODY_S: Final = 30.0
_PIECES: Final = 1_024


def link_app(ks: Keepstate, *, signer: Signer) -> App:
    """Return an ASGI application that serves the page of links, and answers its requests.

    Mount it under the path of `base`. It serves that path only. A body has to arrive within 30 seconds, in at
    most 1,024 pieces. A proxy in front of it limits how many requests an address may send.

    Args:
        ks: The handle of the tenant, or the administrator's, which serves links of all tenants.
        signer: The signer with the keys that links were made with.
    """
    require_instance("ks", ks, Keepstate)
    require_instance("signer", signer, Signer)

    async def app(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            await _respond(ks, signer, scope, receive, send)

    return app


async def _live(receive: Receive, send: Send) -> None:
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})


async def _respond(
    ks: Keepstate, signer: Signer, scope: MutableMapping[str, Any], receive: Receive, send: Send
) -> None:
    method, path = scope["method"], scope["path"].removeprefix(scope.get("root_path", ""))
    if path not in ("", "/"):
        await _send_json(send, 404, {"error": "not_found"})
    elif method in ("GET", "HEAD"):
        headers, html = form()
        await _send(send, 200, headers, html.encode(), shows=method == "GET")
    elif method == "POST":
        try:
            async with asyncio.timeout(_BODY_S):
                body = await _read(receive)
        except TimeoutError:
            await _send_json(send, 408, {"error": "too_slow"}, {"connection": "close"})
            return
        if body is None:
            return
        status, content = await handle(ks, body, signer=signer)
        await _send_json(send, status, content, {"retry-after": "5"} if status == 429 else None)
    else:
        await _send_json(send, 405, {"error": "method_not_allowed"}, {"allow": "GET, HEAD, POST"})


async def _read(receive: Receive) -> bytes | None:
    """Return the body, no longer than is needed to refuse it; None if the client has gone.

    A body in too many pieces, which may be empty and never end, is one that is too large.
    """
    body = bytearray()
    for _ in range(_PIECES):
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limits.LINK_BODY_BYTES or not message.get("more_body", False):
            return bytes(body)
    return b" " * (limits.LINK_BODY_BYTES + 1)


async def _send_json(
    send: Send, status: int, content: Mapping[str, Any], more: Mapping[str, str] | None = None
) -> None:
    await _send(send, status, {**JSON_HEADERS, **(more or {})}, json.dumps(content).encode())


async def _send(
    send: Send, status: int, headers: Mapping[str, str], body: bytes, *, shows: bool = True
) -> None:
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    sent.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body if shows else b""})
