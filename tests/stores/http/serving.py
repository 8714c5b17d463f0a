"""A server of a store as a process of its own, on a port that stays over its restarts."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.processes import Program

# Below the range of outgoing connections: a client that keeps trying must not be given the server's port.
_PORTS = range(10_000, 20_000)


class StoreServer:
    """The server; a context manager that kills it in the end.

    Args:
        url: The store behind it.
        words: What else its program is told.
    """

    def __init__(self, url: str, *words: str) -> None:
        self.behind, self._words = url, words
        self.port = _free_port()
        self._program: Program | None = None

    def url(self, key: str = "whole", **options: object) -> str:
        """The URL of the store, with a key and options."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"http://127.0.0.1:{self.port}?key={key}{more}"

    def start(self) -> Self:
        """Start the server, and return when it takes connections."""
        self._program = Program(
            *("-m", "tests.processes.serve_store", self.behind, self.port, *self._words),
            stderr=subprocess.PIPE,
            modules=("uvicorn", "starlette.applications", "keepstate.server"),
        )
        until_s = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self._program.poll() is None, self._said()
                assert time.monotonic() < until_s, "the server did not start"
                time.sleep(0.01)
            else:
                return self

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._program is not None:
            self._program.kill()
            self._program.wait(60)
            self._program = None

    def stop(self) -> str:
        """End it in order, and return what it wrote."""
        assert self._program is not None
        program, self._program = self._program, None
        program.send_signal(signal.SIGTERM)
        return program.communicate(timeout=60)[1]

    def pause(self, *, is_paused: bool) -> None:
        """Stop the process in its tracks, or let it go on."""
        assert self._program is not None
        self._program.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def restart(self) -> Self:
        self.kill()
        return self.start()

    def _said(self) -> str:
        assert self._program is not None
        return self._program.communicate(timeout=60)[1]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder}/behind.db"


def _free_port() -> int:
    dice = random.Random(os.urandom(8))
    while True:
        port = dice.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
