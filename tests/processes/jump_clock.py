"""Work on a space by a clock that jumps: `python jump_clock.py URL SEED STEPS`. Prints counts as JSON."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from unittest.mock import patch

from keepstate import sync
from keepstate._clock import SystemClock
from keepstate.errors import ClockError, ConflictError, StoreUnavailableError

MINUTE_MS = 60_000
JUMPS_MS = (
    *(0, 0, 0, MINUTE_MS, 30 * MINUTE_MS, 50 * MINUTE_MS, 59 * MINUTE_MS, 62 * MINUTE_MS),
    *(1_440 * MINUTE_MS, 3_650 * 1_440 * MINUTE_MS, -MINUTE_MS, -365 * 1_440 * MINUTE_MS),
)


def work(url: str, seed: int, steps: int) -> Counter[str]:
    """Return how often each action was done, and how often the clock jumped and was refused."""
    chance, counts, offset_ms = random.Random(seed), Counter[str](), 0
    right = SystemClock.now_ms
    with patch.object(SystemClock, "now_ms", lambda self: right(self) + offset_ms), sync.open(url) as ks:
        space = ks.space("jumping")
        for step in range(steps):
            if chance.random() < 0.3:
                offset_ms = chance.choice(JUMPS_MS)
                counts["jumps"] += 1
            try:
                match chance.randrange(5):
                    case 0:
                        space.documents.update("count", lambda count: count + 1, default=0)
                        counts["increments"] += 1
                    case 1:
                        counts["gone"] += space.documents.get("day") is None
                    case 2:
                        with space.transaction() as tx:
                            tx.documents.put(f"seen/{seed}", list(tx.documents.keys("slot/*")))
                    case 3:
                        space.documents.put(f"slot/{step % 4}", step, ttl_s=chance.choice([0.01, 0.05, 1]))
                    case _:
                        space.documents.put(f"last/{seed}", step)
                counts["operations"] += 1
            except ClockError:
                counts["refused"] += 1
            except (ConflictError, StoreUnavailableError):
                counts["conflicts"] += 1
    return counts


if __name__ == "__main__":
    print(json.dumps(work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
