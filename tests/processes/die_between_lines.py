"""Kill a worker between every two lines of its steps, let another one finish, and tell what was wrong.

Arguments: the URL of a store on a file, a folder for notes on what the steps have done, and how many lines
are between two kills.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from keepstate import NOT_DONE, StepUnknownError, sync

LEASE_S = 0.3
WATCHED = ("queue/steps.py", "queue/step_records.py", "die_between_lines.py")
KILLED = 9


def note(folder: Path, space: str, what: str) -> str:
    """Note outside of the store that something was done, and return it."""
    with (folder / f"{space}.{what}").open("a") as file:
        file.write("x")
    return what


def times(folder: Path, space: str, what: str) -> int:
    path = folder / f"{space}.{what}"
    return len(path.read_text()) if path.exists() else 0


def handle(folder: Path, space: str, task: sync.Task) -> list[Any]:
    """Do three steps of different kinds."""
    said = task.step("say", note, folder, space, "said")
    paid = task.step("pay", note, folder, space, "paid", once=True)
    count = task.transact("add", lambda tx: tx.documents.update("n", lambda old: old + 1, default=0))
    return [said, paid, count]


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


def work(url: str, folder: Path, space: str, line: int) -> None:
    """Run the task of a space, and die at a line."""
    with sync.open(url) as ks:
        queue = ks.space(space).queue
        queue.put(1, id="t")
        (task,) = queue.claim("first", lease_s=LEASE_S)
        die_at(line)
        result = handle(folder, space, task)
        sys.settrace(None)
        task.complete(result)


def finish(url: str, folder: Path, space: str) -> tuple[list[str], bool]:
    """Finish the task of a space, and return what is wrong, and whether a step had to be settled."""
    was_unknown = False
    with sync.open(url) as ks:
        queue = ks.space(space).queue
        while (info := queue.get("t")) is None or info.state != "done":
            (task,) = queue.claim("second", lease_s=60, wait_s=30)
            try:
                task.complete(handle(folder, space, task))
            except StepUnknownError as error:
                was_unknown = True
                task.fail(error, is_final=True)
                paid = times(folder, space, "paid")
                queue.settle("t", "pay", "paid" if paid else NOT_DONE)
                queue.requeue("t")
        wrong: list[str] = []
        if info.result != ["said", "paid", 1]:
            wrong.append(f"{space}: the result is {info.result}")
        if ks.space(space).documents.get("n") != 1:
            wrong.append(f"{space}: the transaction was applied several times")
        if times(folder, space, "paid") != 1:
            wrong.append(f"{space}: paid {times(folder, space, 'paid')} times")
        if not 1 <= times(folder, space, "said") <= 2:
            wrong.append(f"{space}: said {times(folder, space, 'said')} times")
        return wrong, was_unknown


def main() -> None:
    """Kill at each line until a worker comes to its end."""
    url, folder, stride = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    line = 1 - stride
    while True:
        line += stride
        child = os.fork()
        if child == 0:
            try:
                work(url, folder, f"line-{line}", line)
            finally:
                os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != KILLED:
            break
    found = [finish(url, folder, f"line-{number}") for number in range(1, line + 1, stride)]
    wrong = [each for problems, _ in found for each in problems]
    print(
        json.dumps({"kills": len(found) - 1, "wrong": wrong, "unknown": sum(unknown for _, unknown in found)})
    )


if __name__ == "__main__":
    main()
