"""A history that version 2 of its format wrote is read for ever, and the same commits have the same ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import keepstate
from keepstate._runner import TaskRunner
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate, TurnedSource

PATH = Path(__file__).parent / "history_2.bundle"
BEGIN_MS = 1_767_225_600_000
MESSAGES = [{"role": "user", "content": f"message {n} " * 20, "n": n} for n in range(150)]
STATES: list[dict[str, Any]] = [
    {
        "messages": MESSAGES,
        "keys": {f"key{n}": n for n in range(700)},
        "small": {"set": {1, 2}, "none": None},
    },
    {
        "messages": [*MESSAGES, "new"],
        "keys": {f"key{n}": n for n in range(700)},
        "small": {"set": {1, 2}, "none": None},
    },
    {"messages": [*MESSAGES[100:], "new"], "small": (1, 2.5, b"x"), "big": "y" * 6_000},
]
IDS = [
    "7b8675431048c8bddc848f3d6c1bbe888aa1d145",
    "09d1bfe94f03c856ebe942966edaf22d525abc6c",
    "991b44077663b16161fcc95c2d83a52c0d236ba5",
    "c044920a8b4c840b95c8407012721688fe064c10",
    "5b6d6f211013e6ee719ff8b299e6d9986e8e5842",
]


async def made(path: Path) -> list[str]:
    """Write the history into a file, and return its ids from the first."""
    clock = ManualClock(BEGIN_MS)
    store = MemoryStore(runner=TaskRunner(), clock=clock)
    async with TurnedKeepstate(TurnedSource(store)) as ks:
        ks.turned = clock
        history = ks.space("a", author="ada").history
        await history.commit(STATES[0], message="first")
        await history.append("messages", "new", message="second")
        clock.advance(1_000)
        await history.tag("v1")
        await history.commit(STATES[2], author="bob")
        await history.commit({"side": 1}, branch="side")
        await history.merge("side", message="both", rules={(): "ours"})
        ids = [commit.id async for commit in history.log()]
        await history.export_bundle(path)
    return ids[::-1]


def test_the_same_history_has_the_same_ids(tmp_path: Path) -> None:
    assert asyncio.run(made(tmp_path / "again.bundle")) == IDS


def test_what_was_written_is_read() -> None:
    async def whole() -> None:
        async with keepstate.open("memory://") as ks:
            history = ks.space("b").history
            await history.import_bundle(PATH)

            assert [commit.id async for commit in history.log()][::-1] == IDS
            assert (await history.verify()).problems == ()
            assert dict(await history.checkout("main#1")) == STATES[0]
            assert dict(await history.checkout("v1")) == STATES[1]
            assert dict(await history.checkout("main~1")) == STATES[2]
            assert list(await history.checkout("main~1")) == list(STATES[2])  # a tree, and not sorted
            assert dict(await history.checkout()) == {**STATES[2], "side": 1}
            assert (await history.find("main~1")).to_dict() == {
                "id": (await history.find("main#3")).id,
                "number": 3,
                "parents": [(await history.find("v1")).id],
                "branch": "main",
                "created_at": "2026-01-01T00:00:01+00:00",
                "author": "bob",
                "message": "",
                "generation": 3,
                "classes": [],
                "meta": {},
            }

    asyncio.run(whole())
