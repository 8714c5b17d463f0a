"""One connection to one server, in either colour: the only place that knows the driver and its errors.

Errors are told apart by what became of the commands: `StoreUnavailableError` if they were never sent, and
`OutcomeUnknownError` if they were and the answer did not come. What the server itself answered in place of a
reply is a `Refusal`, which the caller judges.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

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


_hiredis: Any = hiredis  # its stub has `pack_command` take a single word


class Refusal(NamedTuple):
    """An error that a server answered: its code, as `MOVED`, and what follows it."""

    code: str
    text: str


Reply: TypeAlias = "bytes | int | Refusal | list[Reply] | None"


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect: the same for all servers of a store."""

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


class Wire(Protocol):
    """A connection. Whoever sees it raise has to discard it."""

    async def connect(self) -> None:
        """Connect and logs in.

        Raises:
            StoreUnavailableError: Nobody listens there, or did not answer in time.
            InvalidError: User or password are wrong, or a certificate.
        """
        ...

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands and return the replies, one for each; in between it awaits `sent`.

        Raises:
            OutcomeUnknownError: No answer came, in full.
        """
        ...

    async def is_stale(self) -> bool:
        """Return whether an idle connection was closed by the server, or holds what nobody asked for."""
        ...

    async def close(self) -> None:
        """Disconnect in order; twice is once."""
        ...

    async def drop(self) -> None:
        """Disconnect without waiting for anything, also while the caller is being cancelled."""
        ...


def open_wire(mode: Mode, address: Address, access: Access) -> Wire:
    """Return a wire that is not yet connected."""
    return TaskWire(address, access) if mode == "async" else BlockingWire(address, access)


def pack(words: Words) -> bytes:
    """Return a command as it is sent."""
    packed: bytes = _hiredis.pack_command(tuple(words))
    return packed


class BlockingWire:
    """A wire that blocks its thread."""

    def __init__(self, address: Address, access: Access) -> None:
        self._address, self._access = address, access
        kind: Any = SSLConnection if access.tls else Connection
        self._connection: Any = kind(socket_timeout=access.timeout_s, **_arguments(address, access))

    async def connect(self) -> None:
        """Connect and logs in."""
        try:
            self._connection.connect()
        except (RedisError, OSError) as error:
            raise _unreached(self._address, self._access, error) from error

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands and return the replies, one for each; in between it awaits `sent`."""
        connection = self._connection
        try:
            connection.send_packed_command((packet,), check_health=False)
            if sent is not None:
                await sent
            return [self._reply() for _ in range(count)]
        except (RedisError, OSError) as error:
            raise _unanswered(self._address, self._access, error) from error

    def _reply(self) -> Reply:
        try:
            reply = self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (ResponseError, BusyLoadingError) as error:
            return _refusal(error)
        return _plain(reply)

    async def is_stale(self) -> bool:
        """Return whether the server has closed it, or left what nobody asked for."""
        try:
            return bool(self._connection.can_read(timeout=0))
        except (RedisError, OSError):
            return True

    async def close(self) -> None:
        """Disconnect; twice is once."""
        self._connection.disconnect()

    async def drop(self) -> None:
        """Disconnect: here that waits for nothing."""
        self._connection.disconnect()


class TaskWire:
    """A wire that waits in an event loop.

    The driver's own timeouts are off: they cost a task each, and one around the whole exchange does as well.
    """

    def __init__(self, address: Address, access: Access) -> None:
        self._address, self._access = address, access
        kind: Any = TaskTlsConnection if access.tls else TaskConnection
        self._connection: Any = kind(socket_timeout=None, **_arguments(address, access))
        self._alarm = _Alarm(access.timeout_s)

    async def connect(self) -> None:
        """Connect and logs in."""
        try:
            async with asyncio.timeout(self._access.timeout_s):
                await self._connection.connect()
        except (RedisError, OSError) as error:
            raise _unreached(self._address, self._access, error) from error

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands and return the replies, one for each; in between it awaits `sent`."""
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
                raise _unanswered(self._address, self._access, TimeoutError()) from error
            raise
        except (RedisError, OSError) as error:
            raise _unanswered(self._address, self._access, error) from error
        finally:
            alarm.stop()

    async def send(self, packet: bytes) -> None:
        """Send packed commands whose replies `receive` takes."""
        try:
            await self._connection.send_packed_command((packet,), check_health=False)
        except (RedisError, OSError) as error:
            raise _unanswered(self._address, self._access, error) from error

    async def receive(self) -> Reply:
        """Wait, however long, for the next reply."""
        try:
            return await self._reply()
        except (RedisError, OSError) as error:
            raise _unanswered(self._address, self._access, error) from error

    async def _reply(self) -> Reply:
        try:
            reply = await self._connection.read_response(disable_decoding=True, disconnect_on_error=False)
        except (ResponseError, BusyLoadingError) as error:
            return _refusal(error)
        return _plain(reply)

    async def is_stale(self) -> bool:
        """Return whether the server has closed it, or left what nobody asked for."""
        try:
            return bool(await self._connection.can_read())
        except (RedisError, OSError):
            return True

    async def close(self) -> None:
        """Disconnect and let TLS say goodbye; twice is once."""
        with suppress(RedisError, OSError):
            await self._connection.disconnect()

    async def drop(self) -> None:
        """Disconnect without waiting for anything, also while the caller is being cancelled."""
        await self._connection.disconnect(nowait=True)


class _Alarm:
    """Cancels the task of an exchange that lasts too long, as `asyncio.timeout` does.

    That one sets a timer of the loop for each exchange and takes it back, a tenth of what the exchange costs
    this process. Here one timer stands for many: when it goes off it looks who is under way and since when.
    """

    __slots__ = ("_cancelling", "_due_s", "_has_rung", "_loop", "_task", "_timeout_s", "_timer")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Watch over what the present task awaits from here on."""
        loop = self._loop = asyncio.get_running_loop()
        task = self._task = asyncio.current_task()
        self._has_rung, self._cancelling = False, task.cancelling() if task is not None else 0
        self._due_s = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_at(self._due_s, self._look)

    def stop(self) -> bool:
        """Watch no longer; returns whether this alarm, and nobody else, has cancelled the task."""
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


def _plain(reply: Any) -> Reply:
    """Return a reply whose errors inside a list are refusals as well."""
    if type(reply) is list:
        answers = cast("list[object]", reply)
        for place, answer in enumerate(answers):
            if isinstance(answer, Exception):
                answers[place] = _refusal(answer)
    return cast("Reply", reply)


# ---- the driver's errors

_NO_DATABASE: Final = "DB index is out of range"


_SCRIPT_PLACE = re.compile(r",? *script: [0-9a-f]{40}, on @user_script:\d+")


def _said(error: Exception) -> str:
    """Return an error's message without its full stop, and without the line of our own script."""
    return _SCRIPT_PLACE.sub("", str(error)).rstrip(". ")


def _refusal(error: Exception) -> Refusal:
    """Return what the server said; the driver cuts off the codes that it knows."""
    text, code = _said(error), getattr(error, "status_code", None)
    if code is None:
        code, _, text = text.partition(" ")
    return Refusal(str(code), text)


def _unreached(address: Address, access: Access, error: Exception) -> StorageError | InvalidError:
    said = _said(error)
    if isinstance(error, AuthenticationError):
        return refused_login(access.url, f"{address}: {said}")
    if _NO_DATABASE in said:
        return InvalidError(f"{access.url} has no such database at {address}: {said}; give a lower number")
    if "CERTIFICATE" in said.upper():
        return InvalidError(
            f"{access.url}: no trusted TLS at {address}: {said}; say whom to trust with tls_ca="
        )
    return StoreUnavailableError(
        f"{access.url} is not reached at {address}: {said or 'no answer'}; is the server up?",
        url=access.url,
    )


def _unanswered(address: Address, access: Access, error: Exception) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{access.url} did not answer at {address}: {_said(error) or f'nothing for {access.timeout_s} s'}",
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
    """Return the error of a server that does not let this user in."""
    return InvalidError(f"{url} refuses user and password at {said}; mend them in the URL")


def refused(refusal: Refusal, url: str, space: str | None = None) -> StorageError:
    """Return the error that a server's answer means.

    An answer that is not known to mean "nothing was written" is an `OutcomeUnknownError`.
    """
    said = f"{refusal.code} {refusal.text}"
    where = url if space is None else f"space {space!r} at {url}"
    if refusal.code == "OOM" or "No space left" in refusal.text:
        return StoreFullError(
            f"{where} has no room: {said}; give the server more, or delete", url=url, space=space
        )
    if refusal.code in _PASSING:
        is_read_only = refusal.code == "READONLY"
        return StoreUnavailableError(
            f"{where} cannot answer for now: {said}", url=url, space=space, is_read_only=is_read_only
        )
    if refusal.code in _FORBIDDEN:
        return StorageError(
            f"{where} may not be used so: {said}; give the user the right", url=url, space=space
        )
    if refusal.code == "WRONGTYPE":
        return CorruptError(
            f"{where} has a key that is not keepstate's: {said}; choose another prefix=", url=url, space=space
        )
    return OutcomeUnknownError(f"{where} answered with an error: {said}", url=url, space=space)
