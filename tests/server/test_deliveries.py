"""A server delivers to the index what another process left when it was killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from keepstate.server import Limits
from tests.server.conftest import served

WRITER = """
import os, signal, sys
import keepstate.sync
keepstate.sync.open(sys.argv[1]).tenant("acme").space("u/1").queue.put("left", kind="mail")
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_get_find_tells_the_truth_after_a_writer_was_killed(tmp_path: Path) -> None:
    url, limits = f"sqlite:///{tmp_path}/k.db", Limits(deliver_s=0.2)
    async with served(url, limits=limits) as one, served(url, limits=limits) as other:
        callers = [await each.caller(name, tenant="acme") for each, name in ((one, "ann"), (other, "bob"))]
        await one.ks.tenant("acme").space("u/0").queue.put("first", kind="sms")
        assert await kinds(callers[0]) == ["sms"]
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, url)
        assert await process.wait() < 0

        async with asyncio.timeout(60):
            while sorted(await kinds(callers[1])) != ["mail", "sms"]:
                await asyncio.sleep(0.02)
        assert [await one.ks.tenant("acme").deliver() for _ in range(2)][1] == 0


async def kinds(caller: Any) -> list[str]:
    response = await caller.get("/v1/find", params={"kind": "queue"})
    assert response.status_code == 200, response.text
    return [each["id"] for each in response.json()["items"]]
