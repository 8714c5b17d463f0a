"""Workers that are killed or race while they resume threads: each answer is used once, as is each effect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keepstate import sync
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import ApprovalClosedError
from tests.adapters.langgraph.asking import MODULES, config
from tests.processes import Program
from tests.processes.resume_threads import KILLED, graph_of

THREADS = [f"t{number}" for number in range(6)]


def ask(url: str, notes: Path, threads: list[str]) -> None:
    async def run() -> None:
        async with KeepstateSaver(url, approvals=True) as saver:
            graph = graph_of(saver, notes, "never")
            for thread in threads:
                await graph.ainvoke({"said": []}, config(thread))

    asyncio.run(run())


def answer(url: str, threads: list[str]) -> None:
    with sync.open(url) as ks:
        for thread in threads:
            for asked in ks.space(f"thread/{thread}").approvals.pending():
                ks.space(f"thread/{thread}").approvals.answer(asked.id, True, by="ann")


def read(url: str, notes: Path, thread: str) -> tuple[list[str], list[str]]:
    """Return what a thread has said, and the states of its tasks."""
    with sync.open(url) as ks, KeepstateSaver(ks, approvals=True) as saver:
        graph = graph_of(saver, notes, "never")
        states = [task.state for task in ks.space(f"thread/{thread}").queue.list()]
        return graph.get_state(config(thread)).values["said"], states


def worker(url: str, notes: Path, place: str) -> Program:
    return Program("-m", "tests.processes.resume_threads", url, notes, place, modules=MODULES)


@pytest.mark.parametrize("place", ["before", "node", "next"])
def test_a_worker_that_is_killed_leaves_its_run_to_the_next(tmp_path: Path, place: str) -> None:
    url = f"sqlite:///{tmp_path}/a.db?durability=normal"
    ask(url, tmp_path, ["t"])
    answer(url, ["t"])

    assert worker(url, tmp_path, place).wait(60) == KILLED
    assert worker(url, tmp_path, "never").wait(60) == 0

    assert read(url, tmp_path, "t") == (["pay: True", "end"], ["done"])
    assert (tmp_path / "paid").read_text() == "x"
    assert (tmp_path / "ended").read_text() == ("xx" if place == "next" else "x")
    assert not (tmp_path / "without a task").exists()


@pytest.mark.slow
def test_of_racing_processes_one_resumes_each_thread(shared_url: str, tmp_path: Path) -> None:
    ask(shared_url, tmp_path, THREADS)
    workers = [worker(shared_url, tmp_path, "race") for _ in range(2)]
    answerers = [
        Program("-c", ANSWERER, shared_url, value, *THREADS, modules=MODULES) for value in ("yes", "no")
    ]

    assert [each.wait(60) for each in (*answerers, *workers)] == [0] * 4

    for thread in THREADS:
        said, states = read(shared_url, tmp_path, thread)
        assert said in (["pay: True", "end"], ["pay: False", "end"])
        assert states == ["done"]
    assert (tmp_path / "paid").read_text() == "x" * len(THREADS)
    assert (tmp_path / "ended").read_text() == "x" * len(THREADS)


ANSWERER = f"""
import sys
from keepstate import sync
from keepstate.errors import {ApprovalClosedError.__name__}

url, value, *threads = sys.argv[1:]
with sync.open(url) as ks:
    for thread in threads:
        approvals = ks.space(f"thread/{{thread}}").approvals
        for asked in approvals.pending():
            try:
                approvals.answer(asked.id, value == "yes", by=value)
            except {ApprovalClosedError.__name__}:
                pass
"""
