"""Work on tasks, and note each in the batch that completes it: `python run_worker.py URL IDLE_S`."""

import asyncio
import sys

import keepstate


async def main(url: str, idle_s: float) -> None:
    async with keepstate.open(url) as ks:
        space = ks.space("shared")

        async def handle(task: keepstate.Task) -> None:
            await asyncio.sleep(0.02)
            async with space.transaction() as tx:
                await tx.events.append(task.id)
                await tx.queue.complete(task)

        print(await space.queue.run(handle, concurrency=4, lease_s=0.5, idle_s=idle_s), flush=True)


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
