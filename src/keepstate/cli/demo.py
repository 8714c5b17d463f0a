"""`keepstate demo`: worker processes share one space; some are killed and resumed, and no update is lost.

The tasks are the modules of Python's standard library. A worker counts the lines of a module and finishes
the task in one transaction: task, shared totals, its own count, and an event. At the end the parent counts
everything again. The full demo, with all managers, is `examples/demo` in the source.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import sysconfig
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Annotated, Any, Final
from uuid import uuid4

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import counted, said, shown, write_json
from keepstate.cli.session import Session, trace_from_environment
from keepstate.engine.queue.queue import Task
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, KeepstateError, LeaseLostError, StoreUnavailableError
from keepstate.opening import open as open_store

_SETTLED_S: Final = 0.1
"""Seconds in which a server finishes what a worker sent before it was stopped."""
_LEASE_S: Final = 1.0
_ATTEMPTS: Final = 1_000
_LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
_NOTHING: Final = {"modules": 0, "lines": 0}


async def demo(
    *,
    workers: Annotated[int, Parameter(help="Number of workers, each a process.")] = 4,
    kill: Annotated[int, Parameter(help="Number of workers to kill while they work.")] = 1,
    most: Annotated[int, Parameter(help="Number of modules to count.")] = 200,
    url: Annotated[
        str | None,
        Parameter(help="A store that processes can share. Default: a database in a temporary folder."),
    ] = None,
    keep: Annotated[bool, Parameter(negative="", help="Leave the demo's space in the store.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document.")] = False,
) -> int:
    """Let worker processes share one store, kill one, resume it, and count everything again.

    Each worker claims modules of Python's library, counts their lines, and adds them to totals that all
    workers share. A killed worker is started again and continues from its own count; its task goes to the
    next worker. Exit code 0 if the totals equal a second count.
    """
    for option, given, least in (("workers", workers, 1), ("kill", kill, 0), ("most", most, 1)):
        if given < least:
            raise InvalidError(f"--{option} {given} is too small; give {least} or more")
    if kill >= workers:
        raise InvalidError(f"--kill {kill} of --workers {workers} leaves no worker; at least one has to live")
    library = sorted([*_LIBRARY.glob("[a-z]*.py"), *_LIBRARY.glob("[a-z]*/[a-z_]*.py")])
    modules = [str(path.relative_to(_LIBRARY)) for path in library[:most]]
    if not modules:
        raise InvalidError(f"there is nothing to count: no source of Python's library is in {_LIBRARY}")
    folder = None if url else mkdtemp(prefix="keepstate-demo-")
    store = url or f"sqlite:///{folder}/demo.db"
    try:
        async with open_store(store, author="demo", observe=trace_from_environment()) as ks:
            if not ks.store.capabilities.shared:
                raise InvalidError(f"{ks.url} cannot be shared by processes; give sqlite, redis, postgresql")
            run = ks.space(f"demo/{uuid4().hex[:8]}", record=True)
            try:
                found = await _Run(run, store, modules, workers, kill).play()
            finally:
                if not keep:
                    await ks.drop(run.name)
    finally:
        if folder and not keep:
            rmtree(folder, ignore_errors=True)
    write_json(found) if json else _show(found)
    if keep:
        see = Session(url=store).command("log", run.name)
        said().print(f"The space stays. To look into it: {see}", markup=False)
    if found["workers_killed"] < kill:
        said().print(f"{found['workers_killed']} of {kill} workers were killed in time: take more modules")
    return exits.OK if found["equal"] else exits.FAILED


class _Run:
    """One run: starts and kills the workers, prints what happens, and counts again."""

    def __init__(self, run: Space, url: str, modules: Sequence[str], workers: int, kill: int) -> None:
        self._run, self._url, self._modules, self._kill = run, url, modules, kill
        self._names = [f"worker-{number}" for number in range(1, workers + 1)]
        self._processes: dict[str, Process] = {}
        self._killed: list[str] = []
        self._resumed: list[Any] = []
        self._counted: list[Any] = []
        self._seen: int | None = None
        self._begun = perf_counter()

    async def play(self) -> dict[str, Any]:
        """Return the results of the run; `equal` says whether the totals equal a second count."""
        for module in self._modules:
            await self._run.queue.put(module, id=module)
        self._say(f"{len(self._names)} workers begin to count {len(self._modules):,} modules")
        try:
            for name in self._names:
                await self._start(name)
            while any(process.returncode is None for process in self._processes.values()):
                await self._look()
                await asyncio.sleep(0.02)
            await self._look()
        finally:
            for process in self._processes.values():
                if process.returncode is None:
                    _signal(process, signal.SIGKILL)
                    await process.wait()
        seconds = perf_counter() - self._begun
        totals = await self._run.documents.get("totals", _NOTHING)
        commits = [each async for each in self._run.history.log() if each.message.startswith("count ")]
        counted = {**totals, "events": len(self._counted), "commits": len(commits)}
        again = dict.fromkeys(counted, len(self._modules)) | {"lines": sum(map(_lines, self._modules))}
        return {
            "space": self._run.name,
            "modules": len(self._modules),
            "agents": self._names,
            "seconds": round(seconds, 3),
            "conflicts_resolved": sum(event["tries"] - 1 for event in self._counted),
            "workers_killed": len(self._killed),
            "workers_recovered": len(self._resumed),
            "modules_taken_over": sum(event["attempt"] > 1 for event in self._counted),
            "counted": counted,
            "recounted": again,
            "equal": counted == again and len(self._killed) == self._kill,
        }

    def _say(self, text: str) -> None:
        said().print(f"{perf_counter() - self._begun:5.1f} s  {text}", markup=False)

    async def _start(self, name: str) -> None:
        # Its own session keeps Ctrl-C from the worker. The URL may hold a password, so a pipe passes it.
        words = (sys.executable, "-m", "keepstate.cli.demo", self._run.name, name)
        process = await create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, start_new_session=True)
        assert process.stdin is not None
        process.stdin.write(self._url.encode())
        process.stdin.close()
        self._processes[name] = process

    async def _look(self) -> None:
        """Read new events, raise the error of a failed worker, and kill a worker when it is time."""
        for name, process in self._processes.items():
            if process.returncode not in (None, exits.OK):
                assert process.stdout is not None
                reason = (await process.stdout.read()).decode() or f"exit code {process.returncode}"
                raise StoreUnavailableError(f"{name} failed: {reason}")
        while events := await self._run.events.read(after=self._seen, limit=1_000):
            self._seen = events[-1].number
            for told in (event.data for event in events):
                if "done" in told:
                    self._resumed.append(told)
                    self._say(
                        f"{told['worker']} continues from its own count: {counted(told['done'], 'module')}"
                    )
                    continue
                self._counted.append(told)
                if told["attempt"] > 1:
                    self._say(f"{told['module']} is done by {told['worker']}, at attempt {told['attempt']}")
        due = len(self._counted) * (self._kill + 1) / len(self._modules)
        if len(self._killed) < min(self._kill, due):
            await self._kill_one()

    async def _kill_one(self) -> None:
        """Kill a worker that has done something while it holds a task, and start it again."""
        done = {told["worker"] for told in self._counted}
        for name in done.difference(self._killed):
            process = self._processes[name]
            if process.returncode is not None:
                continue
            _signal(process, signal.SIGSTOP)  # a stopped worker keeps the task that it is seen to hold
            held = await self._held_by(name)
            if held:
                await asyncio.sleep(_SETTLED_S)
                held = await self._held_by(name)
            if not held:
                _signal(process, signal.SIGCONT)
                continue
            _signal(process, signal.SIGKILL)
            await process.wait()
            self._killed.append(name)
            self._say(f"{name} (process {process.pid}) is killed while it holds {held[0]}")
            await self._start(name)
            self._say(f"{name} is started again (process {self._processes[name].pid})")
            return

    async def _held_by(self, name: str) -> list[str]:
        return [task.id for task in await self._run.queue.list("claimed") if task.worker == name]


def _signal(process: Process, number: int) -> None:
    """Send a signal to a worker, which may have ended a moment ago.

    `Process.send_signal` takes the exit code of an ended process from the event loop, which then reports 255.
    """
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)


def _show(found: dict[str, Any]) -> None:
    shown().print(f"{'':<8} {'counted':>10} {'again':>10}", markup=False)
    for name, number in found["counted"].items():
        again = found["recounted"][name]
        verdict = "equal" if number == again else "NOT EQUAL"
        shown().print(f"{name:<8} {number:>10,} {again:>10,}  {verdict}", markup=False)
    conflicts = counted(found["conflicts_resolved"], "conflict")
    shown().print(f"{conflicts} resolved in {found['seconds']:.1f} s", markup=False)


def _lines(module: str) -> int:
    return (_LIBRARY / module).read_bytes().count(b"\n")


async def work(url: str, space: str, name: str) -> None:
    """Claim and finish tasks until none is left."""
    async with open_store(url, author=name, observe=trace_from_environment()) as ks:
        run = ks.space(space, record=True)
        if done := await run.documents.get(f"worker/{name}", 0):
            await run.events.append({"type": "resumed", "worker": name, "done": done})
        while (counts := await run.queue.counts())["ready"] + counts["claimed"]:
            for task in await run.queue.claim(name, lease_s=_LEASE_S, wait_s=0.2):
                with suppress(LeaseLostError):  # the worker was too slow, and another one has the task
                    await _finish(run.by(message=f"count {task.id}"), task, name)


async def _finish(run: Space, task: Task, name: str) -> None:
    lines, tries = _lines(task.id), 0

    async def finish(tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        await tx.queue.complete(task, lines)
        totals = await tx.documents.get("totals", _NOTHING)
        totals = {"modules": totals["modules"] + 1, "lines": totals["lines"] + lines}
        await tx.documents.put("totals", totals)
        await tx.documents.update(f"worker/{name}", lambda count: count + 1, default=0)
        told = {"module": task.id, "worker": name, "attempt": task.attempt, "tries": tries}
        await tx.events.append({"type": "counted", **told})

    await run.transact(finish, attempts=_ATTEMPTS)


def main() -> int:
    """Run one worker, with the URL on standard input, and return its exit code."""
    try:
        asyncio.run(work(sys.stdin.read(), *sys.argv[1:3]))
    except KeepstateError as error:
        sys.stdout.write(" ".join(str(error).split()))
        return exits.code_of(error)
    return exits.OK


if __name__ == "__main__":
    sys.exit(main())
