"""A forked child cannot use what its parent opened, is told so at once, and can open its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FORKS = """
import asyncio, os, sys, warnings
from keepstate.sync import of
import keepstate
from keepstate import ClosedError, sync

warnings.simplefilter("ignore", DeprecationWarning)  # a parent with threads may fork; we say what comes of it
url, colour = sys.argv[1:]

def refused(call):
    try:
        call()
    except ClosedError as error:
        assert f" in process {os.getppid()}; " in str(error) and "in this process" in str(error), error
    else:
        raise AssertionError("it was not refused")

def in_child(calls, again):
    child = os.fork()
    if child == 0:
        try:
            for call in calls:
                refused(call)
            assert again() == 1
            os._exit(0)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

def again_blocking():
    with sync.open(url) as own:
        return own.space("own").documents.update("count", lambda count: count + 1, default=0)

def blocking():
    with sync.open(url) as ks:
        space = ks.space("s")
        space.documents.put("k", 1)
        in_child(
            [
                lambda: space.documents.get("k"),
                lambda: space.documents.put("k", 2),
                lambda: list(space.documents.keys()),
                lambda: space.events.append("event"),
                lambda: space.queue.claim("w", lease_s=1),
                lambda: space.leases.acquire("driver", 1),
                lambda: space.transact(lambda tx: tx.documents.get("k")),
                lambda: ks.drop("s"),
                ks.sweep,
            ],
            again_blocking,
        )
        assert space.documents.get("k") == 1
        space.documents.put("k", 2)
        lease = space.leases.acquire("driver", 60)
        with space.transaction() as tx:
            tx.documents.get("k")
            in_child(
                [
                    lambda: tx.documents.get("k"),
                    lambda: tx.documents.put("k", 3),
                    lambda: tx.events.append("event"),
                    lambda: list(tx.documents.keys()),
                ],
                lambda: 0 if lease.is_held() else 1,
            )
            assert lease.is_held()
            tx.documents.put("k", 4)
        assert space.documents.get("k") == 4

async def asynchronous():
    async with keepstate.open(url) as ks:
        space = ks.space("s")
        await space.documents.put("k", 1)
        of(ks).space("s").documents.get("k")

        def run(work):
            # In the copy of the parent's loop a call is refused before it first waits.
            try:
                work.send(None)
            finally:
                work.close()

        in_child(
            [
                lambda: run(space.documents.get("k")),
                lambda: run(space.events.append("event")),
                lambda: run(space.queue.claim("w", lease_s=1)),
                lambda: of(ks).space("s").documents.get("k"),
            ],
            again_blocking,
        )
        assert await space.documents.get("k") == 1
        await space.documents.put("k", 2)

if colour == "blocking":
    blocking()
else:
    asyncio.run(asynchronous())
"""


@pytest.mark.parametrize("mode", ["async", "blocking"])
@pytest.mark.parametrize("url", ["memory://forked", "sqlite:///state.db"])
def test_a_child_is_refused_and_opens_its_own(url: str, mode: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, url, mode]
    done = subprocess.run(command, cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_an_unopened_handle_is_opened_where_it_is_first_used(tmp_path: Path) -> None:
    script = """
import asyncio, os, keepstate
async def use(ks):
    async with ks:
        return await ks.space("s").documents.update("count", lambda count: count + 1, default=0)
ks = keepstate.open("sqlite:///state.db")
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(use(ks)) == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(use(ks)) == 2
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
