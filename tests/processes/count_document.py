"""Count one document up: `python count_document.py URL TIMES`."""

import asyncio
import sys
import time

import keepstate


async def main(url: str, times: int) -> None:
    longest_s = 0.0
    async with keepstate.open(url) as ks:
        for _ in range(times):
            begun_s = time.monotonic()
            await ks.space("shared").documents.update("n", lambda n: n + 1, default=0)
            longest_s = max(longest_s, time.monotonic() - begun_s)
    print(longest_s)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
