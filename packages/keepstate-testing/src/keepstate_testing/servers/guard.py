"""Starts server processes that end with the process that started them.

One `Guard` a process runs the program `keeper`, in its own session, and orders it over a pipe to start
servers. Only this process holds the pipe's write end: when it ends, by whatever means (return, Ctrl-C,
SIGKILL), the kernel closes the pipe, and the keeper kills all servers and removes their folder.
`PR_SET_PDEATHSIG` would not do: it fires when the *thread* that started the server ends, is lost on entering
a user namespace, exists on Linux only, and leaves the folders behind. Forked children of this process close
the pipe. Only a SIGKILL of the keeper itself leaves servers behind.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from keepstate.errors import StoreUnavailableError, UnsupportedError
from keepstate_testing.servers import keeper
from keepstate_testing.servers.account import Account
from keepstate_testing.servers.keeper import Process


class Guard:
    """This process's servers: their common folder, and the certainty that they end with it."""

    def __init__(self) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._requests = _pipe(self._keeper.stdin)
        self._answers = _pipe(self._keeper.stdout)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.folder = Path(self._read_answer()["folder"])

    def new_folder(self, kind: str) -> Path:
        """Make a folder for one server; it is gone when this process is."""
        folder = self.folder / f"{kind}-{next(self._numbers)}"
        folder.mkdir(mode=0o700)
        return folder

    def spawn(self, command: Sequence[str], *, folder: Path, log: Path, account: Account) -> Process:
        """Start a server in `folder`, under `account`. Its output is appended to `log`.

        Raises:
            StoreUnavailableError: The account cannot run it.
        """
        request: Mapping[str, object] = {
            "command": [*account.prefix, *command],
            "folder": str(folder),
            "log": str(log),
            "environment": {"LC_ALL": "C", "HOME": str(folder)},
            "credentials": account.credentials(),
        }
        with self._lock:
            with suppress(BrokenPipeError):
                self._requests.write(json.dumps(request).encode() + b"\n")
            pid = self._read_answer()["pid"]
        # Already gone: a row that no living process matches.
        return keeper.find_process(pid) or Process(pid, parent=0, born="")

    def close(self) -> None:
        """Kill what still runs, removes the folder, and return when that is done."""
        self.let_go()
        self._keeper.wait()

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        self._requests.close()
        self._answers.close()

    def leave_to_parent(self) -> None:
        """Close the parent's pipe in a forked child, without a message to the keeper."""
        self.let_go()
        self._keeper.returncode = 0

    def _read_answer(self) -> Mapping[str, Any]:
        """Read one line, unbuffered: a forked child must find nothing that it could read or write again."""
        answer: dict[str, Any] = json.loads(self._answers.readline() or b'{"error": "the keeper has died"}')
        if "error" in answer:
            raise StoreUnavailableError(f"cannot start a test server: {answer['error']}")
        return answer


_guard: Guard | None = None
_guard_lock = threading.Lock()


def this_guard() -> Guard:
    """Return this process's guard, made at the first call.

    Raises:
        UnsupportedError: The platform is not POSIX.
    """
    global _guard
    if os.name != "posix":
        raise UnsupportedError("test servers need a POSIX system; on Windows run the tests in WSL")
    with _guard_lock:
        if _guard is None:
            _guard = Guard()
            atexit.register(_guard.close)
        return _guard


def _after_fork() -> None:
    global _guard, _guard_lock
    _guard_lock = threading.Lock()
    if _guard is not None:
        atexit.unregister(_guard.close)
        _guard.leave_to_parent()
        _guard = None


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


if os.name == "posix":
    os.register_at_fork(after_in_child=_after_fork)
