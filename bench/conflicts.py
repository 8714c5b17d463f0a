"""What it costs that several change one thing: how often a function is called for each change that is kept.

Beside it what needs no second call: changes of something of one's own, and appends. And what is lost by who
reads, changes and writes without a check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import keepstate
from bench.harness import Figure, Table
from keepstate import Space, Transaction

TASKS = (1, 2, 4, 8, 16, 32, 64)
CHANGES = 128
"""How many there are, by however many tasks."""
ATTEMPTS = 1_000

Change = Callable[[Space, int, list[int]], Awaitable[object]]
"""Makes one change as a task of this number, and notes each call of the function that it took."""


async def conflicts(table: Table, places: dict[str, str]) -> None:
    """Tell what a change costs by how many make changes at once, and how."""
    for store, place in places.items():
        for tasks in TASKS[::3] if table.is_quick else TASKS:
            for who, change in CHANGERS.items():
                async with keepstate.open(place) as ks:
                    await _measure(table, ks.space(f"{who} {tasks}"), store, who, change, tasks)


async def _measure(table: Table, space: Space, store: str, who: str, change: Change, tasks: int) -> None:
    each = max(1, table.scaled(CHANGES, least=32) // tasks)
    calls: list[int] = []
    await change(space, 0, [])
    before = await _counted(space)
    begun = time.perf_counter()

    async def work(number: int) -> None:
        for _ in range(each):
            await change(space, number, calls)

    await asyncio.gather(*(work(number) for number in range(tasks)))
    seconds, made = time.perf_counter() - begun, tasks * each
    kept = await _counted(space) - before

    def tell(what: str, value: float, unit: str) -> None:
        table.figure(Figure("conflicts", store, who, what, tasks, round(value, 2), unit))

    tell("a change", seconds / made * 1e6, "us")
    tell("calls a change", len(calls) / made, "calls")
    tell("lost", 100 * (made - kept) / made, "%")


async def _counted(space: Space) -> int:
    counters = [int(value) async for _, value in space.documents.items("*")]
    return sum(counters) + len(await space.events.read(stream="changes", limit=10_000))


async def _update(space: Space, number: int, calls: list[int]) -> None:
    await space.documents.update("counter", _added(calls), default=0)


async def _transact(space: Space, number: int, calls: list[int]) -> None:
    async def change(tx: Transaction) -> None:
        count = await tx.documents.get("counter", 0)
        await tx.documents.put("counter", _added(calls)(count))

    await space.transact(change, attempts=ATTEMPTS)


async def _own(space: Space, number: int, calls: list[int]) -> None:
    await space.documents.update(f"counter {number}", _added(calls), default=0)


async def _append(space: Space, number: int, calls: list[int]) -> None:
    calls.append(number)
    await space.events.append({"by": number}, stream="changes")


async def _unchecked(space: Space, number: int, calls: list[int]) -> None:
    count = await space.documents.get("counter", 0)
    await space.documents.put("counter", _added(calls)(count))


def _added(calls: list[int]) -> Callable[[Any], int]:
    def add(count: Any) -> int:
        calls.append(count)
        return int(count) + 1

    return add


CHANGERS: dict[str, Change] = {
    "update": _update,
    "transact": _transact,
    "a document each": _own,
    "append": _append,
    "get, then put": _unchecked,
}
