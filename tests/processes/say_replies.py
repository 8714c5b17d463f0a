"""Say replies, each as numbered pieces, until killed: `python say_replies.py URL NAME PIECES`.

A reply that another process still holds is waited for: its writer was killed, and its lease ends soon.
"""

from __future__ import annotations

import asyncio
import sys

import keepstate
from keepstate import ConflictError, Session

SESSION = "said"
LEASE_S = 1.0
FLUSH_S = 0.005


async def say(url: str, name: str, pieces: int) -> None:
    """Say one reply after another."""
    async with keepstate.open(url) as ks:
        talk = Session(SESSION, persistence=ks).conversation
        while True:
            try:
                async with talk.reply(author=name, flush_s=FLUSH_S, lease_s=LEASE_S) as reply:
                    for number in range(pieces):
                        await reply.write(f"{number} ")
                        await asyncio.sleep(FLUSH_S)
            except ConflictError:
                await asyncio.sleep(LEASE_S / 4)


if __name__ == "__main__":
    asyncio.run(say(sys.argv[1], sys.argv[2], int(sys.argv[3])))
