"""A step, its task, a checkpoint and an event are one batch: killed anywhere, all are there or none."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import keepstate
from keepstate import AgentStateStore, OrchestrationStateManager, WorkflowStateManager
from tests.managers.stores import url_of
from tests.processes import run

STEPS = 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "record"),
    [("file", True), ("sqlite", True), ("sqlite", False), ("redis", True), ("postgres", True)],
    ids=lambda value: {True: "recorded", False: "not recorded"}.get(value, value),
)
def test_a_process_killed_between_any_two_steps_leaves_all_or_nothing(
    kind: str, record: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    killed: list[object] = []
    for step in range(STEPS + 1):
        assert work(url, record, killed_before=step) == -signal.SIGKILL
        killed.append(asyncio.run(seen(url)))
    lived = work(url, record, killed_before=STEPS + 1)

    assert killed == [(0, 1, 0, None, 0)] * (STEPS + 1)
    assert lived == 0 and asyncio.run(seen(url)) == (1, 0, 1, 1, 1)


def work(url: str, record: bool, *, killed_before: int) -> int:
    words = ("-m", "tests.processes.die_in_step", url, int(record), killed_before)
    return run(*words, check=False).returncode


async def seen(url: str) -> tuple[int, int, int, int | None, int]:
    """Return the workflow's step and the tasks in work and done, the checkpoint's step, and the events."""
    async with keepstate.open(url) as ks:
        run = ks.space("run/42")
        state = await WorkflowStateManager(space=run).get("w")
        queue = await OrchestrationStateManager(space=run).get_queue_status("t")
        point = await AgentStateStore(space=run).get_checkpoint("agent", "c")
        events = await run.events.read()
        assert state is not None
        return (
            state.current_step,
            len(queue.in_progress),
            len(queue.completed),
            point.step if point else None,
            len(events),
        )
