"""The base of all servers: a folder, a port that stays, and the ways to begin and to end.

A server is made without I/O. `start` and everything after it block, so call them from a fixture or a thread,
not from an event loop. A handle belongs to the process that made it: in a forked child it ends nothing.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from keepstate._clock import SYSTEM_CLOCK
from keepstate.errors import InvalidError, StoreUnavailableError
from keepstate_testing.servers.account import Account
from keepstate_testing.servers.guard import this_guard
from keepstate_testing.servers.keeper import Process, kill_tree, remove_folder

HOST = "127.0.0.1"
CLUSTER_BUS_OFFSET = 10_000

# Below every system's range of ports for outgoing connections: there, a client that keeps trying to reach a
# killed server can be given the server's own port and connect to itself, and the server cannot come back.
_PORTS = range(10_000, 20_000)
_PASSING_CAUSES = ("Address already in use", "pre-existing shared memory block")
_START_WITHIN_S = 60.0
_STOP_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.005
_LOG_TAIL_BYTES = 2_000


class Server(ABC):
    """One private server process on the loopback interface, a context manager.

    Entering starts it; leaving kills it and removes its data. Between `stop` or `kill` and the next `start`
    the data and the port stay.
    """

    kind: ClassVar[str]
    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    _needs_bus_port: bool = False

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._account = Account.own()
        self._process: Process | None = None
        self._folder: Path | None = None
        self._port: int | None = None
        self._port_is_proven = False
        self._log_start = 0

    @property
    @abstractmethod
    def url(self) -> str:
        """The address to open; it stays the same over restarts."""

    @property
    def port(self) -> int:
        """The TCP port, chosen at the first start."""
        if self._port is None:
            raise StoreUnavailableError(f"{self!r} was never started: call start()")
        return self._port

    @property
    def folder(self) -> Path:
        """The server's own folder, which holds its data and its `log`."""
        if self._folder is None:
            raise StoreUnavailableError(f"{self!r} was never started: call start()")
        return self._folder

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    @property
    def is_running(self) -> bool:
        """Return whether the server's process is there."""
        return self.pid is not None

    def start(self) -> Self:
        """Start the server over its data, and return when it answers. A running one is left alone.

        Raises:
            StoreUnavailableError: It ended, or did not answer within 60 s; the message quotes its log.
            MissingExtraError: Its binary is not installed.
        """
        self.launch()
        self.wait_until_ready()
        return self

    def stop(self) -> None:
        """Shut the server down in order, as an administrator would; its data stay."""
        if self._is_mine() and self._process is not None:
            self._process.signal(self._stop_signal)
            self._process.wait(_STOP_WITHIN_S)
            self.kill()

    def kill(self) -> None:
        """Kill the server's whole process tree with SIGKILL; its data stay as the crash left them."""
        if self._is_mine() and self._process is not None:
            kill_tree(self._process)
            self._process = None

    def pause(self) -> None:
        """Stop the server's process in its tracks (SIGSTOP): connections stay, and nothing is answered."""
        self._launched().signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused server (SIGCONT)."""
        self._launched().signal(signal.SIGCONT)

    def restart(self) -> Self:
        """Stop the server if it runs, and start it again over the same data, on the same port."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Kill the server and remove its data. A later `start` begins with nothing, on the same port."""
        self.kill()
        if self._is_mine() and self._folder is not None:
            remove_folder(self._folder)
            self._folder = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self._port if self._port is not None else "no port yet"
        state = f"running as {self.pid}" if self.is_running else "not running"
        return f"<{type(self).__name__} {HOST}:{place}, {state}>"

    def launch(self) -> None:
        """Start the server's process without waiting for it: many can come up at once."""
        if self.is_running:
            return
        if self._folder is None:
            folder = this_guard().new_folder(self.kind)
            self._prepare(folder)
            self._folder = folder
        if self._port is None:
            self._port = _free_port(with_bus=self._needs_bus_port)
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self._process = this_guard().spawn(
            self._command(), folder=self.folder, log=self._log, account=self._account
        )

    def wait_until_ready(self) -> None:
        """Return when the launched server answers; launches it again if its port was taken in between."""
        until = SYSTEM_CLOCK.monotonic_s() + _START_WITHIN_S
        # Ended or not comes first: where it could not listen, another process may, and never answer.
        while (has_ended := self._launched().wait(_LOOK_EVERY_S)) or not self._is_ready(self._launched().pid):
            if SYSTEM_CLOCK.monotonic_s() > until:
                self.kill()
                raise StoreUnavailableError(
                    f"{self!r} did not answer in {_START_WITHIN_S:.0f} s:\n{self._log_tail()}", url=self.url
                )
            if has_ended:
                self._launch_again()
        self._port_is_proven = True

    def _launched(self) -> Process:
        if self._process is None:
            raise StoreUnavailableError(f"{self!r} was not launched: call start()")
        return self._process

    def _launch_again(self) -> None:
        """Launch an ended server again if that may succeed, on another port if no client knows this one."""
        log = self._log_tail()
        self.kill()
        if not any(cause in log for cause in _PASSING_CAUSES):
            raise StoreUnavailableError(f"{self!r} ended while it started:\n{log}", url=self.url)
        if not self._port_is_proven:
            self._port = None
        self.launch()

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _log_tail(self) -> str:
        with open(self._log, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def _is_mine(self) -> bool:
        return self._owner == os.getpid()

    @abstractmethod
    def _prepare(self, folder: Path) -> None:
        """Fill the new folder with the files for the first start."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return the server's command line."""

    @abstractmethod
    def _is_ready(self, pid: int) -> bool:
        """Return whether the server answers, and is the process `pid`."""


def refuse_reserved(settings: Mapping[str, str], reserved: Mapping[str, str]) -> None:
    """Raise `InvalidError` if a setting is one that the server sets for itself; `reserved` says why."""
    for name in settings:
        if name.lower() in reserved:
            raise InvalidError(f"setting {name!r} cannot be given to a test server: {reserved[name.lower()]}")


def _free_port(*, with_bus: bool) -> int:
    """Return a port on which no process listens now.

    Chosen by the system's randomness, because test runners seed `random` alike in all their workers.
    """
    for _ in range(1_000):
        port = secrets.choice(_PORTS)
        if _can_listen(port) and (not with_bus or _can_listen(port + CLUSTER_BUS_OFFSET)):
            return port
    raise StoreUnavailableError(f"no free port between {_PORTS.start} and {_PORTS.stop}: end some servers")


def _can_listen(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False
