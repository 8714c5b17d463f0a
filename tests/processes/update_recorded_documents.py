"""Update documents of a recorded space: `python update_recorded_documents.py URL NAME`."""

import asyncio
import sys

import keepstate

UPDATES = 50


async def main(url: str, name: str) -> None:
    async with keepstate.open(url, author=name) as ks:
        documents = ks.space("run/1").documents
        for number in range(UPDATES):
            await documents.update("shared", lambda n: n + 1)
            await documents.put(f"{name}/{number % 7}", {"by": name, "number": number})


asyncio.run(main(*sys.argv[1:]))
