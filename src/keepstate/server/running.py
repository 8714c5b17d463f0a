"""Running a server with uvicorn: binding, starting, and ending with open streams.

SIGTERM ends it in three steps: `/readyz` fails while requests are still answered, then streams end, then what
is still running gets some seconds. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Final

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from keepstate.errors import InvalidError, NotAllowedError
from keepstate.server.app import Server
from keepstate.server.dispatch import ABORT

_GRACE_S: Final = 5
_HEADER_S: Final = 10
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class RunningServer(uvicorn.Server):
    """A server of one process.

    Args:
        app: The application.
        drain_s: Seconds between the failing of `/readyz` and the end of streams.
        on_start: Called once the server answers, and handles signals.
    """

    def __init__(self, app: Server, *, drain_s: float, on_start: Callable[[], None] | None = None) -> None:
        self._app, self._drain_s, self._on_start = app, drain_s, on_start
        super().__init__(
            uvicorn.Config(
                self._with_abort,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                ws="none",
                http="h11",
                interface="asgi3",
                lifespan="on",
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._silent_since: dict[H11Protocol, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def _with_abort(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[ABORT] = self._aborter(scope.get("client"))
        await self._app(scope, receive, send)

    def _aborter(self, client: object) -> Callable[[], None]:
        def abort() -> None:
            for connection in self._connections():
                if connection.client == client:
                    connection.transport.abort()

        return abort

    def _connections(self) -> list[H11Protocol]:
        return [each for each in self.server_state.connections if isinstance(each, H11Protocol)]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the store and listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._on_start is not None and not self.should_exit:
            self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """Look once a second for connections to close; called ten times a second."""
        if counter % 10 == 0:
            self._close_silent()
        return await super().on_tick(counter)

    def _close_silent(self) -> None:
        """Close connections on which a request has begun, whose headers do not end."""
        now_s = asyncio.get_running_loop().time()
        silent = [each for each in self._connections() if _is_silent(each)]
        self._silent_since = {each: self._silent_since.get(each, now_s) for each in silent}
        for connection, since_s in self._silent_since.items():
            if now_s - since_s > _HEADER_S:
                connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle signals while the block runs, and leave them handled at its end.

        A server that was asked to stop has done what it was asked: the process goes on, and ends well.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        former = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in former.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end, or end at once at the second signal."""
        if self._app.is_draining or self._loop is None:
            self.force_exit = True
            self._end()
            return
        self._app.is_draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, self._drain_s, self._end)

    def _end(self) -> None:
        self.should_exit = True
        self._app.stop()


def _is_silent(connection: H11Protocol) -> bool:
    """Return whether a connection waits for the rest of a request's headers, or for a first request."""
    return connection.conn.their_state is h11.IDLE and connection.timeout_keep_alive_task is None


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        InvalidError: The host or the port cannot be bound.
    """
    require_port(port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidError(f"{host!r} is not a host of this machine: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1_024)
    except OSError as error:
        listener.close()
        raise InvalidError(f"{host}:{port} cannot be bound: {error}") from error
    return listener


def require_port(port: int) -> None:
    """Raise `InvalidError` unless a number is one of a port."""
    if not 0 <= port < 1 << 16:
        raise InvalidError(f"port {port} cannot be bound; give 0 to 65535")


def is_loopback(host: str) -> bool:
    """Return whether a host is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def require_keys(app: Server, host: str) -> None:
    """Raise `NotAllowedError` if other machines reach the host, and no key is stored."""
    if not is_loopback(host) and not await app.keys.has_valid():
        raise NotAllowedError(
            f"{host} is reached from other machines, and no valid key is stored; add one with "
            "`keepstate keys add`, or bind 127.0.0.1"
        )
