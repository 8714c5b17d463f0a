"""Write a history: `python -m tests.processes.write_history URL SPACE NAME OTHERS S SEED`.

It prints what it knows of its work as one line of JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from random import Random
from typing import Final

import msgspec

import keepstate
from tests.crashes.history_company import Writer

LEAST: Final = 150
"""So many turns leave something to be collected."""


async def main(url: str, space: str, name: str, others: str, seconds: str, seed: str) -> None:
    async with keepstate.open(url) as ks:
        dice = Random(f"{seed} {name}")
        writer = Writer(
            ks.space(space).history, name, others.split(","), dice, lambda to: ks.space(to).history
        )
        end = time.monotonic() + float(seconds)
        turns = 0
        while time.monotonic() < end or turns < LEAST:  # a busy machine leaves time for a few only
            await writer.turn()
            turns += 1
        sys.stdout.buffer.write(msgspec.json.encode(asdict(writer.told)))


asyncio.run(main(*sys.argv[1:]))
