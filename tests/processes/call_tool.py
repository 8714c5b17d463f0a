"""Use a tool, to be counted or killed: `python call_tool.py URL WHAT FILE`.

Each use of the tool adds a line to the file. `run` asks for a result as others do at once; `pay` is killed
between what it does to the world and noting that it did.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from keepstate import ToolStateManager


async def main(url: str, what: str, file: Path) -> None:
    def note() -> None:
        with file.open("a") as lines:
            lines.write(f"{os.getpid()}\n")

    async def search(parameters: dict[str, Any]) -> str:
        note()
        await asyncio.sleep(0.2)
        return f"found by {os.getpid()}"

    async def pay() -> str:
        note()
        os.kill(os.getpid(), signal.SIGKILL)
        return "paid"

    async with ToolStateManager(persistence=url) as tools:
        if what == "run":
            for number in range(3):
                print((await tools.run("search", {"n": number}, search, lease_s=5, ttl=60)).result)
        else:
            await tools.perform_effect("order 1", pay, lease_s=0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
