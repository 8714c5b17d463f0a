"""Calls to one server over kept connections, async or blocking; no other module knows httpx's errors.

The error says what became of a call: `StoreUnavailableError` if it was never sent or had no effect, and
`OutcomeUnknownError` if it was sent, may have written, and no answer came.

The transports of httpx are used without its client, which would log each request at INFO, read the
environment and keep cookies.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import quote
from weakref import finalize

import msgspec

from keepstate._runner import Mode
from keepstate.errors import (
    CorruptError,
    InvalidError,
    KeepstateError,
    NotAllowedError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.stores.http import wire
from keepstate.stores.http.wire import Call, Opened, Problem
from keepstate.stores.retries import RETRY_FOR_S
from keepstate.stores.urls import StoreUrl, missing_extra

try:
    import httpx
except ImportError as error:
    raise missing_extra("http", "httpx", "http", error) from error

T = TypeVar("T")

_IDLE_S: Final = 4.0
"""Seconds after which an idle connection is not used again: uvicorn closes one after 5."""

_SHARE: Final = 0.9
"""Share of the client's patience that the server may use, so that its answer arrives in time."""

_FRAME_BYTES: Final = 32 << 20
"""Size of the largest frame of a stream of hints; a server sends no larger one."""

_SILENCE_S: Final = 3 * wire.HEARTBEAT_S

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_TIMEOUTS: Final = ("connect", "read", "write", "pool")
_MAY_PASS: Final = frozenset({429})
_ERROR: Final = 400

_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an HTTP URL."""

    key: str | None = None
    """The key that the server knows this client by."""
    timeout_s: _Seconds = 10.0
    """Seconds to wait for a connection, and for an answer."""
    retry_for_s: Annotated[float, msgspec.Meta(ge=0)] = RETRY_FOR_S
    """Seconds for which calls are retried while the server is unavailable."""
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    """Maximum number of connections that calls share; a stream of hints has one more."""
    tls_ca: str | None = None
    """A file with the trusted certificates, instead of the system's."""


def base_of(url: StoreUrl) -> str:
    """Return the prefix of the addresses of a server's calls; an `InvalidError` shows the syntax."""
    servers = url.servers()
    if len(servers) != 1 or not servers[0][0]:
        raise InvalidError(f"{url} does not name one server. Write {url.scheme}://HOST:PORT")
    if url.user is not None or url.password is not None:
        raise InvalidError(f"{url} has a user or password. Pass the key of the server as the option key.")
    path = quote(url.path.strip("/"))
    return f"{url.scheme}://{url.host}/{path}{'/' if path else ''}store/"


def sends_key_openly(url: StoreUrl, options: HttpOptions) -> bool:
    """Return whether the key would travel unencrypted through a network."""
    host = url.servers()[0][0]
    if url.scheme == "https" or options.key is None or host == "localhost":
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


class Client:
    """Sends calls to the server of one store.

    Args:
        url: The URL of the store in its parts.
        options: Its options.
        mode: Decides which of the two transports to use.
    """

    def __init__(self, url: StoreUrl, options: HttpOptions, mode: Mode) -> None:
        self.url, self._options = str(url), options
        self._base, self._mode = base_of(url), mode
        self._addresses: dict[str, httpx.URL] = {}
        self._headers = _headers(options)
        self._tls = _tls(options.tls_ca, self.url) if url.scheme == "https" else None
        self._timeouts: dict[str, float] = dict.fromkeys(_TIMEOUTS, options.timeout_s)
        limits = httpx.Limits(
            max_connections=options.max_connections,
            max_keepalive_connections=options.max_connections,
            keepalive_expiry=_IDLE_S,
        )
        self._tasks = self._threads = None
        if mode == "async":
            self._tasks = self._task_transport(limits)
        else:
            self._threads = httpx.HTTPTransport(verify=self._tls or False, trust_env=False, limits=limits)
        self._lock = threading.Lock()
        self._exchanges, self._is_closed = 0, False
        self._tasks_held = set[asyncio.Task[httpx.Response]]()
        self._ended = asyncio.Event()
        self._finalizer: finalize[..., Client] | None = None
        self.speak(wire.VERSION)

    def _task_transport(self, limits: httpx.Limits) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._tls or False, trust_env=False, limits=limits)

    def speak(self, version: int) -> None:
        """Send later calls in this version."""
        self._headers[wire.VERSION_HEADER] = str(version)

    async def close(self) -> None:
        """Close the connections."""
        if self._finalizer is not None:
            self._finalizer.detach()
        with self._lock:
            self._is_closed, is_idle = True, not self._exchanges
        if self._tasks is not None and not is_idle:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.timeout_s):
                    await self._ended.wait()
        if is_idle:
            await self._disconnect()

    async def _disconnect(self) -> None:
        if self._tasks is not None:
            await self._tasks.aclose()
        if self._threads is not None:
            self._threads.close()

    async def open(self) -> Opened:
        """Agree on a version with the server, and return the capabilities of its store.

        Raises:
            UnsupportedError: The server speaks none of this release's versions.
        """
        if self._threads is not None:  # a client that is dropped while open leaves no open socket
            self._finalizer = finalize(self, self._threads.close)
        elif self._tasks is not None:
            self._finalizer = finalize(self, _close_soon, self._tasks, asyncio.get_running_loop())
        opened = await self.ask(wire.OpenCall(versions=list(wire.spoken())), Opened)
        if opened.version not in wire.spoken():
            raise UnsupportedError(
                f"{self.url} speaks version {opened.version} of the messages, and this release of keepstate "
                f"{_listed(wire.spoken())}. Upgrade the older of the two."
            )
        self.speak(opened.version)
        return opened

    async def ask(self, call: Call, answer: type[T], *, writes: bool = False) -> T:
        """Send a call and return its answer.

        Args:
            call: The call.
            answer: The type of the answer.
            writes: Whether the server may have written something although no answer came.

        Raises:
            ProblemError: The server answered with a problem of its own.
            NotAllowedError: The server does not accept the key.
            StoreUnavailableError: The server was not reached, or did not answer a call that only reads.
            OutcomeUnknownError: The server may or may not have done what the call asks for.
        """
        return await self.send(call.name, wire.encode(call), answer, writes=writes)

    async def send(self, name: str, body: bytes, answer: type[T], *, writes: bool = False) -> T:
        """Send an encoded call and return its answer; see `ask`."""
        request = self._request(name, body, self._timeouts)
        try:
            response = await self._exchange(request)
        except httpx.HTTPError as error:
            raise self._transport_error(error, writes=writes) from error
        if response.status_code >= _ERROR or response.headers.get("content-type") != wire.MEDIA_TYPE:
            raise self._answered_error(response, writes=writes)
        try:
            found: T = _decoder(answer).decode(response.content)
        except msgspec.MsgspecError as error:
            raise CorruptError(
                f"{self.url} answered {name!r} with a message that cannot be read ({error}). Check that "
                "nothing between the server and this process changes bodies.",
                url=self.url,
            ) from error
        return found

    async def _exchange(self, request: httpx.Request) -> httpx.Response:
        """Return the whole response.

        In async mode a task of its own reads it, and goes on if the caller is cancelled: a connection that is
        cancelled while it is being opened would leak its socket.
        """
        if self._threads is not None:
            return await self._exchange_here(request)
        task = asyncio.get_running_loop().create_task(self._exchange_here(request))
        self._tasks_held.add(task)
        task.add_done_callback(self._tasks_held.discard)
        return await asyncio.shield(task)

    async def _exchange_here(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self._exchanges += 1
        try:
            if self._tasks is not None:
                response = await self._tasks.handle_async_request(request)
                await response.aread()
            else:
                assert self._threads is not None
                response = self._threads.handle_request(request)
                response.read()
            return response
        finally:
            with self._lock:
                self._exchanges -= 1
                is_last = self._is_closed and not self._exchanges
            if is_last:  # a call that was under way when the client was closed has connected again
                await self._disconnect()
                self._ended.set()

    async def hints(self, call: wire.HintsCall) -> AsyncGenerator[list[str]]:
        """Yield the spaces that may have changed, in an event loop in both modes; first an empty list.

        Raises:
            StoreUnavailableError: The stream could not be opened, ended, or was silent for too long.
        """
        transport = self._task_transport(httpx.Limits(max_connections=1))
        timeouts = {**self._timeouts, "read": _SILENCE_S}
        try:
            response = await transport.handle_async_request(
                self._request(call.name, wire.encode(call), timeouts)
            )
            if response.status_code >= _ERROR:
                await response.aread()
                raise self._answered_error(response, writes=False)
            received = bytearray()
            async for part in response.aiter_raw():
                received += part
                while (names := self._take_frame(received)) is not None:
                    yield names
        except httpx.HTTPError as error:
            raise self._transport_error(error, writes=False) from error
        finally:
            await transport.aclose()
        raise StoreUnavailableError(f"{self.url} ended its stream of hints.", url=self.url)

    def _take_frame(self, received: bytearray) -> list[str] | None:
        """Remove the first frame from the received bytes and return its names; None if it is not whole."""
        size = int.from_bytes(received[:4]) if len(received) >= 4 else 0
        if size > _FRAME_BYTES:
            raise CorruptError(f"{self.url} sent a frame of {size} bytes in its stream of hints.")
        if len(received) < 4 + size or not size:
            return None
        body = bytes(received[4 : 4 + size])
        del received[: 4 + size]
        try:
            return cast("list[str]", _decoder(list[str]).decode(body))
        except msgspec.MsgspecError as error:
            raise CorruptError(f"{self.url} sent a frame of hints that cannot be read: {error}") from error

    def _request(self, name: str, body: bytes, timeouts: Mapping[str, float]) -> httpx.Request:
        address = self._addresses.get(name)
        if address is None:
            address = self._addresses[name] = httpx.URL(self._base + name)
        return httpx.Request(
            "POST", address, headers=self._headers, content=body, extensions={"timeout": timeouts}
        )

    # ---- errors

    def _transport_error(self, error: httpx.HTTPError, *, writes: bool) -> StorageError | InvalidError:
        said = str(error).rstrip(". ") or type(error).__name__
        if "CERTIFICATE" in said.upper():
            return InvalidError(
                f"{self.url} has no trusted TLS: {said}. Name trusted certificates with tls_ca="
            )
        if isinstance(error, httpx.PoolTimeout):
            said = f"all {self._options.max_connections} connections are in use; raise max_connections"
        if isinstance(error, _UNSENT):
            return StoreUnavailableError(
                f"{self.url} was not reached: {said}. Check that the server is up.", url=self.url
            )
        kind = OutcomeUnknownError if writes else StoreUnavailableError
        return kind(f"{self.url} did not answer: {said}.", url=self.url)

    def _answered_error(self, response: httpx.Response, *, writes: bool) -> KeepstateError:
        status, kind = response.status_code, response.headers.get("content-type", "")
        if kind == wire.PROBLEM_TYPE:
            try:
                problem = _decoder(Problem).decode(response.content)
            except msgspec.MsgspecError:
                pass  # it is judged by its status
            else:
                return ProblemError(problem, self.url)
        said = f"{self.url} answered {status}"
        if status in (401, 403):
            return NotAllowedError(f"{said}: it does not accept the key. Correct the option key of the URL.")
        if status in (404, 405) or status < _ERROR:
            return InvalidError(
                f"{said}: no server of keepstate serves a store there. Correct the host or the path."
            )
        if status == 413:
            return InvalidError(
                f"{said}: something before the server takes smaller bodies only. Let it take "
                f"{wire.BODY_BYTES >> 20} MiB."
            )
        if status < 500 and status not in _MAY_PASS:
            return StorageError(f"{said}, which no server of keepstate does. Report this.", url=self.url)
        unknown = writes and status not in _MAY_PASS  # a proxy may have passed the call on
        return (OutcomeUnknownError if unknown else StoreUnavailableError)(f"{said}.", url=self.url)


class ProblemError(KeepstateError):
    """A problem that the server answered with, for the store to translate."""

    def __init__(self, problem: Problem, url: str) -> None:
        super().__init__(problem.detail)
        self.problem = problem
        self.error = wire.error_of(problem, url=url)


def _headers(options: HttpOptions) -> dict[str, str]:
    headers = {
        "accept": f"{wire.MEDIA_TYPE}, {wire.PROBLEM_TYPE}",
        "accept-encoding": "identity",
        "content-type": wire.MEDIA_TYPE,
        wire.DEADLINE_HEADER: str(max(1, round(_SHARE * 1000 * options.timeout_s))),
    }
    if options.key is not None:
        if not options.key.isascii() or not options.key.isprintable():
            raise InvalidError("The option key holds a character that no key has. Copy the key again.")
        headers["authorization"] = f"Bearer {options.key}"
    return headers


def _tls(ca: str | None, url: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidError(f"The option tls_ca of {url} does not name certificates: {error}") from error


_decoders: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {}


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of a type, made once."""
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return found


def _close_soon(transport: httpx.AsyncHTTPTransport, loop: asyncio.AbstractEventLoop) -> None:
    """Close a transport in its loop, if that still runs; from any thread."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: loop.create_task(transport.aclose()))


def _listed(versions: range) -> str:
    return " and ".join(map(str, versions))
