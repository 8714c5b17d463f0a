"""Complete tasks until there are none: `python complete_tasks.py URL NAME`."""

import asyncio
import sys

import keepstate


async def main(url: str, name: str) -> None:
    async with keepstate.open(url) as ks:
        async for task in ks.space("shared").queue.work(name, wait_s=0.2):
            await task.complete(name)
            print(task.id)


asyncio.run(main(*sys.argv[1:]))
