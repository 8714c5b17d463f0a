"""One connection to the server, async or blocking, used in pipelines of binary statements.

The driver connects and frames. Its cursors and adapters are not used, because one of them costs as much as
the call; `wire` packs values instead. A conversation that does not end leaves the connection in an unknown
state, so the connection is closed.

Statements are prepared only on a direct connection to one server process. A pooler may give each transaction
to another process. It is detected by the process number: the one reported at the start is not the one that
answers.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import ref

from keepstate._runner import Runner
from keepstate.stores.pool import Slot
from keepstate.stores.urls import missing_extra

try:
    import psycopg
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus
except ImportError as error:
    raise missing_extra("postgresql", "psycopg", "postgres", error) from error

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Driver = psycopg.Connection[tuple[object, ...]] | psycopg.AsyncConnection[tuple[object, ...]]

_READ: Final = select.POLLIN
_READ_OR_WRITE: Final = select.POLLIN | select.POLLOUT
_CLOSED_FOR_GOOD: Final = ("FATAL", "PANIC")
_BINARY: Final = 1
_IS_SYNC, _IS_FAILURE, _IS_BAD = ExecStatus.PIPELINE_SYNC, ExecStatus.FATAL_ERROR, ConnStatus.BAD


_drivers: set[Driver] = set()
"""The open drivers. A driver that is dropped while open warns, in addition to the warning of its store."""


class Statement(NamedTuple):
    """A statement and its values in binary form; `kept` may be prepared under the name, if there is one."""

    text: bytes
    values: Sequence[bytes | None] = ()
    name: bytes = b""
    kept: bytes = b""


class RefusedStatement(Exception):  # noqa: N818  it is the server's answer
    """The server refused a statement and rolled its transaction back."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate, self.message = sqlstate, message


class LostConnection(Exception):  # noqa: N818  it is an event
    """No answer came, and none will come; the statements may have been executed."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(message)
        self.sqlstate, self.message = sqlstate, message


class Connection(ABC):
    """A pipeline to the server, for one conversation at a time.

    Attributes:
        slot: Its slot in the pool.
        used_s: When its last conversation ended, on the pool's clock.
        is_amid: Whether a conversation began and did not end, so the next answers are unknown.
    """

    def __init__(self, driver: Driver, timeout_s: float) -> None:
        self._driver, self._timeout_s, self._pid = driver, timeout_s, os.getpid()
        _drivers.add(driver)
        self._prepared: set[bytes] | None = None
        self.slot: Slot | None = None
        self.used_s, self.is_amid = 0.0, False
        link = self._link = driver.pgconn
        self._poll = select.poll()
        self._poll.register(link.socket, _READ)
        link.nonblocking = 1
        link.enter_pipeline_mode()

    def is_of(self, backend_pid: int) -> bool:
        """Return whether the answering process is the one of the start, so no pooler is in between."""
        return self._link.backend_pid == backend_pid

    def keep_prepared(self) -> None:
        """Prepare named statements from now on."""
        self._prepared = set()

    def stop_preparing(self) -> None:
        """Send the whole text of each statement from now on."""
        self._prepared = None

    async def converse(self, *statements: Statement) -> list[PGresult]:
        """Send statements at once and return their results in order.

        Raises:
            RefusedStatement: The server refused one, and skipped the later ones.
            LostConnection: The server did not answer all of them.
        """
        link = self._link
        results: list[PGresult] = []
        failure: PGresult | None = None
        self.is_amid = True
        try:
            made = self._send(statements)
            link.pipeline_sync()
            while link.flush():
                await self._wait(writing=True)
                link.consume_input()  # a server whose answers are not read accepts no more statements
            while True:
                while link.is_busy():
                    await self._wait()
                    link.consume_input()
                result = link.get_result()
                if result is None:  # between two statements, or at the end
                    if link.status == _IS_BAD:
                        raise psycopg.OperationalError("the server closed the connection")
                    continue
                status = result.status
                if status == _IS_SYNC:
                    break
                if status == _IS_FAILURE and failure is None:
                    failure = result
                    if link.status == _IS_BAD:
                        break
                results.append(result)
        except psycopg.Error as error:
            self.close()
            raise LostConnection(_line(error)) from error
        except BaseException:
            self.close()
            raise
        self.is_amid = False
        if failure is not None:
            raise self._failed(failure, made)
        return [result for index, result in enumerate(results) if index not in made] if made else results

    def _send(self, statements: Sequence[Statement]) -> Sequence[int]:
        """Queue statements, and return the indexes of answers to preparations."""
        link, prepared, made, sent = self._link, self._prepared, list[int](), 0
        for text, values, name, kept in statements:
            if prepared is None or not name:
                link.send_query_params(text, values or None, None, (_BINARY,) * len(values), _BINARY)
            else:
                if name not in prepared:
                    link.send_prepare(name, kept or text)
                    prepared.add(name)
                    made.append(sent)
                    sent += 1
                link.send_query_prepared(name, values or None, (_BINARY,) * len(values), _BINARY)
            sent += 1
        return made

    def _failed(self, failure: PGresult, made: Sequence[int]) -> RefusedStatement | LostConnection:
        sqlstate = (failure.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        severity = (failure.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) or b"").decode()
        primary = (
            failure.error_field(DiagnosticField.MESSAGE_PRIMARY) or failure.error_message or b"no answer"
        )
        message = primary.decode(errors="replace").strip()
        if not sqlstate or severity in _CLOSED_FOR_GOOD:
            self.close()
            return LostConnection(message, sqlstate)
        if made or self._link.transaction_status != TransactionStatus.IDLE:
            self.close()  # the prepared statements are unknown, or a failed transaction waits for its end
        return RefusedStatement(sqlstate, message)

    async def is_alive(self) -> bool:
        """Return whether the connection is still open."""
        return self.is_open()

    def is_open(self) -> bool:
        """Return whether the connection is still open, by the socket alone; if it is not, close it."""
        if not (is_open := self._is_usable()):
            self.close()
        return is_open

    def _is_usable(self) -> bool:
        link = self._link
        try:
            for _ in range(3):  # the last message and the end may arrive separately
                if link.status != ConnStatus.OK:
                    return False
                if not self._poll.poll(0):
                    return True
                link.consume_input()
                link.is_busy()
        except psycopg.Error:
            return False
        return link.status == ConnStatus.OK

    @property
    def is_closed(self) -> bool:
        """Return whether the connection is closed for good."""
        return self._link.status == _IS_BAD

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        _finish(self._driver)

    async def drop(self) -> None:
        """Close the connection without waiting."""
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid():  # a forked child leaves its parent's connection alone
            self.close()

    @abstractmethod
    def _wait(self, *, writing: bool = False) -> Awaitable[None]:
        """Wait until the server has sent something, or accepts more."""

    def _timed_out(self) -> psycopg.Error:
        return psycopg.OperationalError(f"the server did not answer within {self._timeout_s:g} s (timeout_s)")


class _Over:
    """A wait that is over. A coroutine for each wait would cost a tenth of a read."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_OVER = _Over()


class BlockingConnection(Connection):
    """A connection that waits in the calling thread."""

    def _wait(self, *, writing: bool = False) -> Awaitable[None]:
        if writing:
            self._poll.modify(self._link.socket, _READ_OR_WRITE)
        try:
            if not self._poll.poll(self._timeout_s * 1000):
                raise self._timed_out()
        finally:
            if writing:
                self._poll.modify(self._link.socket, _READ)
        return _OVER


class LoopConnection(Connection):
    """A connection that waits in the event loop, where its socket stays registered, which costs less."""

    _is_finished = False

    def __init__(self, driver: Driver, timeout_s: float) -> None:
        super().__init__(driver, timeout_s)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._socket = self._link.socket
        self._waiter: asyncio.Future[bool] | None = None
        myself: ref[LoopConnection] = ref(self)  # the loop must not keep a dropped store alive
        self._loop.add_reader(self._socket, _wake, myself)

    def wake(self) -> None:
        """Wake the waiter, because the socket has something to read, or accepts more."""
        if self._waiter is None:
            self.is_open()  # without a waiter it is a notice, or the end
        elif not self._waiter.done():
            self._waiter.set_result(True)

    def _expire(self, waiter: asyncio.Future[bool]) -> None:
        if not waiter.done():
            waiter.set_result(False)

    async def _wait(self, *, writing: bool = False) -> None:
        waiter = self._waiter = self._loop.create_future()
        expiry = self._loop.call_later(self._timeout_s, self._expire, waiter)
        if writing:
            self._loop.add_writer(self._socket, self.wake)
        try:
            if not await waiter:
                raise self._timed_out()
        finally:
            self._waiter = None
            expiry.cancel()
            if writing:
                self._loop.remove_writer(self._socket)

    def close(self) -> None:
        """Close the connection; a second call does nothing.

        It is needed also if the server closed it: libpq has then closed the socket, but the loop still
        watches its number, which the next connection gets.
        """
        if self._is_finished:
            return
        self._is_finished = True
        if self._loop.is_closed():
            _finish(self._driver)
        elif threading.get_ident() == self._thread:
            self._loop.remove_reader(self._socket)
            _finish(self._driver)
        else:  # dropped while open, and collected in another thread
            self._loop.call_soon_threadsafe(self._loop.remove_reader, self._socket)
            self._loop.call_soon_threadsafe(_finish, self._driver)


def _wake(connection: ref[LoopConnection]) -> None:
    if (found := connection()) is not None:
        found.wake()


def _finish(driver: Driver) -> None:
    driver.pgconn.finish()
    _drivers.discard(driver)


def _line(error: psycopg.Error) -> str:
    return " ".join(str(error).split())


async def connect(parameters: Mapping[str, str], *, timeout_s: float, runner: Runner) -> Connection:
    """Return a new connection for the runner's mode.

    Raises:
        LostConnection: None of the hosts accepted it.
    """
    conninfo = make_conninfo(**parameters)
    try:
        if runner.mode == "blocking":
            blocking = psycopg.Connection.connect(conninfo, autocommit=True, prepare_threshold=None)
            return BlockingConnection(blocking, timeout_s)
        waiting = await psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
        return LoopConnection(waiting, timeout_s)
    except psycopg.Error as error:
        raise LostConnection(_line(error), error.sqlstate or "") from error
