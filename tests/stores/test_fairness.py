"""A task that makes one call after another leaves turns to the other tasks of its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keepstate import TieredStore
from keepstate._runner import TaskRunner
from keepstate.stores.combiner import TURN_S
from keepstate.stores.file.store import FileStore
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Put
from keepstate.testing.clocks import ManualClock

KEY = b"\x01k"
CALLS, CALLS_A_TURN = 2_000, round(TURN_S * 1000)

Calls = dict[str, Callable[[Any], Awaitable[object]]]
CALL: Calls = {
    "apply": lambda store: store.apply([Batch("s", [Put(KEY, b"value")])]),
    "read": lambda store: store.read("s", [KEY]),
    "scan": lambda store: store.scan("s", b"\x01"),
    "changes": lambda store: store.changes("s", 0),
    "spaces": lambda store: store.spaces(),
    "sizes": lambda store: store.sizes("s"),
}


class PassingClock(ManualClock):
    """A clock by which each look at it takes a millisecond."""

    def monotonic_s(self) -> float:
        self.advance(1)
        return super().monotonic_s()


def made(kind: str, path: Path) -> Any:
    clock = PassingClock()
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "file":
        return FileStore(path / "state.journal", runner=TaskRunner(), clock=clock)
    return TieredStore(cold=MemoryStore(clock=clock), max_staleness_s=3600, clock=clock)


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        *(("memory", name) for name in CALL),
        *(("file", name) for name in CALL if name != "apply"),  # which waits for its disk
        ("tiered", "read"),
    ],
)
def test_a_busy_task_leaves_others_a_turn_in_bounded_time(tmp_path: Path, kind: str, call: str) -> None:
    async def main() -> int:
        store = await made(kind, tmp_path).open()
        await CALL["apply"](store)
        turns, is_over = 0, False

        async def other() -> None:
            nonlocal turns
            while not is_over:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(other())
        for _ in range(CALLS):
            await CALL[call](store)
        is_over, counted = True, turns
        await running
        await store.close()
        return counted

    turns = asyncio.run(main())

    assert CALLS / CALLS_A_TURN / 4 <= turns <= CALLS / CALLS_A_TURN * 4
