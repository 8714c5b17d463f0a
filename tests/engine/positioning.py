"""A process that reads with positions, or writes, for `test_positions`: its command and answer are JSON.

Commands: `write` documents and events; `keep` all positions of the watch and the stream, and a printed
version; `go_on` behind pairs of positions and write over that version. Instead of what was read, an answer
has the code of its error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import keepstate
from keepstate.engine.space import Space
from keepstate.errors import KeepstateError


async def write(space: Space, first: int, count: int, author: str) -> None:
    for number in range(first, first + count):
        async with space.transaction() as tx:
            await tx.documents.put("plan", f"{author}/{number}")
            await tx.documents.put(f"{author}/{number}", number)
            await tx.events.append({"by": author, "n": number})


async def keep(space: Space) -> dict[str, Any]:
    async with space.documents.watch("*/*", after=0, timeout_s=0) as changes:
        positions = [change.position async for change in changes]
        events = [event.position for event in await space.events.read()]
        plan = await space.documents.entry("plan")
        assert plan is not None
        return {"positions": list(zip(positions, events, strict=True)), "version": plan.printed_version}


async def go_on(space: Space, positions: list[tuple[str, str]], version: str) -> dict[str, Any]:
    told = [
        (await _told(_changed(space, watch)), await _told(_happened(space, event)))
        for watch, event in positions
    ]
    put = await _told(space.documents.put("plan", "mine", expected_version=version))
    return {"told": told, "put": put}


async def _changed(space: Space, after: str) -> list[Any]:
    async with space.documents.watch("*/*", after=after, timeout_s=0) as changes:
        return [change.key async for change in changes]


async def _happened(space: Space, after: str) -> list[Any]:
    return [f"{event.data['by']}/{event.data['n']}" for event in await space.events.read(after=after)]


async def _told(reading: Any) -> Any:
    try:
        return await reading
    except KeepstateError as error:
        return error.code


async def main(url: str, command: str, arguments: dict[str, Any]) -> None:
    async with keepstate.open(url) as ks:
        call = {"write": write, "keep": keep, "go_on": go_on}[command]
        print(json.dumps(await call(ks.space("run"), **arguments)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
