"""Four who update one key at once lose no update, recorded or not, on every backend."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from keepstate import StateConfig, StateManager
from tests.managers.stores import url_of
from tests.processes import Program
from tests.processes.count_up_state import count_up

WHO = 4
TIMES = [pytest.param(125, marks=pytest.mark.slow), pytest.param(500, marks=pytest.mark.deep)]
"""How often each of them does."""


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_tasks_of_one_process_lose_no_update(
    kind: str, record: bool, times: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    async with StateManager(StateConfig(backend=url, record=record)) as state:  # it keeps the memory's store
        await asyncio.gather(*(count_up(url, record, times) for _ in range(WHO)))

        assert await state.get("n") == WHO * times
        assert not record or await told(state, times) == WHO * times


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
async def test_processes_lose_no_update(
    kind: str, record: bool, times: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)
    words = ("-m", "tests.processes.count_up_state", url, int(record), times)
    processes = [Program(*words) for _ in range(WHO)]
    try:
        codes = [process.wait(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()

    async with StateManager(StateConfig(backend=url, record=record)) as state:
        assert (codes, await state.get("n")) == ([0] * WHO, WHO * times)
        assert not record or await told(state, times) == WHO * times


async def told(state: StateManager, times: int) -> int:
    """Return how many changes of the key its history tells."""
    return len(await state.history("n", limit=2 * WHO * times))
