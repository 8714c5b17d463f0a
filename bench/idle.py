"""One worker over many spaces at rest: the processor time it takes, and how soon it starts a new task.

Each space has a finished task, so the index of the store lists a queue for each. The worker is a process of
its own. Half of the tasks that then wake it go to spaces that it knows, and half to spaces that are new.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Generator
from contextlib import contextmanager
from math import ceil
from multiprocessing.connection import Connection
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Final

from keepstate_testing.servers import Postgres

import keepstate
from bench.harness import Figure, Table
from keepstate import sync

SPACES: Final = 10_000
AT_ONCE: Final = 50
"""Spaces that are filled together."""
REST_S: Final = 30.0
SETTLING_S: Final = 12.0
"""Seconds after a task until the worker rests: a space that had one is followed for two, and a sweep of all
comes after ten."""
TASKS: Final = 20
PAUSE_S: Final = 1.0
MOST_PERCENT: Final = 2.0
MOST_MS: Final = 100.0


def idle(table: Table) -> None:
    """Add the share of a core and the times from a put to its handler, on SQLite and PostgreSQL."""
    with TemporaryDirectory() as folder:
        _measure(table, "SQLite normal", f"sqlite:///{folder}/idle.db?durability=normal")
    with Postgres(durable=True) as server:
        _measure(table, "PostgreSQL", server.url)


def _measure(table: Table, store: str, url: str, count: int | None = None) -> None:
    """Add the rows of one store, which must be empty."""
    count = count or (100 if table.is_quick else SPACES)
    asyncio.run(fill(url, count))
    with _worker(url) as told, sync.open(url) as ks:
        _delay_ms(told, ks, name_of(0))
        time.sleep(0.1 if table.is_quick else SETTLING_S)
        percent = _busy_percent(told, 1.0 if table.is_quick else REST_S)
        known: list[float] = []
        new: list[float] = []
        for number in range(table.scaled(TASKS // 2, least=2)):
            for delays, name in ((known, name_of((number + 1) * 7 % count)), (new, f"new/{number}")):
                time.sleep(0.1 if table.is_quick else PAUSE_S)
                delays.append(_delay_ms(told, ks, name))
    table.limit(f"a worker at rest, {count:,} spaces, {store}", MOST_PERCENT, "%", [percent])
    delays = sorted(known + new)
    late = delays[ceil(len(delays) * 0.95) - 1]
    table.limit(f"put to handler, 95th percentile, {count:,} spaces, {store}", MOST_MS, "ms", [late])
    for what, value in (("longest", delays[-1]), ("known space", median(known)), ("new space", median(new))):
        table.figure(Figure("idle", store, "keepstate", f"put to handler, {what}", count, value, "ms"))


async def fill(url: str, count: int) -> None:
    """Give each of so many spaces a task that is done, in a store that has an index."""
    async with keepstate.open(url) as ks:

        async def finish_one(number: int) -> None:
            queue = ks.space(name_of(number)).queue
            await queue.put(number)
            (task,) = await queue.claim("filler", lease_s=600)
            await task.complete()

        await finish_one(0)
        await ks.find()  # makes the index; a worker that made it would visit all spaces later
        for begin in range(1, count, AT_ONCE):
            await asyncio.gather(*map(finish_one, range(begin, min(begin + AT_ONCE, count))))
        await ks.deliver()


def name_of(number: int) -> str:
    """Return the name of a space that is filled."""
    return f"user/{number}"


@contextmanager
def _worker(url: str) -> Generator[Connection]:
    """Run a worker over all spaces as a process, and yield the connection to it."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(url, theirs))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()
        ours.close()


def _delay_ms(told: Connection, ks: sync.Keepstate, space: str) -> float:
    """Return the milliseconds from the call of a put to that of its handler."""
    begun_ns = time.monotonic_ns()  # one clock for all processes of a machine
    ks.space(space).queue.put(None)
    return (int(told.recv()) - begun_ns) / 1e6


def _busy_percent(told: Connection, rest_s: float) -> float:
    """Return the processor time of the worker while nothing happens, in percent of a core."""
    told.send(None)
    busy_s, begun_s = float(told.recv()), time.monotonic()
    time.sleep(rest_s)
    told.send(None)
    return 100 * (float(told.recv()) - busy_s) / (time.monotonic() - begun_s)


def _work(url: str, told: Connection) -> None:
    """Tell when each task starts, and if asked the processor time so far; a process of the bench runs it."""

    async def handle(_task: keepstate.Task) -> None:
        told.send(time.monotonic_ns())

    async def work() -> None:
        async with keepstate.open(url) as ks:
            await ks.queues("").run(handle)

    Thread(target=_answer, args=(told,), daemon=True).start()
    asyncio.run(work())


def _answer(told: Connection) -> None:
    """Tell the processor time of this process whenever the other side asks."""
    while True:
        try:
            told.recv()
        except EOFError:  # the bench has ended
            return
        told.send(time.process_time())
