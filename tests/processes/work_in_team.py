"""A worker of a team, to be killed at any moment: `python work_in_team.py URL AGENT TASKS`.

It claims tasks and completes them until as many as it is told are completed. With each completion it counts
the task, in the same batch: a task that were completed twice would count two.
"""

from __future__ import annotations

import asyncio
import sys

import keepstate
from keepstate import ConflictError, OrchestrationStateManager

LEASE_S = 2.0


async def main(url: str, agent: str, tasks: int) -> None:
    async with keepstate.open(url) as ks:
        run = ks.space("run/1")
        teams = OrchestrationStateManager(space=run, lease_s=LEASE_S)
        while True:
            task = await teams.claim_task("t", agent, wait_s=0.5)
            if task is None:
                if (await run.queue.counts())["done"] == tasks:
                    return
                continue
            try:
                async with run.transaction() as tx:
                    await OrchestrationStateManager(space=tx).complete_task(
                        "t", task.id, agent, agent_id=agent, token=task.token
                    )
                    count = await tx.documents.get(f"count/{task.id}", 0)
                    await tx.documents.put(f"count/{task.id}", count + 1)
            except ConflictError:  # another has it, or will
                continue


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
