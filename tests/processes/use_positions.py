"""Read with positions, or write, for `test_positions`: its command and answer are JSON.

Commands: `write` documents, events and tasks; `keep` all positions of the watch and the stream, a printed
version of a document and of a profile, and the cursors of a listing; `cursors` gives those alone; `go_on`
behind pairs of positions and behind cursors, and write over those versions. Instead of what was read, an
answer has the code of its error.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import KeepstateError
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.typed.key import ProfileKey
from keepstate.typed.profiles import ProfileAccess


class Plan(ProfileKey[str]):
    """The author of the last write."""

    KEY = "plan"
    TYPE = str
    DEFAULT = ""


async def write(space: Space, profiles: ProfileAccess, first: int, count: int, author: str) -> None:
    for number in range(first, first + count):
        async with space.transaction() as tx:
            await tx.documents.put("plan", f"{author}/{number}")
            await tx.documents.put(f"{author}/{number}", number)
            await tx.events.append({"by": author, "n": number})
            await tx.queue.put(number, id=f"{author}/{number}")
        await profiles.write(Plan, "team", f"{author}/{number}")


async def keep(space: Space, profiles: ProfileAccess) -> dict[str, Any]:
    async with space.documents.watch("*/*", after=0, timeout_s=0) as changes:
        positions = [change.position async for change in changes]
        events = [event.position for event in await space.events.read()]
        plan = await space.documents.entry("plan")
        profile = await profiles.entry(Plan, "team")
        assert plan is not None and profile is not None
        return {
            "positions": list(zip(positions, events, strict=True)),
            "version": plan.printed_version,
            "profile": profile.printed_version,
            "cursors": await cursors(space, profiles),
        }


async def cursors(space: Space, _profiles: ProfileAccess) -> list[str | None]:
    return [task.cursor for task in await space.queue.list("ready")]


async def go_on(
    space: Space,
    profiles: ProfileAccess,
    positions: list[tuple[str, str]],
    version: str,
    profile: str,
    cursors: list[str],
) -> dict[str, Any]:
    listed = [await _told(_listed(space, cursor)) for cursor in cursors]
    told = [
        (await _told(_changed(space, watch)), await _told(_happened(space, event)))
        for watch, event in positions
    ]
    put = await _told(space.documents.put("plan", "mine", expected_version=version))
    removed = await _told(profiles.delete(Plan, "team", expected_version=profile))
    written = await _told(profiles.write(Plan, "team", "mine", expected_version=profile))
    return {"told": told, "put": put, "listed": listed, "profile": [removed, written]}


async def _changed(space: Space, after: str) -> list[Any]:
    async with space.documents.watch("*/*", after=after, timeout_s=0) as changes:
        return [change.key async for change in changes]


async def _happened(space: Space, after: str) -> list[Any]:
    return [f"{event.data['by']}/{event.data['n']}" for event in await space.events.read(after=after)]


async def _listed(space: Space, after: str) -> list[Any]:
    return [task.id for task in await space.queue.list("ready", after=after)]


async def _told(reading: Any) -> Any:
    try:
        return await reading
    except KeepstateError as error:
        return error.code


async def main(url: str, command: str, arguments: dict[str, Any]) -> None:
    plain = url.removeprefix("encrypted+")
    encryption = None if plain == url else KeyRing(bytes(32))
    async with keepstate.open(plain, encryption=encryption) as ks:
        call: Any = {"write": write, "keep": keep, "cursors": cursors, "go_on": go_on}[command]
        profiles = ProfileAccess(space=ks.space("profiles"))
        print(json.dumps(await call(ks.space("run"), profiles, **arguments)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
