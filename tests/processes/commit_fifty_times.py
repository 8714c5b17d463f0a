"""Commit fifty times to one branch: `python commit_fifty_times.py URL NAME append|draft`."""

import asyncio
import sys

import keepstate

COMMITS = 50


async def main(url: str, name: str, how: str) -> None:
    async with keepstate.open(url) as ks:
        history = ks.space("run/1", author=name).history
        if how == "append":
            for number in range(COMMITS):
                await history.append("messages", f"{name} {number}")
            return
        draft = await history.begin()
        draft[name] = []
        for number in range(COMMITS):
            draft[name].append(number)
            await draft.commit(f"{name} {number}", on_conflict="merge")


asyncio.run(main(*sys.argv[1:]))
