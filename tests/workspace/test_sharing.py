"""Processes that work on one state: who comes second raises or merges, and nothing of anybody is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from keepstate import events
from keepstate.workspace import SuccessEvent
from tests.processes import ROOT, Program
from tests.processes.share_state import COMMITS, opened

WORDS = ("-W", "error", "-m", "tests.processes.share_state")
NAMES = ("ana", "eva", "zoe")


def started(place: str, name: str, how: str) -> Program:
    return Program(*WORDS, place, name, how, stdout=subprocess.PIPE)


def output_of(process: Program | subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return out


@pytest.mark.parametrize("how", ["raise", "merge"])
def test_processes_on_one_branch_lose_nothing(shared_place: str, how: str) -> None:
    with opened(shared_place) as state:
        state["n"], state["seen"] = 0, []
        state.commit()
        for process in [started(shared_place, name, how) for name in NAMES]:
            output_of(process)

        state.discard()
        assert state["n"] == COMMITS * len(NAMES)
        assert Counter(state["seen"]) == dict.fromkeys(NAMES, COMMITS)
        successes = [event for event in events(state) if isinstance(event, SuccessEvent)]
        assert Counter(event.agent_name for event in successes) == dict.fromkeys(NAMES, COMMITS)
        assert {event.commit_hash for event in successes} <= set(state.history())


def test_processes_that_only_read_commit_nothing(tmp_path: Path) -> None:
    place = f"disk:{tmp_path}"
    with opened(place) as state:
        state["names"] = {f"name {n}" for n in range(50)}
        state["nested"] = {"sets": [{"b", "a"}, frozenset({"c", "d"})]}
        commit = state.commit().id

    # The order of a set of texts is another one in each interpreter.
    found = [
        output_of(
            subprocess.Popen(
                [sys.executable, *WORDS, place, "reader", "read"],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": str(seed)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        for seed in range(3)
    ]
    assert found == [f"{commit} {commit}\n"] * 3
