"""One connection to one server, async or blocking; no other module knows the driver and its errors.

The error says what became of the commands: `StoreUnavailableError` if they were never sent, and
`OutcomeUnknownError` if they were sent and no reply came. An error that the server itself replied is a
`Refusal`, which the caller judges.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from keepstate._runner import Mode
from keepstate.errors import (
    CorruptError,
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.pool import Slot
from keepstate.stores.urls import missing_extra

try:
    import hiredis
    from redis.asyncio.connection import Connection as TaskConnection
    from redis.asyncio.connection import SSLConnection as TaskTlsConnection
    from redis.connection import Connection, SSLConnection
    from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
except ImportError as error:
    raise missing_extra("redis", "redis and hiredis", "redis", error) from error

Words: TypeAlias = Sequence[bytes]
"""A command and its arguments."""

_hiredis: Any = hiredis  # its stub allows `pack_command` a single word only


class Refusal(NamedTuple):
    """An error that a server replied: its code, such as `MOVED`, and the rest of its text."""

    code: str
    text: str


Reply: TypeAlias = "bytes | int | Refusal | list[Reply] | None"


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of connections, the same for all servers of a store."""

    url: str
    """Names the store in errors; without a password."""
    user: str | None
    password: str | None
    database: int
    timeout_s: float
    tls: bool
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None

    def __repr__(self) -> str:
        return f"<Access to {self.url}>"


class Wire(ABC):
    """A connection. After any error it must be discarded.

    Attributes:
        slot: Its slot in the pool.
        used_s: When it was used last.
    """

    def __init__(self, address: Address, access: Access, connection: Any) -> None:
        self._address, self._access, self._connection = address, access, connection
        self.slot: Slot | None = None
        self.used_s = 0.0

    @abstractmethod
    async def connect(self) -> None:
        """Connect and log in.

        Raises:
            StoreUnavailableError: No server listens there, or it did not answer in time.
            InvalidError: The user, the password or a certificate is wrong.
        """

    @abstractmethod
    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands, await `sent`, and return the replies, one for each command.

        Raises:
            OutcomeUnknownError: Not all replies came.
        """

    @abstractmethod
    async def is_alive(self) -> bool:
        """Return whether an idle connection is open, and holds no bytes that nothing asked for."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect in order; a second call does nothing."""

    @abstractmethod
    async def drop(self) -> None:
        """Disconnect without waiting, also while the caller is being cancelled."""

    def _unanswered(self, error: Exception) -> OutcomeUnknownError:
        said = _text_of(error) or f"nothing for {self._access.timeout_s} s"
        return OutcomeUnknownError(
            f"{self._access.url} did not answer at {self._address}: {said}", url=self._access.url
        )


def open_wire(mode: Mode, address: Address, access: Access) -> Wire:
    """Return a connection that is not connected yet."""
    return TaskWire(address, access) if mode == "async" else BlockingWire(address, access)


def pack(words: Words) -> bytes:
    """Return a command in the form in which it is sent."""
    packed: bytes = _hiredis.pack_command(tuple(words))
    return packed


class BlockingWire(Wire):
    """A connection that blocks its thread."""

    def __init__(self, address: Address, access: Access) -> None:
        kind: Any = SSLConnection if access.tls else Connection
        super().__init__(
            address, access, kind(socket_timeout=access.timeout_s, **_arguments(address, access))
        )

    async def connect(self) -> None:
        """Connect and log in."""
        try:
            self._connection.connect()
        except (RedisError, OSError) as error:
            raise _unreached(self._address, self._access, error) from error

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands, await `sent`, and return the replies, one for each command."""
        connection = self._connection
        try:
            connection.send_packed_command((packet,), check_health=False)
            if sent is not None:
                await sent
            return [self._reply() for _ in range(count)]
        except (RedisError, OSError) as error:
            raise self._unanswered(error) from error

    def _reply(self) -> Reply:
        try:
            reply = self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (ResponseError, BusyLoadingError) as error:
            return _refusal(error)
        return _with_refusals(reply)

    async def is_alive(self) -> bool:
        """Return whether the connection is open, and holds no bytes that nothing asked for."""
        try:
            return not self._connection.can_read(timeout=0)
        except (RedisError, OSError):
            return False

    async def close(self) -> None:
        """Disconnect; a second call does nothing."""
        self._connection.disconnect()

    drop = close  # disconnecting does not wait here


class TaskWire(Wire):
    """A connection that waits in an event loop.

    The driver's own timeouts are off: they cost a task each, and so does one around the whole exchange.
    """

    def __init__(self, address: Address, access: Access) -> None:
        kind: Any = TaskTlsConnection if access.tls else TaskConnection
        super().__init__(address, access, kind(socket_timeout=None, **_arguments(address, access)))
        self._alarm = _Alarm(access.timeout_s)

    async def connect(self) -> None:
        """Connect and log in."""
        try:
            async with asyncio.timeout(self._access.timeout_s):
                await self._connection.connect()
        except (RedisError, OSError) as error:
            raise _unreached(self._address, self._access, error) from error

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands, await `sent`, and return the replies, one for each command."""
        connection, alarm = self._connection, self._alarm
        alarm.start()
        try:
            await connection.send_packed_command((packet,), check_health=False)
            if sent is not None:
                await sent
            if count == 1:
                return [await self._reply()]
            return [await self._reply() for _ in range(count)]
        except asyncio.CancelledError as error:
            if alarm.stop():
                raise self._unanswered(TimeoutError()) from error
            raise
        except (RedisError, OSError) as error:
            raise self._unanswered(error) from error
        finally:
            alarm.stop()

    async def send(self, packet: bytes) -> None:
        """Send packed commands, whose replies `receive` returns."""
        try:
            await self._connection.send_packed_command((packet,), check_health=False)
        except (RedisError, OSError) as error:
            raise self._unanswered(error) from error

    async def receive(self) -> Reply:
        """Wait without a timeout for the next reply."""
        try:
            return await self._reply()
        except (RedisError, OSError) as error:
            raise self._unanswered(error) from error

    async def _reply(self) -> Reply:
        try:
            reply = await self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (ResponseError, BusyLoadingError) as error:
            return _refusal(error)
        return _with_refusals(reply)

    async def is_alive(self) -> bool:
        """Return whether the connection is open, and holds no bytes that nothing asked for."""
        try:
            return not await self._connection.can_read()
        except (RedisError, OSError):
            return False

    async def close(self) -> None:
        """Disconnect and shut down TLS; a second call does nothing."""
        with suppress(RedisError, OSError):
            await self._connection.disconnect()

    async def drop(self) -> None:
        """Disconnect without waiting, also while the caller is being cancelled."""
        await self._connection.disconnect(nowait=True)


class _Alarm:
    """Cancels the task of an exchange that lasts too long, as `asyncio.timeout` does.

    `asyncio.timeout` sets and cancels a timer of the loop for each exchange, a tenth of what the exchange
    costs this process. Here one timer serves many exchanges: when it fires, it checks how long the present
    one has lasted.
    """

    __slots__ = ("_cancelling", "_due_s", "_has_rung", "_loop", "_task", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Start watching the present task."""
        loop = self._loop = asyncio.get_running_loop()
        task = self._task = asyncio.current_task()
        self._has_rung, self._cancelling = False, task.cancelling() if task is not None else 0
        self._due_s = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_at(self._due_s, self._look)

    def stop(self) -> bool:
        """Stop watching, and return whether this alarm alone has cancelled the task."""
        task, self._task = self._task, None
        return self._has_rung and task is not None and task.uncancel() <= self._cancelling

    def _look(self) -> None:
        self._timer = None
        if self._task is None or self._has_rung:
            return
        if self._loop.time() >= self._due_s:
            self._has_rung = True
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(self._due_s, self._look)


def _arguments(address: Address, access: Access) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": access.database,
        "username": access.user,
        "password": access.password,
        "socket_connect_timeout": access.timeout_s,
        "protocol": 2,
    }
    if access.tls:
        arguments |= {
            "ssl_ca_certs": access.tls_ca,
            "ssl_certfile": access.tls_cert,
            "ssl_keyfile": access.tls_key,
        }
    return arguments


def _with_refusals(reply: Any) -> Reply:
    """Return a reply in which the errors of a list are refusals too."""
    if type(reply) is list:
        answers = cast("list[object]", reply)
        for index, answer in enumerate(answers):
            if isinstance(answer, Exception):
                answers[index] = _refusal(answer)
    return cast("Reply", reply)


# ---- the driver's errors

_NO_DATABASE: Final = "DB index is out of range"
_SCRIPT_LINE = re.compile(r",? *script: [0-9a-f]{40}, on @user_script:\d+")


def _text_of(error: Exception) -> str:
    """Return an error's message without its full stop and the line number of our own script."""
    return _SCRIPT_LINE.sub("", str(error)).rstrip(". ")


def _refusal(error: Exception) -> Refusal:
    """Return the server's error; the driver cuts off the codes that it knows."""
    text, code = _text_of(error), getattr(error, "status_code", None)
    if code is None:
        code, _, text = text.partition(" ")
    return Refusal(str(code), text)


def _unreached(address: Address, access: Access, error: Exception) -> StorageError | InvalidError:
    said = _text_of(error)
    if isinstance(error, AuthenticationError):
        return refused_login(access.url, f"{address}: {said}")
    if _NO_DATABASE in said:
        return InvalidError(f"{access.url} has no such database at {address}: {said}. Use a lower number.")
    if "CERTIFICATE" in said.upper():
        return InvalidError(
            f"{access.url} has no trusted TLS at {address}: {said}. Name trusted certificates with tls_ca="
        )
    return StoreUnavailableError(
        f"{access.url} was not reached at {address}: {said or 'no answer'}. Check that the server is up.",
        url=access.url,
    )


# ---- the server's errors

MOVED: Final = "MOVED"
ASK: Final = "ASK"
UNKNOWN_SCRIPT: Final = "NOSCRIPT"

_PASSING = {
    "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "READONLY", "BUSY", "NOREPLICAS", "MISCONF",
    "EXECABORT", MOVED, ASK, UNKNOWN_SCRIPT,
}  # fmt: skip
NO_LOGIN: Final = {"NOAUTH", "WRONGPASS"}
_FORBIDDEN = {"NOPERM", *NO_LOGIN}


def refused_login(url: str, said: str) -> InvalidError:
    """Return the error for a server that rejects the user or password."""
    return InvalidError(f"{url} rejects user and password at {said}. Correct them in the URL.")


def refused(refusal: Refusal, url: str, space: str | None = None) -> StorageError:
    """Return the error for an error that a server replied.

    It is an `OutcomeUnknownError` unless the code is known to mean that nothing was written.
    """
    said = f"{refusal.code} {refusal.text}"
    where = url if space is None else f"space {space!r} at {url}"
    if refusal.code == "OOM" or "No space left" in refusal.text:
        return StoreFullError(
            f"{where} has no room: {said}. Give the server more room, or delete data.", url=url, space=space
        )
    if refusal.code in _PASSING:
        is_read_only = refusal.code == "READONLY"
        return StoreUnavailableError(
            f"{where} cannot answer now: {said}", url=url, space=space, is_read_only=is_read_only
        )
    if refusal.code in _FORBIDDEN:
        return StorageError(
            f"{where} does not permit this: {said}. Grant the user the right.", url=url, space=space
        )
    if refusal.code == "WRONGTYPE":
        return CorruptError(
            f"{where} has a key that is not keepstate's: {said}. Use another prefix=", url=url, space=space
        )
    return OutcomeUnknownError(f"{where} answered with an error: {said}", url=url, space=space)
