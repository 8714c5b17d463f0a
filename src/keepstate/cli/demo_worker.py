"""A worker of the demo, a process of its own: claims modules, and does each in one transaction.

`python -m keepstate.cli.demo_worker SPACE NAME` reads the URL from standard input. What it has done stands in
the store; only if it fails does it print why, and its exit code is that of the error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress

from keepstate.cli import exits
from keepstate.cli.survey import NOTHING, Survey, Totals, added, survey
from keepstate.engine.queue import Task
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import KeepstateError, LeaseLostError
from keepstate.opening import open as open_store

LEASE_S = 2.0
_ATTEMPTS = 1_000
_AT_ONCE = 4


async def work(url: str, space: str, name: str) -> None:
    """Does modules until none is left."""
    async with open_store(url, author=name) as ks:
        run = ks.space(space, record=True)
        while tasks := await _claimed(run, name):
            for task in tasks:
                await _do(run, task)


async def _claimed(run: Space, name: str) -> list[Task]:
    while True:
        tasks = await run.queue.claim(name, lease_s=LEASE_S, count=_AT_ONCE, wait_s=0.2)
        if tasks:
            return tasks
        counts = await run.queue.counts()
        if counts["ready"] + counts["waiting"] + counts["claimed"] == 0:
            return []


async def _do(run: Space, task: Task) -> None:
    """Does a module, unless somebody else has taken it over."""
    module = str(task.payload)
    found = survey(module)
    tries = 0

    async def record(tx: Transaction) -> None:
        nonlocal tries
        tries += 1
        await tx.queue.complete(task, found["lines"])
        await tx.documents.put(f"module/{module}", found)
        await tx.events.append({"type": "surveyed", "module": module, "worker": task.worker, "tries": tries})
        await tx.documents.update("totals", _adding(found), default=NOTHING)

    with suppress(LeaseLostError):
        await run.transact(record, attempts=_ATTEMPTS)


def _adding(found: Survey) -> Callable[[Totals], Totals]:
    def change(totals: Totals) -> Totals:
        return added(totals, found)

    return change


def main() -> int:
    """Returns the exit code of a worker."""
    try:
        asyncio.run(work(sys.stdin.read(), *sys.argv[1:3]))
    except KeepstateError as error:
        sys.stdout.write(" ".join(str(error).split()))
        return exits.code_of(error)
    except Exception as error:  # noqa: BLE001  whatever it is, one line says it
        sys.stdout.write(f"{type(error).__name__}: {error}")
        return exits.FAILED
    return exits.OK


if __name__ == "__main__":
    sys.exit(main())
