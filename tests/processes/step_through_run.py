"""Do a run on the thread that all processes share: `step_through_run.py URL RUN STEPS [LEASE_TTL_S]`.

It goes on where one before it was killed, and says so on its output once it does.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from keepstate import (
    AgentRun,
    CounterKey,
    KeyScope,
    MapKey,
    MutationBatch,
    RegisterKey,
    ToolCallContext,
)

TOOLS = 16


class Calls(CounterKey):
    KEY = "calls"
    SCOPE = KeyScope.THREAD


class Last(MapKey[int]):
    """The last step of each tool of each run."""

    KEY = "last"
    SCOPE = KeyScope.THREAD


class Sum(RegisterKey[int]):
    """Counted by hand: an exclusive key, of which each new value depends on the one that was seen."""

    KEY = "sum"
    SCOPE = KeyScope.THREAD


KEYS = (Calls, Last, Sum)


async def main(url: str, run_id: str, steps: int, lease_ttl_s: float = 60.0) -> None:
    """Take the steps: in each 16 tools, of which every tenth time one changes the exclusive key too."""
    async with AgentRun(persistence=url, keys=KEYS, reruns=1000, lease_ttl_s=lease_ttl_s) as run:
        record = await run.start_run("t", run_id, resume=True, wait_s=30)
        print("begun", flush=True)
        for step in range(record.steps, steps):
            await run.step(*[tool(run_id, number, step) for number in range(TOOLS)], messages=[step])
        await run.finish_run()


def tool(run_id: str, number: int, step: int) -> Callable[[ToolCallContext], Awaitable[MutationBatch]]:
    async def called(ctx: ToolCallContext) -> MutationBatch:
        batch = MutationBatch().update(Calls, 1).update(Last, {f"{run_id}/{number}": step})
        if number == 0 and step % 10 == 0:
            batch.update(Sum, (ctx.snapshot.get(Sum) or 0) + 1)
        return batch

    return called


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])))
