"""Resume an interrupted thread of LangGraph, or be killed meanwhile; or resume threads until there are none.

Words: URL, the folder in which each node notes that it has run, and the place to be killed: `before` the
graph, in the `node` after its step, in the `next` node, or `never`. `race` resumes all threads.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

from langgraph.types import interrupt

from keepstate import sync
from keepstate.adapters.langgraph import KeepstateSaver, current_task, resume
from tests.adapters.langgraph.asking import KIND, State, one_asks

KILLED = 9


def graph_of(saver: KeepstateSaver, notes: Path, place: str) -> Any:
    """Return a graph that pays once it was answered, and then ends."""

    def note(name: str) -> None:
        with (notes / name).open("a") as file:
            file.write("x")

    def kill(at: str) -> None:
        if at == place:
            os._exit(KILLED)

    async def pay(state: State) -> dict[str, Any]:
        answer = interrupt("pay?")
        task = current_task()
        if task is None:
            note("without a task")
        else:
            await task.step("transfer", note, "paid")
        kill("node")
        return {"said": [f"pay: {answer}"]}

    def end(state: State) -> dict[str, Any]:
        note("ended")
        kill("next")
        return {"said": ["end"]}

    return one_asks(saver, pay, end)


def main(url: str, folder: str, place: str) -> None:
    """Work until a thread was resumed, or idle."""
    done = threading.Event()
    with sync.open(url) as ks, KeepstateSaver(url, approvals=True) as saver:
        handler = resume(graph_of(saver, Path(folder), place), lease_s=1)

        async def handle(task: Any) -> Any:
            if place == "before":
                os._exit(KILLED)
            result = await handler(task)
            if place != "race" and task.ended_as is None:
                done.set()
            return result

        idle_s = 0.5 if place == "race" else 30
        ks.queues("thread/").run({KIND: handle}, lease_s=1, idle_s=idle_s, stop=done)


if __name__ == "__main__":
    main(*sys.argv[1:])
