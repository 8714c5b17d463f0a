"""The worker processes of the demo, by name: started, killed, and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Final

from keepstate.cli import exits

ROOT: Final = Path(__file__).resolve().parents[2]
_PATH: Final = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""The import path of a worker. It finds this package in any working folder."""


class WorkerFailed(Exception):  # noqa: N818  it names an event
    """A process ended with an error before its work was done."""

    def __init__(self, name: str, code: int, reason: str) -> None:
        super().__init__(f"{name} failed: {reason}")
        self.code = code


class WorkerProcesses:
    """The worker processes of one space: one for each agent, and one for the conductor.

    Args:
        url: The store.
        space: The space.
    """

    def __init__(self, url: str, space: str) -> None:
        self._url, self._space = url, space
        self._processes: dict[str, Process] = {}

    async def start(self, name: str) -> int:
        """Start a process under a name, replacing an earlier one, and return its process id."""
        words = (sys.executable, "-m", "examples.demo.worker", self._space, name)
        # Its own session keeps Ctrl-C from it; `end` kills it. A pipe hides the password of a URL.
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, start_new_session=True, env={**os.environ, "PYTHONPATH": _PATH}
        )
        self._processes[name] = process
        assert process.stdin is not None
        process.stdin.write(self._url.encode())
        process.stdin.close()
        return process.pid

    def is_running(self, name: str) -> bool:
        """Return whether a process runs."""
        return self._processes[name].returncode is None

    @property
    def is_at_work(self) -> bool:
        """True while any process runs."""
        return any(self.is_running(name) for name in self._processes)

    def suspend(self, name: str) -> bool:
        """Suspend a process, and return whether it was running."""
        return self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Resume a suspended process."""
        self._signal(name, signal.SIGCONT)

    async def kill(self, name: str) -> int:
        """Kill a process without warning, and return its process id."""
        process = self._processes[name]
        self._signal(name, signal.SIGKILL)
        await process.wait()
        return process.pid

    def _signal(self, name: str, number: signal.Signals) -> bool:
        process = self._processes[name]
        if process.returncode is not None:
            return False
        with suppress(ProcessLookupError):  # it has just ended by itself
            # `send_signal` polls first, and would take the exit code from the task that waits for it.
            os.kill(process.pid, number)
            return True
        return False

    async def raise_failures(self) -> None:
        """Raise the error that a failed process printed."""
        for name, process in self._processes.items():
            if process.returncode not in (None, exits.OK):
                assert process.stdout is not None
                reason = (await process.stdout.read()).decode().strip() or f"exit code {process.returncode}"
                raise WorkerFailed(name, max(process.returncode or 0, exits.FAILED), reason)

    async def end(self) -> None:
        """Kill all processes that still run."""
        for name, process in self._processes.items():
            self._signal(name, signal.SIGKILL)
            await process.wait()
