"""A step of a durable function, next to one of DBOS on the same store: PostgreSQL and SQLite.

Each handler does steps that return at once, one after the other; the time of all is divided by their number.
DBOS' workflow and steps are plain functions, its fastest form; it writes no log and sends no telemetry. Both
sides record each result durably before the next step begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from keepstate_testing.servers import Postgres

import keepstate
from bench import others
from bench.harness import PLACES, Table, apart

STEPS, ROUNDS = 100, 9


def steps(table: Table) -> None:
    """Add rows of a step, each next to one of DBOS."""
    if others.missing("DBOS"):
        table.show(f"DBOS is not installed, and not measured: {others.INSTALL}")
        return
    with TemporaryDirectory() as folder:
        _beside(
            table, "SQLite", f"sqlite:///{folder}/ours.db?durability=normal", f"sqlite:///{folder}/theirs.db"
        )
    for is_pinned, where in PLACES:
        with apart(Postgres(durable=True), is_pinned=is_pinned) as server:
            theirs = server.url.replace("postgresql://", "postgresql+psycopg://")
            _beside(table, f"PostgreSQL{where}", server.url, theirs)


def _beside(table: Table, name: str, our_url: str, their_url: str) -> None:
    count = table.scaled(STEPS, least=5)
    with _dbos(their_url) as workflow:
        pairs = [
            (asyncio.run(_ours(our_url, count)) / count, workflow(count) / count)
            for _ in range(table.scaled(ROUNDS, least=1) + 1)
        ]
    table.add(f"a step, {name}, by DBOS'", 2, pairs[1:], at_least=True)


async def _ours(url: str, count: int) -> float:
    """Return the seconds that a handler takes for a number of steps."""

    async def work(task: keepstate.Task) -> float:
        begun = time.perf_counter()
        for number in range(count):
            await task.step(f"step/{number}", _nothing, number)
        return time.perf_counter() - begun

    async with keepstate.open(url) as ks:
        queue = ks.space("steps").queue
        put = await queue.put(count)
        await queue.run(work, idle_s=0.01)
        seconds: float = await queue.result(put.id)
        return seconds


async def _nothing(number: int) -> int:
    return number


@contextmanager
def _dbos(url: str) -> Iterator[Any]:
    """Launch DBOS on a store, and yield its workflow: it returns the seconds for a number of steps."""
    dbos = import_module("dbos").DBOS
    dbos(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    def nothing(number: int) -> int:
        return number

    step = dbos.step(name="nothing")(nothing)

    def work(count: int) -> float:
        begun = time.perf_counter()
        for number in range(count):
            step(number)
        return time.perf_counter() - begun

    workflow = dbos.workflow(name="work")(work)
    dbos.launch()
    try:
        yield workflow
    finally:
        dbos.destroy(destroy_registry=True)
