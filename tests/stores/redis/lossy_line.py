"""A TCP line on loopback that loses requests before, and replies after, the server has seen them."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class LossyLine:
    """Forwards to a port. It loses batches: `requests` before the server has them, then `replies` to them."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.requests = self.replies = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                thread = threading.Thread(target=self._carry, args=(client, server), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        loses_reply = False
        with suppress(OSError), client, server, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ)
            ready.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    if not data or (key.fileobj is server and loses_reply):
                        return
                    if key.fileobj is server:
                        client.sendall(data)
                        continue
                    if b"EVALSHA" in data and self.requests:
                        self.requests -= 1
                        return
                    if b"EVALSHA" in data and self.replies:
                        self.replies -= 1
                        loses_reply = True
                    server.sendall(data)
