"""The workers of a trial, each in a place that its successors take.

They are forked from a process that has everything imported, so that one can be killed each second and its
successor is at work some ten milliseconds later.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from typing import Final

from keepstate._runner import Mode
from keepstate_testing.chaos import worker
from keepstate_testing.chaos.plan import Plan

_PRELOADED: Final = (
    "keepstate_testing.chaos.worker",
    "keepstate.sync",
    "keepstate.stores.file",
    "keepstate.stores.postgres.store",
    "keepstate.stores.redis.store",
    "keepstate.stores.sqlite.store",
)
_BEGINS_WITHIN_S: Final = 60.0
_ENDS_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.005


class Crew:
    """The processes that work on the store of a plan.

    Attributes:
        orders: The orders of each worker, including killed ones.
        faults: Failures of the processes themselves.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))
        self._workers: dict[int, ForkServerProcess] = {}
        self.orders: list[worker.Order] = []
        self.faults: list[str] = []

    def begin(self) -> None:
        """Start them all, and return when they are at work."""
        for place in range(self._plan.workers):
            self._start(place)
        until_s = time.monotonic() + _BEGINS_WITHIN_S
        for place, order in enumerate(self.orders):
            while not order.history.exists() and self._workers[place].is_alive():
                if time.monotonic() > until_s:
                    self.faults.append(f"worker {place} did not begin in {_BEGINS_WITHIN_S:.0f} s")
                    return
                time.sleep(_LOOK_EVERY_S)

    def _start(self, place: int) -> None:
        launch = len(self.orders)
        # Each mode comes with each URL.
        mode: Mode = "async" if launch % 2 else "blocking"
        order = worker.Order(
            url=self._plan.urls[launch // 2 % len(self._plan.urls)],
            folder=self._plan.folder,
            launch=launch,
            mode=mode,
            clients=self._plan.clients,
            seed=self._plan.seed,
            prepare=self._plan.prepare,
        )
        self.orders.append(order)
        process = self._context.Process(target=worker.main, args=(order,), daemon=True)
        process.start()
        self._workers[place] = process

    def kill(self, place: int) -> None:
        """Kill one with SIGKILL, and start its successor."""
        process = self._workers[place]
        self._miss(process)
        process.kill()
        process.join()
        self._start(place)

    def pause(self, place: int, seconds: float) -> None:
        """Suspend a worker for a while and resume it. Its leases may have expired by then."""
        pid = self._workers[place].pid
        assert pid is not None
        with suppress(ProcessLookupError):  # it has ended by itself, which is told later
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Order the workers to end, and wait for their ends."""
        self.orders[0].stop.touch()
        until_s = time.monotonic() + _ENDS_WITHIN_S
        for process in self._workers.values():
            process.join(max(until_s - time.monotonic(), 0))
            if process.exitcode is None:
                self.faults.append(f"a worker did not end in {_ENDS_WITHIN_S:.0f} s")
            self._miss(process)

    def _miss(self, process: ForkServerProcess) -> None:
        if process.exitcode:
            self.faults.append(f"a worker ended by itself, with status {process.exitcode}")

    def abandon(self) -> None:
        """Kill those that still run."""
        for process in self._workers.values():
            process.kill()
            process.join()
            process.close()
