"""Processes that commit to one branch at once: every commit is kept."""

from __future__ import annotations

import pytest

import keepstate
from keepstate.engine.space.keepstate import Keepstate
from tests.engine.history.conftest import history_of
from tests.processes import PROCESSES, Program

COMMITTING = PROCESSES / "commit_fifty_times.py"
NAMES = ("w0", "w1", "w2", "w3")


def commit_at_once(url: str, how: str) -> None:
    """Let four processes commit fifty times each."""
    workers = [Program(COMMITTING, url, name, how) for name in NAMES]
    assert [worker.wait(timeout=110) for worker in workers] == [0] * 4


@pytest.mark.slow
async def test_four_processes_append_200_times_and_all_is_there(
    shared_url: str, opened: list[Keepstate]
) -> None:
    commit_at_once(shared_url, "append")

    opened.append(keepstate.open(shared_url))
    history = history_of(opened[-1].space("run/1"))
    messages = (await history.checkout())["messages"]
    assert sorted(messages) == sorted(f"{name} {n}" for name in NAMES for n in range(50))
    assert [m for m in messages if m.startswith("w0 ")] == [f"w0 {n}" for n in range(50)]
    assert (await history.find()).number == 200


@pytest.mark.slow
async def test_four_processes_with_drafts_merge_and_keep_all_200_commits(
    shared_url: str, opened: list[Keepstate]
) -> None:
    commit_at_once(shared_url, "draft")

    opened.append(keepstate.open(shared_url))
    history = history_of(opened[-1].space("run/1"))
    assert dict(await history.checkout()) == {name: list(range(50)) for name in NAMES}
    own = {commit.message async for commit in history.log()}
    assert own == {f"{name} {n}" for name in NAMES for n in range(50)}
