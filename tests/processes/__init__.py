"""Programs that tests start as processes of their own, each named by what it does.

`Program` starts one as `subprocess.Popen([sys.executable, ...], text=True)` does, in a tenth of the processor
time: it is forked from a process that has imported keepstate and the drivers. Start an interpreter instead
where a test is about imports, hash seeds or the start itself.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

PROCESSES = Path(__file__).parent
ROOT = PROCESSES.parents[1]

_IMPORTED = (
    *("apsw", "asyncio", "psycopg", "psycopg_pool", "redis.asyncio"),
    *("keepstate.managers", "keepstate.sessions", "keepstate.sync", "keepstate.typed"),
    *("keepstate.stores.file", "keepstate.stores.memory", "keepstate.stores.postgres"),
    *("keepstate.stores.redis", "keepstate.stores.sqlite"),
)


class Program:
    """A Python program that runs as a process. Has the methods of `Popen` that tests use.

    Args:
        words: What follows `python` on a command line: `-m MODULE`, `-c SOURCE` or a file, then its words.
            `-W error` may come first.
        stdin: `PIPE` makes `self.stdin` a text file; None gives it an empty one.
        stdout: `PIPE` makes `self.stdout` a text file, `DEVNULL` drops it, None inherits it.
        stderr: As `stdout`.
        environment: Environment variables that differ from those of this process.
        modules: What it imports besides keepstate and takes long, such as a framework.
    """

    def __init__(
        self,
        *words: object,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: Mapping[str, str] | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        self.args = [str(word) for word in words]
        self.returncode: int | None = None
        request = {
            "words": self.args,
            "environment": {**os.environ, **(environment or {})},
            "folder": os.getcwd(),
            "modules": modules,
        }
        (in_fd, self.stdin), (out_fd, self.stdout), (err_fd, self.stderr) = (
            _input(stdin),
            _output(stdout, 1),
            _output(stderr, 2),
        )
        self._end_fd, end_fd = os.pipe()
        given = [in_fd, out_fd, err_fd, end_fd]
        self.pid = _FORKS.fork(json.dumps(request).encode(), given)
        for fd in given:
            os.close(fd)

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status as soon as it has ended."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Return all that it writes, as soon as it has ended."""
        written = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            written[number] = stream.read()

        readers = [
            threading.Thread(target=read, args=each, daemon=True)
            for each in enumerate((self.stdout, self.stderr))
            if each[1] is not None and not each[1].closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None and not self.stdin.closed:
            self.stdin.write(input)
            self.stdin.close()
        until_s = None if timeout is None else time.monotonic() + timeout
        for reader in readers:
            reader.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))
        self._close()
        return written[0], written[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()
        self._close()

    def __del__(self) -> None:
        self._close()
        if self.returncode is None:
            os.close(self._end_fd)

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._end_fd], [], [], timeout_s)[0]:
            status, spent_s = os.read(self._end_fd, 100).split()
            os.close(self._end_fd)
            self.returncode = int(status)
            _FORKS.spent_s += float(spent_s)
        return self.returncode


def run(
    *words: object,
    timeout: float = 100,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program as `subprocess.run([sys.executable, ...], capture_output=True, text=True)` does."""
    program = Program(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, environment=environment)
    try:
        out, err = program.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    ended = subprocess.CompletedProcess(program.args, program.wait(), out, err)
    assert not check or ended.returncode == 0, err
    return ended


def spent_s() -> float:
    """Return the processor time of all programs that have ended."""
    return _FORKS.spent_s


class _Forks:
    """The process that programs are forked from, started with the first of them."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._channel: socket.socket | None = None
        self._lock = threading.Lock()

    def fork(self, request: bytes, fds: list[int]) -> int:
        with self._lock:
            channel = self._channel = self._channel or self._started()
            socket.send_fds(channel, [request], fds)
            answer = channel.recv(32)
        assert answer, "the process that programs are forked from has ended"
        return int(answer)

    def _started(self) -> socket.socket:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.fork_programs", str(there.fileno()), *_IMPORTED],
                cwd=ROOT,
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
            )

        def end() -> None:
            here.close()
            process.wait()

        atexit.register(end)
        return here


_FORKS = _Forks()


def _input(kind: int | None) -> tuple[int, IO[str] | None]:
    """Return the descriptor for a program's standard input, and the file that writes to it."""
    if kind != subprocess.PIPE:
        return os.open(os.devnull, os.O_RDONLY), None
    theirs, ours = os.pipe()
    return theirs, os.fdopen(ours, "w", encoding="utf-8")


def _output(kind: int | None, inherited: int) -> tuple[int, IO[str] | None]:
    """Return the descriptor for what a program writes, and the file that reads it."""
    if kind == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_WRONLY), None
    if kind != subprocess.PIPE:
        return os.dup(inherited), None
    ours, theirs = os.pipe()
    return theirs, os.fdopen(ours, encoding="utf-8")
