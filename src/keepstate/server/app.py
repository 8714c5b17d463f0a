"""The ASGI application: the routes of the table, and those that operators, browsers and approvers use."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from keepstate.errors import InvalidError, KeepstateError, MissingExtraError

try:  # here, because the package imports this module first
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:
    install = "pip install 'keepstate[server]'"
    raise MissingExtraError(f"the server needs starlette: {install}", install=install) from error

from keepstate._clock import SYSTEM_CLOCK
from keepstate.approval_links import link_app
from keepstate.engine.approvals.signers import Signer
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.space.deliveries import Deliveries
from keepstate.engine.space.keepstate import Keepstate
from keepstate.names import ALL
from keepstate.server.browser_sessions import OPEN, SCRIPT, BrowserSessions
from keepstate.server.dispatch import GRANT, OPERATION, Endpoint, ServerParts
from keepstate.server.guard import Guard
from keepstate.server.keys import KEYS_SPACE, Grant, Key, Keys
from keepstate.server.limits import Limits
from keepstate.server.metrics import Metrics
from keepstate.server.openapi import describe
from keepstate.server.operations import (
    approvals,
    batches,
    branches,
    conversations,
    documents,
    events,
    health,
    history,
    queues,
    schedules,
    spaces,
    steps,
    tasks,
    threads,
)
from keepstate.server.problems import RefusedError, respond_to
from keepstate.server.static_files import StaticFiles
from keepstate.server.store_calls import StoreScope
from keepstate.server.store_endpoint import StoreApp, store_app
from keepstate.server.table import JSON, Operation
from keepstate.stores.base import StoreBase
from keepstate.values import codec

if TYPE_CHECKING:
    from keepstate.server.mcp.mcp_server import McpServer

OPERATIONS: Final[tuple[Operation, ...]] = (
    *spaces.OPERATIONS,
    *documents.OPERATIONS,
    *events.OPERATIONS,
    *tasks.OPERATIONS,
    *steps.OPERATIONS,
    *queues.OPERATIONS,
    *schedules.OPERATIONS,
    *batches.OPERATIONS,
    *approvals.OPERATIONS,
    *conversations.OPERATIONS,
    *history.OPERATIONS,
    *branches.OPERATIONS,
    *threads.OPERATIONS,
    *health.OPERATIONS,
)
"""The table. Only what stands here can be done."""
APPROVALS: Final = "/approvals"
STORE: Final = "/store"
"""The path of the store protocol, for `keepstate.open("http://…")`."""
MCP: Final = "/mcp"
"""The path of the tools for models, if the server has them."""
McpMode: TypeAlias = Literal["read", "write"]
KEYLESS: Final = ("/healthz", "/readyz", "/openapi.json", OPEN, SCRIPT, APPROVALS)
"""The paths that answer without a key, besides those of the inspector's files."""
TRACE_ID: Final = "{trace_id}"
"""The placeholder of the id in the address of a trace."""
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}?|\}")
_UNPRINTABLE: Final = re.compile(r"[^!-~]")
_READY_S: Final = 1.0


class Server:
    """The application of a server: an ASGI application that others may mount, and what ends it.

    Attributes:
        keys: The keys.
        metrics: The counts.
        is_draining: True once the server is to stop: `/readyz` fails, and requests are still answered.
        has_inspector: Whether the page for browsers is served.
    """

    def __init__(
        self,
        ks: Keepstate,
        keys: Keys,
        signer: Signer | None,
        limits: Limits,
        hosts: Collection[str],
        files: StaticFiles,
        mcp: McpMode | None,
        *,
        tracing: bool,
        trace_url: str | None,
    ) -> None:
        self._ks, self.keys, self.metrics = ks, keys, Metrics()
        self.is_draining, self.has_inspector = False, files.has_inspector
        self._stopping = asyncio.Event()
        self._ready: tuple[float, bool] | None = None
        self._asking = asyncio.Lock()
        self._sessions = BrowserSessions(keys, ks.clock, limits)
        self._services = services = ServerParts(ks, keys, limits, self.metrics, self._stopping, trace_url)
        app = Starlette(
            routes=[
                Route("/healthz", self._answer_health),
                Route("/readyz", self._answer_ready),
                Route("/metrics", self._answer_metrics),
                Route("/openapi.json", _answer_document),
                Route(OPEN, self._sessions.page, methods=["GET"]),
                Route(OPEN, self._sessions.exchange, methods=["POST"]),
                Route(SCRIPT, self._sessions.script),
                *(Route(path, files.answer) for path in files.paths),
                *([] if signer is None else [Route(APPROVALS, _AtRoot(link_app(ks, signer=signer)))]),
            ],
            exception_handlers={HTTPException: _answer_exception},
            lifespan=self._live,
        )
        app.router.redirect_slashes = False
        self._store: StoreApp | None = None
        self._mcp = None if mcp is None else _open_mcp(services, mcp)
        self._guard = Guard(
            _ByPath(self._endpoints(), self._answer_store, app),
            services,
            self._sessions,
            hosts=hosts,
            keyless=(*KEYLESS, *files.paths),
        )
        self._answer: ASGIApp = _traced(self._guard) if tracing else self._guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._answer(scope, receive, send)

    def make_link(self, key: Key) -> str:
        """Return the path and fragment of a link that lets one browser act as a key, once."""
        return self._sessions.make_link(key)

    def stop(self) -> None:
        """End all open streams. Their clients resume at another server, or at the next one."""
        self._stopping.set()
        if self._store is not None:
            self._store.end_streams()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Follow the keys and deliver to the index while the block runs, and end open streams at its end.

        The lifespan of the application does the same. An application that mounts this one enters the block
        in its own lifespan.
        """
        async with self.keys.watched():
            store = cast("StoreBase", await self._ks.opened())
            self._store = store_app(store, authorise=_reach_of, withheld=(KEYS_SPACE,))
            try:
                async with AsyncExitStack() as doors:
                    every_s = self._services.limits.deliver_s
                    deliveries = Deliveries(self._ks, tenant=ALL, every_s=every_s)
                    await doors.enter_async_context(deliveries.running())
                    if self._mcp is not None:
                        await doors.enter_async_context(self._mcp.running())
                    yield
            finally:
                self.stop()
                await self._services.close()

    @asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncGenerator[None]:
        async with self.running():
            yield

    async def _answer_store(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call of the store protocol, for keys that have the right `store`."""
        scope[OPERATION] = "store"
        if self._store is None:
            raise RefusedError(503, "not_running", "the server has not begun to run; see `Server.running`")
        await self._store(scope, receive, send)

    async def _answer_mcp(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a client of the Model Context Protocol."""
        scope[OPERATION] = "mcp"
        assert self._mcp is not None
        await self._mcp(scope, receive, send)

    def _endpoints(self) -> dict[str, ASGIApp]:
        """Return the applications that have a path of their own."""
        by_path: dict[str, list[Operation]] = {}
        for row in OPERATIONS:
            by_path.setdefault(row.path, []).append(row)
        found: dict[str, ASGIApp] = {path: Endpoint(rows, self._services) for path, rows in by_path.items()}
        return found if self._mcp is None else found | {MCP: self._answer_mcp}

    async def _answer_health(self, request: Request) -> Response:
        return Response("ok\n", 200, {"Cache-Control": "no-store"}, "text/plain")

    async def _answer_ready(self, request: Request) -> Response:
        is_ready = not self.is_draining and await self._is_ready()
        text, status = ("ready\n", 200) if is_ready else ("not ready\n", 503)
        return Response(text, status, {"Cache-Control": "no-store"}, "text/plain")

    async def _is_ready(self) -> bool:
        """Return whether the store answers; asked at most once a second, and never twice at once."""
        async with self._asking:
            now_s = self._ks.clock.monotonic_s()
            if self._ready is None or now_s - self._ready[0] >= _READY_S:
                is_ready = True
                try:
                    async with asyncio.timeout(_READY_S):
                        await self._ks.list_spaces(limit=1)
                except (KeepstateError, TimeoutError):
                    is_ready = False
                self._ready = self._ks.clock.monotonic_s(), is_ready and self.keys.is_current
            return self._ready[1]

    async def _answer_metrics(self, request: Request) -> Response:
        text = self.metrics.text()
        return Response(text, 200, {"Cache-Control": "no-store"}, "text/plain; version=0.0.4; charset=utf-8")


class _ByPath:
    """Serves the operations and the store by their paths, and everything else by an application."""

    def __init__(self, endpoints: Mapping[str, ASGIApp], store: ASGIApp, others: ASGIApp) -> None:
        self._endpoints, self._store, self._others = endpoints, store, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._others
        if scope["type"] == "http":
            root: str = scope.get("root_path", "")
            path = scope["path"].removeprefix(root)
            if path.startswith(f"{STORE}/"):
                await self._store({**scope, "root_path": root + STORE}, receive, send)
                return
            app = self._endpoints.get(path, app)
        await app(scope, receive, send)


def _reach_of(request: Request) -> StoreScope:
    """Return the names that a key with the right `store` may reach: its tenant, or all for administrators.

    Raises:
        HTTPException: The key has another right, has expired, or was revoked since.
    """
    grant: Grant = request.scope[GRANT]
    left_s = grant.left_s(SYSTEM_CLOCK)
    if grant.ended.is_set() or (left_s is not None and left_s <= 0):
        raise HTTPException(401, "The key was revoked, or has expired.")
    if "store" not in grant.key.rights:
        raise HTTPException(403, f"The key {grant.key.name!r} does not have the right `store`.")
    is_of_all = grant.key.tenant is None and "admin" in grant.key.rights
    return StoreScope(tenant=ALL if is_of_all else grant.key.tenant)


class _AtRoot:
    """Serves an application that has one path, `/`, at the path of a route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "path": "/", "root_path": ""}, receive, send)


def create_app(
    ks: Keepstate,
    *,
    keys: Keys,
    signer: Signer | None = None,
    limits: Limits | None = None,
    inspector: bool = True,
    allow_hosts: Collection[str] = (),
    mcp: McpMode | None = None,
    tracing: bool = False,
    trace_url: str | None = None,
) -> Server:
    """Return the server of a store, as an ASGI application.

    Call it in the event loop that serves it. It closes nothing.

    Args:
        ks: A handle without a tenant, opened with `values="builtin"`.
        keys: The keys that it accepts.
        signer: The signer of links to approvals; without one, `/approvals` does not exist.
        limits: Limits of sizes, times and rates.
        inspector: Whether to serve the inspector, the page for browsers, at `/`.
        allow_hosts: The names of the server, besides those of the loopback interface.
        mcp: Serves tools for models at `/mcp`: those that read, or with `write` also those that write, for
            keys with the right. None serves none.
        tracing: Whether each request gets a span of OpenTelemetry. Those of the operations below it come from
            the observer of the handle.
        trace_url: The address of a trace, with `{trace_id}` for its id. The inspector then links moments
            that have a `traceparent` to their traces.

    Raises:
        InvalidError: The handle belongs to a tenant, or reads objects of classes; or `trace_url` is not an
            address of http or https with `{trace_id}`.
        MissingExtraError: `mcp` or `tracing` is given, and its package is not installed.
    """
    require_instance("ks", ks, Keepstate)
    require_instance("keys", keys, Keys)
    if ks.tenant_id is not None:
        raise InvalidError(f"{ks!r} belongs to a tenant; a server needs a handle without a tenant")
    if ks.states is not codec.FORMS:
        raise InvalidError(f'{ks!r} reads objects of classes; open it with values="builtin" for a server')
    if limits is not None:
        require_instance("limits", limits, Limits)
    if mcp not in (None, "read", "write"):
        raise InvalidError(f'`mcp` is {mcp!r}; give "read", "write" or None')
    if trace_url is not None:
        require_trace_url("trace_url", trace_url)
    files = StaticFiles(has_inspector=inspector)
    return Server(
        ks,
        keys,
        signer,
        limits or Limits(),
        allow_hosts,
        files,
        mcp,
        tracing=tracing,
        trace_url=trace_url,
    )


def require_trace_url(name: str, url: str) -> None:
    """Raise `InvalidError` unless an argument is an address of http or https with `{trace_id}`."""
    require_instance(name, url, str)
    told = f"`{name}` is {url!r}; give an address such as 'https://traces.example.org/trace/{{trace_id}}'"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidError(f"{told}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or "{" in parts.netloc:
        raise InvalidError(f"{told}, of http or https")
    if set(_PLACEHOLDER.findall(url)) != {TRACE_ID} or _UNPRINTABLE.search(url):
        raise InvalidError(f"{told}, with {TRACE_ID} and without other braces or spaces")


def _open_mcp(services: ServerParts, mode: McpMode) -> McpServer:
    require_mcp()
    from keepstate.server.mcp.mcp_server import McpServer

    return McpServer(services, is_writable=mode == "write")


def _traced(app: ASGIApp) -> ASGIApp:
    from keepstate.adapters.opentelemetry import RequestSpans

    return RequestSpans(app, _describe)


def _describe(scope: Scope) -> tuple[str | None, str | None]:
    """Return the operation and the key of a request."""
    grant: Grant | None = scope.get(GRANT)
    return scope.get(OPERATION), None if grant is None else grant.key.name


def require_mcp() -> None:
    """Raise `MissingExtraError` if the package of the protocol is not installed."""
    if find_spec("mcp") is None:
        install = "pip install 'keepstate[server,mcp]'"
        raise MissingExtraError(f"tools for models need mcp 2: {install}", install=install)


@cache
def document() -> bytes:
    """Return the OpenAPI document of the table, as JSON."""
    return msgspec.json.format(msgspec.json.encode(describe(OPERATIONS)), indent=1) + b"\n"


async def _answer_document(request: Request) -> Response:
    return Response(document(), 200, {"Cache-Control": "no-cache"}, JSON)


async def _answer_exception(request: Request, error: Exception) -> Response:
    """Answer for a path that does not exist, or a method that a path does not have."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = error.headers if isinstance(error, HTTPException) else None
    code = {404: "no_such_path", 405: "method_not_allowed"}.get(status, "refused")
    return respond_to(
        RefusedError(
            status, code, f"{request.method} {request.url.path} is not an operation", headers=headers
        )
    )
