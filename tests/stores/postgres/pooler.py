"""A small transaction pooler, as PgBouncer is one: a transaction may go to any session of the server."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

import psycopg

_SSL_REQUEST = 80877103
_HEAD = struct.Struct("!ci")
_READY = b"Z"
_ENDS_A_TURN = (b"S", b"Q")
_PARAMETERS = {"server_version": "18.0", "client_encoding": "UTF8", "integer_datetimes": "on"}


class Pooler:
    """Listens on loopback and shares a few sessions among all who connect.

    Args:
        url: The server.
        sessions: How many sessions are shared.
        tells_backend: Whether it passes on a session's own process number, as no good pooler does.
    """

    def __init__(self, url: str, *, sessions: int = 3, tells_backend: bool = False) -> None:
        self._tells_backend = tells_backend
        self._drivers = [psycopg.connect(url, autocommit=True, sslmode="disable") for _ in range(sessions)]
        self._free = [socket.socket(fileno=os.dup(driver.fileno())) for driver in self._drivers]
        for session in self._free:
            session.setblocking(True)
            session.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sessions = tuple(self._free)
        self._freed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = (
            f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/{url.rpartition('/')[2]}"
        )
        self.turns = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for session in self._sessions:
            session.close()
        for driver in self._drivers:
            driver.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session: socket.socket | None = None
        with client, suppress(EOFError, OSError):
            self._welcome(client)
            while True:
                turn, kind = b"", b""
                while kind not in _ENDS_A_TURN:
                    kind, message = _message(client)
                    if kind == b"X":
                        return
                    turn += message
                session = session or self._take()
                session.sendall(turn)
                self.turns += 1
                message = b""
                while kind != _READY:
                    kind, message = _message(session)
                    client.sendall(message)
                if message[-1:] == b"I":  # no transaction is open: the next may go elsewhere
                    self._give_back(session)
                    session = None

    def _welcome(self, client: socket.socket) -> None:
        while True:
            (size,) = struct.unpack("!i", _exactly(client, 4))
            (code,) = struct.unpack_from("!i", _exactly(client, size - 4))
            if code != _SSL_REQUEST:
                break
            client.sendall(b"N")
        pid = self._drivers[0].info.backend_pid if self._tells_backend else 1
        client.sendall(_made(b"R", struct.pack("!i", 0)))
        for name, value in _PARAMETERS.items():
            client.sendall(_made(b"S", f"{name}\0{value}\0".encode()))
        client.sendall(_made(b"K", struct.pack("!ii", pid, 0)) + _made(_READY, b"I"))

    def _take(self) -> socket.socket:
        with self._freed:
            self._freed.wait_for(lambda: self._free)
            return self._free.pop(random.randrange(len(self._free)))

    def _give_back(self, session: socket.socket) -> None:
        with self._freed:
            self._free.append(session)
            self._freed.notify()


def _made(kind: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body) + 4) + body


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(source, _HEAD.size)
    kind, size = _HEAD.unpack(head)
    return kind, head + _exactly(source, size - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
