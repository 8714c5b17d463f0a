"""A trial by chaos: starts workers, kills them and the server, and judges what is left.

The workers are forked from a process that has everything imported, so that one can be killed each second and
its successor is at work some ten milliseconds later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import msgspec

from keepstate._finish import finish
from keepstate._runner import Colour
from keepstate.errors import KeepstateError
from keepstate.testing.chaos import worker
from keepstate.testing.chaos.promises import promises
from keepstate.testing.chaos.workload import HOT
from keepstate.testing.proof.ending import read_end, settle
from keepstate.testing.proof.findings import Findings, Kind
from keepstate.testing.proof.linearizability import is_linearizable, sample
from keepstate.testing.proof.operations import History
from keepstate.testing.proof.recorder import load
from keepstate.testing.proof.witness import witness

_PRELOADED: Final = (
    "keepstate.testing.chaos.worker",
    "keepstate.sync",
    "keepstate.stores.file",
    "keepstate.stores.postgres.store",
    "keepstate.stores.redis.store",
    "keepstate.stores.sqlite.store",
)
_ENDS_WITHIN_S: Final = 45.0
_SAMPLE: Final = 400

Crash = Callable[[random.Random], None]
"""Kills a server and starts it again; returns when it answers."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a run goes.

    Attributes:
        urls: The store, as the workers name it in turn.
        folder: An empty folder for histories.
        seconds: How long the workers work.
        seed: What all choices come from; kills still come when they come.
        workers: How many processes.
        clients: How many tasks or threads each.
        kill_every_s: From how long to how long to wait before the next kill, in seconds.
        crash: Kills a server, and starts it again; None where there is none.
        crash_share: The share of kills that are a server's.
        prepare: A function that each worker calls first, as `module:name`: it makes a backend known, or
            breaks one, to see whether that is found.
    """

    urls: tuple[str, ...]
    folder: Path
    seconds: float
    seed: int
    workers: int = 3
    clients: int = 4
    kill_every_s: tuple[float, float] = (0.4, 1.2)
    crash: Crash | None = None
    crash_share: float = 0.4
    prepare: str | None = None


class Report(msgspec.Struct, kw_only=True):
    """What a run came to.

    Attributes:
        worker_kills: How many workers were killed.
        server_crashes: How often a server was killed.
        unanswered: How many batches nobody heard the end of.
        history_lost: How often a client was told that the store had lost history.
        samples: In how many samples an order of the operations was searched for, trusting no revision.
        too_long: In how many the search was given up.
        findings: The broken promises, and how many operations were judged.
        faults: What workers, or the judge, could not go on after.
        judging_s: How long it took to judge, in seconds.
    """

    worker_kills: int = 0
    server_crashes: int = 0
    unanswered: int = 0
    history_lost: int = 0
    samples: int = 0
    too_long: int = 0
    findings: Findings
    faults: list[str] = []
    judging_s: float = 0.0

    def __str__(self) -> str:
        """Returns all of it, to be read."""
        killed = f"{self.worker_kills} workers killed, {self.server_crashes} servers crashed"
        searched = f"{self.samples} samples searched, {self.too_long} given up"
        unheard = f"{self.unanswered} batches unanswered, history lost {self.history_lost} times"
        return "\n".join([killed, unheard, searched, str(self.findings), *self.faults])


def run(plan: Plan) -> Report:
    """Returns what a run came to. Blocks; what it started has ended when it returns."""
    crew, dice = _Crew(plan), random.Random(plan.seed)
    report = Report(findings=Findings())
    try:
        crew.begin()
        while time.monotonic() < crew.until_s:
            time.sleep(min(dice.uniform(*plan.kill_every_s), max(crew.until_s - time.monotonic(), 0)))
            if plan.crash is not None and dice.random() < plan.crash_share:
                plan.crash(dice)
                report.server_crashes += 1
            elif time.monotonic() < crew.until_s:
                crew.kill(dice.randrange(plan.workers))
                report.worker_kills += 1
        crew.end()
    finally:
        crew.abandon()
    report.faults += crew.faults
    _judge(plan, report, crew.orders)
    return report


class _Crew:
    """The workers at work, each with a place that its successors take."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))
        self._workers: dict[int, ForkServerProcess] = {}
        self.orders: list[worker.Order] = []
        self.faults: list[str] = []
        self.until_s = 0.0

    def begin(self) -> None:
        """Starts them all; the time counts from when they can be."""
        first = self._context.Process(target=_imported)
        first.start()
        first.join()
        self.until_s = time.monotonic() + self._plan.seconds
        for place in range(self._plan.workers):
            self._start(place)

    def _start(self, place: int) -> None:
        launch = len(self.orders)
        # Both colours in each place, in turn.
        colour: Colour = "async" if (launch + place) % 2 else "blocking"
        order = worker.Order(
            url=self._plan.urls[launch % len(self._plan.urls)],
            folder=self._plan.folder,
            launch=launch,
            colour=colour,
            clients=self._plan.clients,
            until_s=self.until_s,
            seed=self._plan.seed,
            prepare=self._plan.prepare,
        )
        self.orders.append(order)
        process = self._context.Process(target=worker.main, args=(order,), daemon=True)
        process.start()
        self._workers[place] = process

    def kill(self, place: int) -> None:
        """Kills one with SIGKILL, and starts its successor."""
        process = self._workers[place]
        if process.exitcode:
            self._miss(process)
        process.kill()
        process.join()
        self._start(place)

    def _miss(self, process: ForkServerProcess) -> None:
        self.faults.append(f"a worker ended by itself, with status {process.exitcode}")

    def end(self) -> None:
        """Waits until those that work have ended by themselves."""
        deadline_s = time.monotonic() + _ENDS_WITHIN_S
        for process in self._workers.values():
            process.join(max(deadline_s - time.monotonic(), 0))
            if process.exitcode is None:
                self.faults.append(f"a worker does not end {_ENDS_WITHIN_S:.0f} s after its time")
            elif process.exitcode:
                self._miss(process)

    def abandon(self) -> None:
        """Kills those that still run."""
        for process in self._workers.values():
            process.kill()
            process.join()
            process.close()


def _search(history: History, report: Report) -> None:
    """Judges some keys at the beginning of a space once more, without trust in any revision."""
    for keys in (HOT[:2], HOT[2:4], HOT[4:7]):
        answer = is_linearizable(sample(history, keys, most=_SAMPLE), len(keys))
        report.samples += answer is not None
        report.too_long += answer is None
        if answer is False:
            report.findings.add(Kind.DISORDERED, history.space, f"no order explains what {keys} were")


def _imported() -> None:
    """Ends at once: with the first process that is forked, all is imported for those that follow."""


def _judge(plan: Plan, report: Report, orders: list[worker.Order]) -> None:
    begun_s = time.monotonic()
    histories = load(order.history for order in orders if order.history.exists())
    report.faults += [order.fault.read_text() for order in orders if order.fault.exists()]
    store = finish(worker.opened(plan.urls[0], "blocking"))
    try:
        for history in histories.values():
            open_ones = [attempt for attempt in history.attempts if attempt.answer is None]
            report.unanswered += len(open_ones)
            report.history_lost += sum(note.what == "history lost" for note in history.notes)
            finish(settle(store, open_ones))
            end = finish(read_end(store, history.space))
            report.findings.extend(witness(history, end))
            report.findings.extend(promises(history, end))
            _search(history, report)
    except KeepstateError as error:
        report.faults.append(f"the judge: {error!r}")
    finally:
        finish(store.close())
    report.judging_s = time.monotonic() - begun_s
