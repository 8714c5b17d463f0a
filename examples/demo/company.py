"""The processes of the demo, by who works in them: started, killed, and started again."""

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
"""So that a worker finds this package, whatever its folder is."""


class WorkerFailed(Exception):  # noqa: N818  it says what happened
    """A process ended by itself and left work undone."""

    def __init__(self, name: str, code: int, said: str) -> None:
        super().__init__(f"{name} failed: {said}")
        self.code = code


class Company:
    """Who works on a space, each in a process of his own.

    Args:
        url: The store.
        space: The space.
    """

    def __init__(self, url: str, space: str) -> None:
        self._url, self._space = url, space
        self._processes: dict[str, Process] = {}

    async def start(self, name: str) -> int:
        """Start a process, instead of the one of this name, and return its number."""
        words = (sys.executable, "-m", "examples.demo.worker", self._space, name)
        # A session of its own keeps Ctrl-C from it: it is ended below. The URL may hold a password.
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, start_new_session=True, env={**os.environ, "PYTHONPATH": _PATH}
        )
        self._processes[name] = process
        assert process.stdin is not None
        process.stdin.write(self._url.encode())
        process.stdin.close()
        return process.pid

    def is_running(self, name: str) -> bool:
        """Whether a process has not ended."""
        return self._processes[name].returncode is None

    @property
    def is_at_work(self) -> bool:
        """Whether any process has not ended."""
        return any(self.is_running(name) for name in self._processes)

    def halt(self, name: str) -> bool:
        """Stop a process where it is, to be killed or to go on; says whether it was running."""
        return self._signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Let a halted process go on."""
        self._signal(name, signal.SIGCONT)

    async def kill(self, name: str) -> int:
        """Kill a process, as a power cut would, and return the number that it had."""
        process = self._processes[name]
        self._signal(name, signal.SIGKILL)
        await process.wait()
        return process.pid

    def _signal(self, name: str, number: signal.Signals) -> bool:
        process = self._processes[name]
        if process.returncode is not None:
            return False
        with suppress(ProcessLookupError):  # it has just ended by itself
            # `send_signal` looks first whether it has ended, and takes its exit code from who waits for it.
            os.kill(process.pid, number)
            return True
        return False

    async def look_after(self) -> None:
        """Raise what a process said when it failed."""
        for name, process in self._processes.items():
            if process.returncode not in (None, exits.OK):
                assert process.stdout is not None
                told = (await process.stdout.read()).decode().strip() or f"exit code {process.returncode}"
                raise WorkerFailed(name, max(process.returncode or 0, exits.FAILED), told)

    async def end(self) -> None:
        """End all that still run."""
        for name, process in self._processes.items():
            self._signal(name, signal.SIGKILL)
            await process.wait()
