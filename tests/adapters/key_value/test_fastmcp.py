"""The server of FastMCP on the page keeps its sessions' state and its cache in a store of ours."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.langgraph.sdists import installed

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "fastmcp.md"
FASTMCP = "fastmcp>=4.2,<5"
"""It is not in the lock, so it is fetched with all that it needs."""
CLIENT = """
import asyncio, json
from fastmcp import Client
from shop import server, store

CALLS = (("put_in_basket", "tea"), ("put_in_basket", "jam"), ("price", "tea"))

async def main():
    async with store, Client(server, mode="legacy") as client:
        answers = [(await client.call_tool(tool, {"item": item})).data for tool, item in CALLS]
        print(json.dumps([answers, await store.collections()]))

asyncio.run(main())
"""


@pytest.mark.theirs
@pytest.mark.timeout(600)
def test_a_server_that_starts_again_reads_what_it_has_stored(tmp_path: Path) -> None:
    packages = installed(tmp_path / "packages", FASTMCP, with_needs=True)
    (program,) = re.findall(r"(?ms)^```python file=shop.py\n(.*?)^```$", PAGE.read_text("utf-8"))
    (tmp_path / "shop.py").write_text(program, "utf-8")

    (first, collections), (second, _) = (ask(tmp_path, packages) for _ in "ab")

    assert first[:2] == second[:2] == [["tea"], ["tea", "jam"]]  # a basket for each session
    assert first[2] == second[2], "the second server computed the price again"
    assert {"fastmcp_state", "tools/call"} <= set(collections)


def ask(folder: Path, packages: Path) -> Any:
    """Return what the calls of a client to a new server have answered."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return json.loads(done.stdout)
