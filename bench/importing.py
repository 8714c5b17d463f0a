"""How long it takes to import keepstate, beside what it cannot do without."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.harness import Table

BLOCKS = 11


def importing(table: Table) -> None:
    """Add the row: a fresh interpreter for each import, less the time of one that imports nothing."""
    times: list[tuple[float, float]] = []
    for _ in range(BLOCKS):
        bare = _started("pass")
        times.append((_started("import keepstate") - bare, _started("import msgspec, asyncio") - bare))
    table.add("import keepstate", 2, times)


def _started(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - begun
