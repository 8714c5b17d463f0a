"""What processes on one store do to one another: nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import keepstate

COUNTING = Path(__file__).with_name("counting.py")


@pytest.mark.slow
async def test_four_processes_lose_none_of_2000_increments(shared_url: str) -> None:
    command = [sys.executable, str(COUNTING), shared_url, "500"]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    longest_s = max(float(worker.communicate(timeout=100)[0]) for worker in workers)

    async with keepstate.open(shared_url) as ks:
        assert await ks.space("shared").documents.get("n") == 2000
    print(f"{shared_url.split(':', 1)[0]}: the longest update took {longest_s * 1000:.0f} ms")
