"""One line through the proxy: a client's connection, the server's, and what lies between them.

A request is the data that a client sends until the server answers. Its mishap is chosen once, at its first
bytes.
All methods belong to the proxy's thread.
"""

from __future__ import annotations

import selectors
import socket
from collections import deque
from collections.abc import Callable

from keepstate._clock import SYSTEM_CLOCK
from keepstate_testing.faults.mishaps import CutReply, CutRequest, Delay, HalfClose, Late, Mishap, Silence

_CHUNK_BYTES = 1 << 16


class End:
    """One socket of a line, with the data still to be sent there."""

    def __init__(self, link: socket.socket, line: Line) -> None:
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link, self.line = link, line
        self.has_ended = self.is_shut = False
        self._outbox: deque[tuple[float, memoryview]] = deque()

    def send(self, data: bytes, delay_s: float = 0.0) -> None:
        """Send bytes in order, the earliest when the delay is over."""
        if data:
            self._outbox.append((SYSTEM_CLOCK.monotonic_s() + delay_s, memoryview(data)))
        self.flush()

    def flush(self) -> None:
        """Send the data that is due, as much as the other side accepts."""
        while self._outbox and self._outbox[0][0] <= SYSTEM_CLOCK.monotonic_s():
            due_s, data = self._outbox.popleft()
            try:
                sent = self.link.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._outbox.appendleft((due_s, data[sent:]))
                return

    @property
    def due_s(self) -> float | None:
        """The time at which there is something to send, None if there is nothing."""
        return self._outbox[0][0] if self._outbox else None

    def shut(self) -> None:
        """Signal the end of the data to the other side."""
        if not self.is_shut:
            self.is_shut = True
            self.link.shutdown(socket.SHUT_WR)


class Line:
    """Carries bytes both ways, and lets happen what `ask` says.

    Args:
        client: The accepted connection.
        server: The one made for it.
        ask: Returns what befalls a request, by its first bytes.
    """

    def __init__(
        self, client: socket.socket, server: socket.socket, *, ask: Callable[[bytes], Mishap | None]
    ) -> None:
        self.client, self.server = End(client, self), End(server, self)
        self._ask = ask
        self._mishap: Mishap | None = None
        self._is_answered = True
        self._carried = 0
        self._held = bytearray()
        self.is_over = False

    @property
    def is_late(self) -> bool:
        """Return whether a request waits here to be released, or to be answered after that."""
        return isinstance(self._mishap, Late) and not self.is_over

    @property
    def ends(self) -> tuple[End, End]:
        """The client's and the server's."""
        return self.client, self.server

    def hear(self, end: End) -> None:
        """Take what one end has sent."""
        try:
            data = end.link.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            end.has_ended = True
        elif end is self.client:
            self._request(data)
        else:
            self._reply(data)

    def advance(self) -> None:
        """Send the data that has become due, and pass an end on after all data before it."""
        for end in self.ends:
            end.flush()
        if self.client.has_ended and self.server.due_s is None and not self.is_late:
            self.server.shut()
        if self.server.has_ended and self.client.due_s is None and not isinstance(self._mishap, Silence):
            self.client.shut()
        if all(end.has_ended and end.due_s is None for end in self.ends):
            self.cut()

    def cut(self) -> None:
        """Take the line from both ends, at once."""
        self.is_over = True
        for end in self.ends:
            end.link.close()

    def release(self) -> None:
        """Pass a held request on to the server; the client no longer gets the reply."""
        held, self._held = bytes(self._held), bytearray()
        self.server.send(held)

    def events_of(self, end: End) -> int:
        """Return what to wait for at one end, in the selector's terms."""
        is_due = end.due_s is not None and end.due_s <= SYSTEM_CLOCK.monotonic_s()
        return (0 if end.has_ended else selectors.EVENT_READ) | (selectors.EVENT_WRITE if is_due else 0)

    def _request(self, data: bytes) -> None:
        if self._is_answered:
            self._is_answered, self._carried = False, 0
            if not isinstance(self._mishap, HalfClose | Silence):  # these last as long as the line
                self._mishap = self._ask(data)
        match self._mishap:
            case CutRequest(after):
                self.server.send(data[: after - self._carried])
                self._carried += len(data)
                if self._carried >= after:
                    self.cut()
            case Late():
                self._held += data
                self.client.has_ended = self.client.is_shut = True
                self.client.link.close()
            case Delay(request_s=delay_s):
                self.server.send(data, delay_s)
            case HalfClose():
                self.server.send(data)
                self.client.shut()
            case _:
                self.server.send(data)

    def _reply(self, data: bytes) -> None:
        if not self._is_answered:
            self._is_answered, self._carried = True, 0
        match self._mishap:
            case CutReply(after):
                self.client.send(data[: after - self._carried])
                self._carried += len(data)
                if self._carried >= after:
                    self.cut()
            case Delay(reply_s=delay_s):
                self.client.send(data, delay_s)
            case Late():
                self.cut()
            case HalfClose() | Silence():
                pass
            case _:
                self.client.send(data)
