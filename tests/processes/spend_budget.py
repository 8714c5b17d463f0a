"""Spend from a shared budget until it refuses: `python spend_budget.py URL NAME STALL_AFTER FOLDER`.

Each spend reserves up to 5 cents in the ledger of the process within the shared one, and uses at most that.
The process writes `began CENTS` and `counted CENTS` to `FOLDER/NAME`, of which a kill loses none. After
STALL_AFTER spends it stops inside of a block, and says so; 0 never stops.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from decimal import Decimal
from pathlib import Path

import keepstate
from keepstate import BudgetExceededError, Usage

LEASE_S = 2.0
SPACE = "spending"
_REFUSED = 3


async def spend(url: str, name: str, stall_after: int, folder: str) -> None:
    """Spend until the budget has refused three times."""
    notes = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    random.seed(name)
    refused = done = 0
    async with keepstate.open(url) as ks:
        own, shared = ks.space(f"session/{name}").usage, ks.space(SPACE).usage
        while refused < _REFUSED:
            bound = random.randint(1, 5)
            cents = random.randint(1, bound)
            cost = Decimal(bound) / 100
            try:
                async with own.within(shared).reserve(cost=cost, model="large", lease_s=LEASE_S) as spend:
                    os.write(notes, f"began {cents}\n".encode())
                    if stall_after and done == stall_after:
                        print("stalled", flush=True)
                        await asyncio.Event().wait()
                    spend.record(Usage(model=f"m{done % 2}", cost=Decimal(cents) / 100))
            except BudgetExceededError:
                refused += 1
                continue
            os.write(notes, f"counted {cents}\n".encode())
            done += 1
    print(f"done {done}", flush=True)


if __name__ == "__main__":
    asyncio.run(spend(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
