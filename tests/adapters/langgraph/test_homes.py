"""Who closes what, and where a saver works: in processes, event loops, on handles of the user's own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import keepstate
import keepstate.sync
from keepstate.adapters.langgraph import KeepstateSaver, KeepstateStore
from keepstate.errors import ClosedError
from tests.adapters.langgraph.saving import checkpoint, config, put

ROOT = Path(__file__).parents[3]

FORKED = """
import asyncio, os, sys
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import ClosedError
from tests.adapters.langgraph.saving import config

saver = KeepstateSaver(sys.argv[1])
if sys.argv[2] == "opened":
    asyncio.run(saver.aget_tuple(config()))
child = os.fork()
if child == 0:
    try:
        asyncio.run(saver.aget_tuple(config()))
        answer = 1
    except ClosedError:
        answer = 2
    os._exit(answer)
answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
asyncio.run(saver.aget_tuple(config()))
saver.close()
sys.exit(answer)
"""

Make = Callable[[keepstate.Keepstate], KeepstateSaver | KeepstateStore]


# ---- what was passed in open


@pytest.mark.parametrize("make", [KeepstateSaver, KeepstateStore])
def test_a_handle_that_was_passed_in_stays_open_though_nothing_was_done_with_it(make: Make) -> None:
    with keepstate.sync.open("memory://") as ks:
        ks.space("a").documents.put("x", 1)

        with make(ks._inner):
            pass

        assert ks.space("a").documents.get("x") == 1


@pytest.mark.parametrize("make", [KeepstateSaver, KeepstateStore])
def test_a_handle_that_was_passed_in_stays_open_at_the_end_of_an_asynchronous_block(make: Make) -> None:
    async def enter(handle: keepstate.Keepstate) -> None:
        async with make(handle):
            pass

    with keepstate.sync.open("memory://") as ks:
        asyncio.run(enter(ks._inner))
        ks.space("a").documents.put("x", 1)

        assert ks.space("a").documents.get("x") == 1


# ---- event loops


def test_an_asynchronous_handle_that_was_passed_in_serves_one_loop_after_another(tmp_path: Path) -> None:
    saver = KeepstateSaver(handle := keepstate.open(f"sqlite:///{tmp_path}/a.db"))

    async def store() -> None:
        await saver.aput(config(), checkpoint(0, n=1), {"source": "loop", "step": 0}, {})
        await saver.aleave()

    async def read() -> object:
        found = await saver.aget_tuple(config())
        await saver.aclose()
        return found and found.checkpoint["channel_values"]

    first = asyncio.new_event_loop()
    first.run_until_complete(store())

    assert asyncio.run(read()) == {"n": 1}
    first.run_until_complete(handle.close())
    first.close()


@pytest.mark.filterwarnings("ignore:.*was dropped while open:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_handles_of_event_loops_that_have_ended_are_let_go_of() -> None:
    saver = KeepstateSaver(keepstate.open("memory://"))

    async def read() -> int:
        await saver.aget_tuple(config())
        return len(saver._handles._by_loop)

    assert [asyncio.run(read()) for _ in range(3)] == [1, 1, 1]


# ---- closed, and in another process


def test_a_closed_saver_says_so_in_both_modes(tmp_path: Path) -> None:
    saver = KeepstateSaver(f"sqlite:///{tmp_path}/a.db")
    put(saver, config(), 0, n=0)
    asyncio.run(saver.athreads().__anext__())
    saver.close()

    with pytest.raises(ClosedError):
        saver.get_tuple(config())
    with pytest.raises(ClosedError):
        asyncio.run(saver.aget_tuple(config()))


@pytest.mark.parametrize(("when", "answer"), [("opened", 2), ("not yet", 1)])
def test_a_saver_in_a_forked_process_works_or_says_why_not(when: str, answer: int, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, f"sqlite:///{tmp_path}/a.db", when],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        timeout=60,
        check=False,
    )

    assert ended.returncode == answer
