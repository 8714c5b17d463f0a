"""Work on tasks of five steps until SIGTERM: a worker that may be killed at any time.

Arguments: the URL of a store, the name of the worker, and a folder for notes. `FOLDER/notes-NAME` gets one
line of JSON for each begun attempt in turn, each step that is done, and each limit that was exceeded.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import keepstate
from keepstate import Limit, Retry, StepUnknownError, Task, Transaction

SPACE = "pool"
LEASE_S = 2.0
AT_ONCE = 4
RUNNING, RUNNING_EACH = 12, 3
LIMITS = [
    Limit(kind="limited", running=RUNNING),
    Limit(kind="limited", running=RUNNING_EACH, each_key=True),
]


class Notes:
    """The notes of one worker, of which a kill loses none."""

    def __init__(self, folder: Path, worker: str) -> None:
        self.folder = folder
        self._file = os.open(folder / f"notes-{worker}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, *note: object) -> None:
        os.write(self._file, json.dumps(note).encode() + b"\n")

    def pay(self, task_id: str) -> str:
        """Do something outside of the store that must not happen twice."""
        file = os.open(self.folder / f"paid-{task_id}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, b"x")
        os.close(file)
        return "paid"


async def do_steps(task: Task, notes: Notes) -> list[Any]:
    """Do five steps: two plain ones, a transaction, one with `once`, and a receipt."""
    called: list[str] = []

    async def say(text: str) -> str:
        called.append(text)
        await asyncio.sleep(0)
        return f"{task.id} {text}"

    async def count(tx: Transaction) -> int:
        called.append("count")
        number: int = await tx.documents.update(f"count/{task.id}", lambda old: old + 1, default=0)
        return number

    def pay() -> str:
        called.append("pay")
        return notes.pay(task.id)

    done: list[Any] = []
    for step in (
        partial(task.step, "first", say, "first"),
        partial(task.transact, "count", count),
        partial(task.step, "pay", pay, once=True),
        partial(task.receive, "go"),
        partial(task.step, "last", say, "last"),
    ):
        done.append(await step())
        if called:  # not by an earlier attempt
            notes.add("done", task.id, called[-1])
            called.clear()
    return done


async def look_at_limits(space: keepstate.Space, notes: Notes) -> None:
    """Note each limit that the claimed tasks exceed; they are read at one moment."""
    held = [info for info in await space.queue.list("claimed", limit=100) if info.kind == "limited"]
    if len(held) > RUNNING:
        notes.add("exceeded", "limited", len(held))
    for key, number in Counter(info.key for info in held).items():
        if number > RUNNING_EACH:
            notes.add("exceeded", key, number)


async def main() -> None:
    """Run a worker, and note in the batch that completes a limited task that it was completed."""
    url, worker, folder = sys.argv[1:]
    notes = Notes(Path(folder), worker)
    async with keepstate.open(url) as ks:
        space = ks.space(SPACE)

        async def in_turn(task: Task) -> list[Any]:
            notes.add("began", task.id, task.key, task.token)
            return await do_steps(task, notes)

        async def limited(task: Task) -> None:
            await look_at_limits(space, notes)
            done = await do_steps(task, notes)
            async with space.transaction() as tx:
                await tx.events.append(task.id)
                await tx.queue.complete(task, done)

        await space.queue.run(
            {"in turn": in_turn, "limited": limited},
            concurrency=AT_ONCE,
            lease_s=LEASE_S,
            retry=Retry(first_s=0.05, longest_s=1, never=(StepUnknownError,)),
            worker=worker,
        )


if __name__ == "__main__":
    asyncio.run(main())
