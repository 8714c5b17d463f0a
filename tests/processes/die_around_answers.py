"""Kill a process between every two lines of asking, answering by a link and going on, and let another finish.

Arguments: the URL of a store on a file, a folder for notes on what was paid, and how many lines are between
two kills. Prints the number of kills, and what was wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import keepstate
from keepstate import NOT_DONE, Signer, Space, StepUnknownError, Suspended, Task
from keepstate.approval_links import handle

LEASE_S = 0.3
WATCHED = (
    "approvals/approvals.py",
    "approvals/approval_links.py",
    "approval_links/answering.py",
    "queue/steps.py",
)
KILLED = 9
SIGNER = Signer({"1": b"k" * 32})
ASKED = "t/go"


def note(folder: Path, space: str) -> str:
    """Note outside of the store that something was paid."""
    with (folder / f"{space}.paid").open("a") as file:
        file.write("x")
    return "paid"


def times(folder: Path, space: str) -> int:
    path = folder / f"{space}.paid"
    return len(path.read_text()) if path.exists() else 0


async def pay(folder: Path, space: str, task: Task) -> list[Any]:
    """Ask, and pay what was seen."""
    answer = await task.ask("go", "Pay?", subject={"amount": 12}, to=["ann", "bob"], need=2)
    paid = await task.step("pay", note, folder, space, once=True)
    count = await task.transact("add", lambda tx: tx.documents.update("n", lambda old: old + 1, default=0))
    return [answer.approved, answer.subject, paid, count]


async def answer(ks: keepstate.Keepstate, space: Space) -> None:
    """Let both people answer by their links, those who have answered too."""
    for person in ("ann", "bob"):
        found = await space.approvals.get(ASKED)
        if found is None or found.state != "pending":
            return
        link = await space.approvals.link(ASKED, to=person, base="https://a/", signer=SIGNER)
        request = {"token": link.partition("#")[2], "do": "answer", "value": True, "saw": found.digest}
        status, said = await handle(ks, json.dumps(request).encode(), signer=SIGNER)
        assert status == 200, said


async def work(folder: Path, space: Space, worker: str, lease_s: float, wait_s: float) -> None:
    """Claim the task if it is ready, and work on it."""
    for task in await space.queue.claim(worker, lease_s=lease_s, wait_s=wait_s):
        try:
            await task.complete(await pay(folder, space.name, task))
        except Suspended as waits:
            await task.suspend(waits)
        except StepUnknownError as error:
            await task.fail(error, is_final=True)
            await space.queue.settle("t", "pay", "paid" if times(folder, space.name) else NOT_DONE)
            await space.queue.requeue("t")


def die_at(line: int) -> None:
    """End this process, as a kill does, before the line of this number."""
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os._exit(KILLED)
        return trace

    sys.settrace(trace)


async def begin(url: str, folder: Path, name: str, line: int) -> None:
    """Do all, and die at a line."""
    async with keepstate.open(url) as ks:
        space = ks.space(name)
        await space.queue.put(1, id="t")
        die_at(line)
        await work(folder, space, "first", LEASE_S, 0)
        await answer(ks, space)
        await work(folder, space, "first", LEASE_S, 0)
        sys.settrace(None)


async def finish(url: str, folder: Path, name: str) -> list[str]:
    """Go on until the task is done, and return what is wrong."""
    async with keepstate.open(url) as ks:
        space = ks.space(name)
        while (info := await space.queue.get("t")) is None or info.state != "done":
            await answer(ks, space)
            await work(folder, space, "second", 60, 2)
        wrong: list[str] = []
        if info.result != [True, {"amount": 12}, "paid", 1]:
            wrong.append(f"{name}: the result is {info.result}")
        if (paid := times(folder, name)) != 1:
            wrong.append(f"{name}: paid {paid} times")
        kinds = [(event.kind, event.by) for event in await space.approvals.log(ASKED)]
        if kinds != [("asked", None), ("answered", "ann"), ("answered", "bob")]:
            wrong.append(f"{name}: the log is {kinds}")
        return wrong


def main() -> None:
    """Kill at each line until a process comes to its end."""
    url, folder, stride = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    line = 1 - stride
    while True:
        line += stride
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(begin(url, folder, f"line-{line}", line))
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != KILLED:
            break
    spaces = [f"line-{number}" for number in range(1, line + 1, stride)]
    wrong = [each for name in spaces for each in asyncio.run(finish(url, folder, name))]
    print(json.dumps({"kills": len(spaces) - 1, "wrong": wrong}))


if __name__ == "__main__":
    main()
