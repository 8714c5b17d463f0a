"""A worker of the demo, a process of its own: claims modules, and does each in one transaction.

`python -m keepstate.cli.demo_worker SPACE NAME` reads the URL from standard input; at its end it prints
what it has done as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from time import perf_counter

from keepstate.cli.survey import NOTHING, Survey, Totals, added, survey
from keepstate.engine.queue import Task
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import LeaseLostError
from keepstate.opening import open as open_store

LEASE_S = 2.0
_ATTEMPTS = 1_000
_AT_ONCE = 4


async def work(url: str, space: str, name: str) -> dict[str, float]:
    """Does modules until none is left; returns how many transactions, conflicts and seconds that took."""
    done = conflicts = 0
    begun = perf_counter()
    async with open_store(url, author=name) as ks:
        run = ks.space(space)
        while tasks := await _claimed(run, name):
            for task in tasks:
                tries = await _do(run, task)
                done += tries > 0
                conflicts += max(tries - 1, 0)
    return {"transactions": done, "conflicts": conflicts, "seconds": perf_counter() - begun}


async def _claimed(run: Space, name: str) -> list[Task]:
    while True:
        tasks = await run.queue.claim(name, lease_s=LEASE_S, count=_AT_ONCE, wait_s=0.2)
        if tasks:
            return tasks
        counts = await run.queue.counts()
        if counts["ready"] + counts["waiting"] + counts["claimed"] == 0:
            return []


async def _do(run: Space, task: Task) -> int:
    """Returns how often the transaction was tried; 0 if somebody else has taken the module over."""
    module = str(task.payload)
    found = survey(module)
    tries = 0

    async def record(tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        await tx.queue.complete(task, found["lines"])
        await tx.documents.put(f"module/{module}", found)
        await tx.events.append({"type": "surveyed", "module": module, "worker": task.worker})
        await tx.documents.update("totals", _adding(found), default=NOTHING)

    try:
        await run.transact(record, attempts=_ATTEMPTS)
    except LeaseLostError:
        return 0
    return tries


def _adding(found: Survey) -> Callable[[Totals], Totals]:
    def change(totals: Totals) -> Totals:
        return added(totals, found)

    return change


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(work(sys.stdin.read(), *sys.argv[1:3]))) + "\n")
