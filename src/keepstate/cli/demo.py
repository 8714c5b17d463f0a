"""The demo: several processes on one store, one of them killed, and at the end everything counted again."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from shutil import rmtree
from tempfile import mkdtemp
from time import perf_counter
from typing import Annotated
from uuid import uuid4

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from keepstate.cli import exits
from keepstate.cli.demo_history import Killing, commits_of, tell
from keepstate.cli.session import said, shown, write_json
from keepstate.cli.survey import NOTHING, Totals, added, modules, survey
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import InvalidError, KeepstateError
from keepstate.opening import open as open_store

_BY_BATCH = 100
_LOOK_EVERY_S = 0.1
_AIM_EVERY_S = 0.02
"""How often to look while a worker is still to be killed: a short run is soon over."""
_LONGEST_S = 300.0


@dataclass(slots=True)
class Outcome:
    """What a run of the demo came to."""

    names: Sequence[str]
    """Of the modules."""
    seconds: float = 0.0
    transactions: int = 0
    """Applied batches: claims too, and those of a worker that was killed."""
    conflicts: int = 0
    wanted_kills: int = 0
    kills: int = 0
    taken_over: int = 0
    documents: int = 0
    events: int = 0
    commits: int = 0
    killing: Killing | None = None
    counted: Totals = field(default_factory=lambda: NOTHING)
    recounted: Totals = field(default_factory=lambda: NOTHING)

    @property
    def modules(self) -> int:
        """How many modules there are."""
        return len(self.names)

    @property
    def has_killed(self) -> bool:
        """Whether as many workers were killed as should be."""
        return self.kills == self.wanted_kills

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing, nothing was done twice, and the workers were really killed."""
        return (
            self.counted == self.recounted
            and self.modules == self.documents == self.events == self.commits
            and self.has_killed
        )


class _WorkerFailed(Exception):  # noqa: N818  it says what happened
    """A worker ended by itself and left work undone."""

    def __init__(self, number: int, code: int, said: str) -> None:
        super().__init__(f"worker {number} failed: {said}")
        self.code = code


async def demo(
    *,
    workers: Annotated[int, Parameter(help="How many processes.")] = 4,
    kill: Annotated[int, Parameter(help="How many of them to kill in mid-run.")] = 1,
    most: Annotated[int | None, Parameter(help="Only the first so many modules.")] = None,
    url: Annotated[
        str | None,
        Parameter(
            help="A store that processes can share; default: a database in a temporary folder, which stays."
        ),
    ] = None,
    keep: Annotated[
        bool, Parameter(negative="", help="Leave the space in the store, to look into it afterwards.")
    ] = False,
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document.")] = False,
) -> int:
    """Survey Python's own library with several processes on one store, and kill one of them.

    For every module a worker claims it from the queue, parses it, and in one transaction puts its document,
    appends an event, adds to the shared counters and completes the task. At the end everything is counted
    again, one module after the other: exit code 0 if the counters are equal, to the last one. The space is
    recorded, so that in the end its history can be read: what was known at each moment, and by whom.
    """
    _refuse_numbers(workers, kill, most)
    outcome = Outcome(modules(most), wanted_kills=kill)
    if url is not None:
        return await _demo(url, workers, outcome, keep=keep, as_json=json)
    folder, is_kept = mkdtemp(prefix="keepstate-demo-"), False
    try:
        code = await _demo(f"sqlite:///{folder}/demo.db", workers, outcome, keep=not json, as_json=json)
        is_kept = keep or (code == exits.OK and not json)
        return code
    finally:
        if is_kept:
            said().print(f"The store stays. When you have seen enough of it: rm -r {folder}", markup=False)
        else:
            rmtree(folder, ignore_errors=True)


async def _demo(url: str, workers: int, outcome: Outcome, *, keep: bool, as_json: bool) -> int:
    async with open_store(url, author="demo") as ks:
        if not ks.store.capabilities.shared:
            raise InvalidError(
                f"{ks.url} cannot be shared by several processes; give --url sqlite:///…, redis or postgresql"
            )
        name, is_over = f"demo/{uuid4().hex[:8]}", False
        count = len(outcome.names)
        said().print(f"{count} modules, {workers} processes, one store: {ks.url}", markup=False)
        try:
            await _run(ks.space(name), url, workers, outcome)
            _show(outcome, name, as_json=as_json)
            if not as_json:
                await tell(name, url, outcome.commits, outcome.killing)
            is_over = True
        except _WorkerFailed as failure:
            said().print(f"keepstate: {failure}", markup=False)
            return failure.code
        finally:
            if not (keep and is_over):
                await ks.drop(name)
        if keep and not as_json:
            said().print(f"\nTo run these yourself: export KEEPSTATE_URL='{ks.url}'", markup=False)
    return exits.OK if outcome.is_whole else exits.FAILED


def _refuse_numbers(workers: int, kill: int, most: int | None) -> None:
    for option, given, least in (("workers", workers, 1), ("kill", kill, 0), ("most", most, 1)):
        if given is not None and given < least:
            raise InvalidError(f"--{option} {given} is too few; give {least} or more")
    if kill >= workers:
        raise InvalidError(f"--kill {kill} of --workers {workers} leaves nobody; one has to stay alive")


async def _run(run: Space, url: str, workers: int, outcome: Outcome) -> None:
    await _enqueue(run, outcome.names)
    before, begun = await run.revision(), perf_counter()
    async with _started(url, run.name, workers) as processes:
        await _follow(run, processes, outcome)
    outcome.seconds = perf_counter() - begun
    outcome.transactions = await run.revision() - before  # revisions are dense: one for each
    await _count(run, outcome)
    for module in outcome.names:
        outcome.recounted = added(outcome.recounted, survey(module))


async def _enqueue(run: Space, names: Sequence[str]) -> None:
    for start in range(0, len(names), _BY_BATCH):

        async def put(tx: Transaction, some: Sequence[str] = names[start : start + _BY_BATCH]) -> None:
            for module in some:
                await tx.queue.put(module, id=module)

        await run.transact(put)


@asynccontextmanager
async def _started(url: str, space: str, workers: int) -> AsyncGenerator[list[Process]]:
    processes: list[Process] = []
    try:
        for number in range(workers):
            words = (sys.executable, "-m", "keepstate.cli.demo_worker", space, f"worker {number + 1}")
            # A session of its own keeps Ctrl-C from it: it is ended below. The URL may hold a password.
            process = await asyncio.create_subprocess_exec(
                *words, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(url.encode())
            process.stdin.close()
        yield processes
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _follow(run: Space, processes: Sequence[Process], outcome: Outcome) -> None:
    """Shows how far the workers are, and kills some of them on the way."""
    columns = TextColumn("surveying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    deadline, kill = perf_counter() + _LONGEST_S, outcome.wanted_kills
    with Progress(*columns, console=said(), transient=True, disable=not said().is_terminal) as progress:
        bar = progress.add_task("surveying", total=outcome.modules)
        while any(process.returncode is None for process in processes):
            await _look_after(processes)
            totals: Totals = await run.documents.get("totals") or NOTHING
            progress.update(bar, completed=totals["modules"])
            if outcome.kills < kill and totals["modules"] >= outcome.modules * (outcome.kills + 1) / (
                kill + 2
            ):
                outcome.kills += await _kill_one(run, processes, outcome)
            if perf_counter() > deadline:
                raise KeepstateError(
                    f"the demo did not end within {_LONGEST_S:.0f} s; its workers were stopped"
                )
            await asyncio.sleep(_AIM_EVERY_S if outcome.kills < kill else _LOOK_EVERY_S)
        await _look_after(processes)
        progress.update(bar, completed=outcome.modules)


async def _look_after(processes: Sequence[Process]) -> None:
    """Raises what a worker said when it failed."""
    for number, process in enumerate(processes, 1):
        if process.returncode not in (None, exits.OK, -signal.SIGKILL):
            assert process.stdout is not None
            told = (await process.stdout.read()).decode().strip() or f"exit code {process.returncode}"
            raise _WorkerFailed(number, max(process.returncode, exits.FAILED), told)


async def _kill_one(run: Space, processes: Sequence[Process], outcome: Outcome) -> bool:
    """Kills a worker while it holds a task, and says whether one did."""
    for number, process in enumerate(processes):
        if process.returncode is not None:
            continue
        with suppress(ProcessLookupError):  # it has just ended by itself
            process.send_signal(signal.SIGSTOP)  # so that it still holds what it is seen to hold
            worker = f"worker {number + 1}"
            held = [task.id for task in await run.queue.list("claimed") if task.worker == worker]
            if held:
                before = await commits_of(run)
                process.kill()
                outcome.killing = outcome.killing or Killing(worker, before, held)
                said().print(f"{worker} (process {process.pid}) is killed while it holds modules")
                return True
            process.send_signal(signal.SIGCONT)
    return False


async def _count(run: Space, outcome: Outcome) -> None:
    outcome.counted = await run.documents.get("totals") or NOTHING
    async for _ in run.documents.keys("module/*"):
        outcome.documents += 1
    outcome.commits = await commits_of(run)
    position: int | None = None
    while events := await run.events.read(after=position, limit=1000):
        outcome.events += len(events)
        outcome.conflicts += sum(event.data["tries"] - 1 for event in events)
        position = events[-1].position
    cursor: str | None = None
    while done := await run.queue.list("done", after=cursor, limit=500):
        outcome.taken_over += sum(task.attempt > 1 for task in done)
        cursor = done[-1].cursor


def _show(outcome: Outcome, space: str, *, as_json: bool) -> None:
    if not outcome.has_killed:
        said().print(
            f"{outcome.kills} of {outcome.wanted_kills} workers were killed before all was done: "
            "take more modules"
        )
    by_second = outcome.transactions / outcome.seconds
    if as_json:
        write_json(
            {
                "space": space,
                "modules": outcome.modules,
                "seconds": round(outcome.seconds, 3),
                "transactions": outcome.transactions,
                "transactions_per_second": round(by_second, 1),
                "conflicts_resolved": outcome.conflicts,
                "commits": outcome.commits,
                "workers_killed": outcome.kills,
                "modules_taken_over": outcome.taken_over,
                "counted": dict(outcome.counted),
                "recounted": dict(outcome.recounted),
                "equal": outcome.is_whole,
            }
        )
        return
    table = Table("", "shared counters", "counted again", "", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, counted in outcome.counted.items():
        again = dict(outcome.recounted)[name]
        table.add_row(
            name,
            f"{counted:,}",
            f"{again:,}",
            "[green]equal[/]" if counted == again else "[bold red]NOT EQUAL[/]",
        )
    table.add_row(
        "documents",
        f"{outcome.documents:,}",
        f"{outcome.modules:,}",
        _equal(outcome.documents, outcome.modules),
    )
    table.add_row(
        "events", f"{outcome.events:,}", f"{outcome.modules:,}", _equal(outcome.events, outcome.modules)
    )
    table.add_row(
        "commits", f"{outcome.commits:,}", f"{outcome.modules:,}", _equal(outcome.commits, outcome.modules)
    )
    shown().print(table)
    shown().print(
        f"\n{outcome.modules:,} modules in {outcome.seconds:.1f} s: {by_second:,.0f} transactions a second, "
        f"{outcome.conflicts:,} conflicts resolved,\n{outcome.kills} killed in mid-run, "
        f"{outcome.taken_over} of its modules taken over by others."
    )


def _equal(counted: int, again: int) -> str:
    return "[green]equal[/]" if counted == again else "[bold red]NOT EQUAL[/]"
