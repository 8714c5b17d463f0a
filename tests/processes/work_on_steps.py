"""Work on tasks of five steps until none is left: a worker that may be killed at any time.

Arguments: the URL of a store, the name of the worker, and a folder for notes on what was done.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import keepstate
from keepstate import StepUnknownError, Suspended, Task, Transaction

SPACE = "pool"
LEASE_S = 2.0
AT_ONCE = 8


async def handle(task: Task, folder: Path) -> list[Any]:
    """Do five steps: two plain ones, a transaction, one with `once`, and a receipt."""

    async def say(text: str) -> str:
        await asyncio.sleep(0)
        return f"{task.id} {text}"

    def pay() -> str:
        file = os.open(folder / task.id, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, b"x")
        os.close(file)
        return "paid"

    async def count(tx: Transaction) -> int:
        number: int = await tx.documents.update(f"count/{task.id}", lambda old: old + 1, default=0)
        return number

    first = await task.step("first", say, "first")
    counted = await task.transact("count", count)
    paid = await task.step("pay", pay, once=True)
    received = await task.receive("go")
    last = await task.step("last", say, "last")
    return [first, counted, paid, received, last]


async def attempt(space: keepstate.Space, task: Task, folder: Path) -> None:
    """Run a handler once, as a worker does."""
    try:
        result = await handle(task, folder)
    except Suspended as suspension:
        await task.suspend(suspension)
        await space.queue.send(task.id, "go", "now", send_id="once")
    except StepUnknownError as error:
        await task.fail(error, retry_in_s=0)
        paid = (folder / task.id).exists()
        await space.queue.settle(task.id, "pay", "paid" if paid else keepstate.NOT_DONE)
    else:
        await task.complete(result)


async def main() -> None:
    """Work until no task is ready, waiting or claimed."""
    url, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    async with keepstate.open(url) as ks:
        space = ks.space(SPACE)
        while True:
            found = await space.queue.claim(name, lease_s=LEASE_S, count=AT_ONCE, wait_s=1)
            ended = await asyncio.gather(
                *(attempt(space, task, folder) for task in found), return_exceptions=True
            )
            for error in ended:
                if error is not None and not isinstance(error, keepstate.LeaseLostError):
                    raise error
            counts = await space.queue.counts()
            if not counts["ready"] + counts["waiting"] + counts["claimed"]:
                return


if __name__ == "__main__":
    asyncio.run(main())
