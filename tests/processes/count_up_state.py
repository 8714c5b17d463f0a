"""Add to one key of a `StateManager`: `python count_up_state.py URL RECORD TIMES`."""

from __future__ import annotations

import asyncio
import sys

from keepstate import StateConfig, StateManager


async def count_up(url: str, record: bool, times: int) -> None:
    async with StateManager(StateConfig(backend=url, record=record)) as state:
        for _ in range(times):
            await state.update("n", lambda old: old + 1, default=0)


if __name__ == "__main__":
    asyncio.run(count_up(sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])))
