"""A TCP proxy on the loopback interface that cuts, delays, half-closes, silences and holds what it carries.

It runs in a thread of its own, so it serves both modes and other processes. It does not read the protocol:
any client that sends a request and waits for the answer can be put behind it.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from keepstate._clock import SYSTEM_CLOCK
from keepstate.errors import InvalidError, KeepstateError
from keepstate_testing.faults.line import End, Line
from keepstate_testing.faults.mishaps import Chosen, Mishap, Plan, every_request

_HOST = "127.0.0.1"
_ANSWERED_WITHIN_S = 10.0


class Proxy:
    """A line to one server that spoils chosen requests; a context manager, in both modes.

    Args:
        port: The port of the server.
        host: The interface.
        plan: The mishaps of requests without an order by `spoil`; None lets all through.
    """

    def __init__(self, port: int, *, host: str = _HOST, plan: Plan | None = None) -> None:
        self._target = (host, port)
        self.plan = plan
        self.happened: Counter[type[Mishap]] = Counter()
        """How often each mishap has happened."""
        self.requests = 0
        """How many requests came, spoilt or not."""
        self._ordered: deque[tuple[Mishap, Chosen]] = deque()
        self._lines: list[Line] = []
        self._orders: deque[_Order] = deque()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} to {self._target[0]}:{self._target[1]}, {self.happened.total()} mishaps>"
        )

    @property
    def port(self) -> int:
        """The address to connect to instead of the server."""
        if self._thread is None:
            raise InvalidError(f"{self!r} does not run; enter it first")
        return int(self._listener.getsockname()[1])

    def url(self, url: str) -> str:
        """Return the server's URL with the proxy's port for the server's own."""
        host, port = self._target
        if f"{host}:{port}" not in url:
            raise InvalidError(f"{url} does not name {host}:{port}, to which {self!r} leads")
        return url.replace(f"{host}:{port}", f"{_HOST}:{self.port}")

    # ---- what is to happen

    def spoil(self, *mishaps: Mishap, chosen: Chosen = every_request) -> None:
        """Order mishaps for the next requests of those `chosen`, one for each. They precede the plan."""
        self._ordered.extend((mishap, chosen) for mishap in mishaps)

    @property
    def ordered(self) -> int:
        """The number of ordered mishaps that have not happened yet."""
        return len(self._ordered)

    def release(self) -> int:
        """Pass the requests that are `Late` on to the server, oldest first.

        Returns:
            How many the server has answered, or hung up on, meanwhile.
        """
        return self._do(self._release, lambda: not any(line.is_late for line in self._lines))

    def lead_to(self, port: int) -> None:
        """Lead lines that are made from now on to another port of the same host: a server's successor."""
        self._target = (self._target[0], port)

    def cut(self) -> None:
        """Take all lines from both ends; later ones are carried."""
        self._do(self._cut, lambda: True)

    def _release(self) -> int:
        late = [line for line in self._lines if line.is_late]
        for line in late:
            with _cut_if_gone(line):
                line.release()
        return len(late)

    def _cut(self) -> int:
        for line in self._lines:
            line.cut()
        return len(self._lines)

    def _mishap(self, request: bytes) -> Mishap | None:
        self.requests += 1
        mishap: Mishap | None
        if self._ordered and self._ordered[0][1](request):
            mishap = self._ordered.popleft()[0]
        else:
            mishap = self.plan.mishap(request) if self.plan is not None else None
        if mishap is not None:
            self.happened[type(mishap)] += 1
        return mishap

    # ---- running

    def __enter__(self) -> Self:
        self._listener = socket.create_server((_HOST, 0))
        self._listener.setblocking(False)
        self._bell, self._hears = socket.socketpair()
        self._hears.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"proxy to {self._target[1]}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._bell.send(b"!")
            thread.join()
            for link in (self._listener, self._bell, self._hears):
                link.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _do(self, work: Callable[[], int], is_over: Callable[[], bool]) -> int:
        """Have the proxy's thread do something, and return its answer once it `is_over`."""
        order = _Order(work, is_over)
        self._orders.append(order)
        self._bell.send(b"!")
        if not order.done.wait(_ANSWERED_WITHIN_S):
            raise KeepstateError(
                f"{self!r} could not do it in {_ANSWERED_WITHIN_S:.0f} s: the server is silent"
            )
        return order.answer

    def _run(self) -> None:
        while self._thread is not None:
            self._turn()
        self._cut()
        self._lines.clear()

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._listener, selectors.EVENT_READ)
            ready.register(self._hears, selectors.EVENT_READ)
            for line in self._lines:
                for end in line.ends:
                    if end.link.fileno() >= 0 and (events := line.events_of(end)):
                        ready.register(end.link, events, end)
            heard = ready.select(self._next_s())
        for key, _ in heard:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._hears:
                self._hears.recv(64)
        for order in self._orders:
            order.begin()
        self._carry(key.data for key, events in heard if key.data and events & selectors.EVENT_READ)
        while self._orders and self._orders[0].ended():
            self._orders.popleft()

    def _carry(self, heard: Iterable[End]) -> None:
        for end in heard:
            if not end.line.is_over:
                with _cut_if_gone(end.line):
                    end.line.hear(end)
        for line in self._lines:
            if not line.is_over:
                with _cut_if_gone(line):
                    line.advance()
        self._lines = [line for line in self._lines if not line.is_over]

    def _next_s(self) -> float | None:
        """Return after how long something that was delayed is due."""
        now_s = SYSTEM_CLOCK.monotonic_s()
        due = [end.due_s - now_s for line in self._lines for end in line.ends if end.due_s is not None]
        coming = [due_s for due_s in due if due_s > 0]
        return min(coming) if coming else None

    def _accept(self) -> None:
        with suppress(OSError):  # the client has gone again
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(self._target, _ANSWERED_WITHIN_S)
            except OSError:  # the server does not listen: the client finds the same
                client.close()
                return
            self._lines.append(Line(client, server, ask=self._mishap))


class _Order:
    """Work that another thread wants done here."""

    def __init__(self, work: Callable[[], int], is_over: Callable[[], bool]) -> None:
        self._work: Callable[[], int] | None = work
        self._is_over = is_over
        self.answer = 0
        self.done = threading.Event()

    def begin(self) -> None:
        """Do the work, once."""
        work, self._work = self._work, None
        if work is not None:
            self.answer = work()

    def ended(self) -> bool:
        """Return whether all that follows from the work is over, and notify the thread that waits."""
        if self._work is None and self._is_over():
            self.done.set()
        return self.done.is_set()


@contextmanager
def _cut_if_gone(line: Line) -> Generator[None]:
    """Cut a line that lost one of its ends."""
    try:
        yield
    except OSError:
        line.cut()
