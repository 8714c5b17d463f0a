"""Tasks put, claimed and completed, beside procrastinate (PostgreSQL), huey (SQLite, Redis) and arq (Redis).

Every task has a small payload and does nothing. The others are set up as fast as they allow: huey never
waits for the disk or for a task, and arq polls each millisecond. huey keeps no lease, and forgets a task that
a killed worker had taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

from keepstate_testing.servers import Postgres, Redis

import keepstate
from bench import others
from bench.harness import PLACES, Table, apart, timed
from keepstate import Keepstate, sync

CROWD, CONSUMERS = 64, 16
TASKS, ROUNDS = 600, 5
PAYLOAD = {"kind": "index", "path": "src/main.py"}

Consume = Callable[[int, int], Awaitable[float]]
"""Puts a number of tasks, and returns in how many seconds a number of consumers complete them all."""


def queues(table: Table) -> None:
    """Add rows of tasks a second, each beside the others on the same store."""
    for name in others.missing("procrastinate", "huey", "arq"):
        table.show(f"{name} is not installed, and not measured: {others.INSTALL}")
    asyncio.run(_sqlite(table))
    for is_pinned, where in PLACES:
        with apart(Postgres(durable=True), is_pinned=is_pinned) as server:
            asyncio.run(_postgres(table, server.url, where))
        with apart(Redis(), is_pinned=is_pinned) as server:
            asyncio.run(_redis(table, server.url, where))


async def _sqlite(table: Table) -> None:
    for durability in ("normal", "full"):
        with TemporaryDirectory() as folder:
            async with keepstate.open(f"sqlite:///{folder}/ours.db?durability={durability}") as ks:
                ours, count = _ours(ks), _tasks(table)
                pairs = [
                    (await ours(count, CROWD) / count, await ours(count, 1) / count)
                    for _ in range(_rounds(table))
                ]
            name = f"queue: {CROWD} consumers beside 1, SQLite {durability}"
            table.add(name, 1.5, pairs, at_least=True)
    if "huey" in others.missing("huey"):
        return
    with (
        TemporaryDirectory() as folder,
        sync.open(f"sqlite:///{folder}/ours.db?durability=normal") as blocking,
    ):
        huey = import_module("huey").SqliteHuey(filename=f"{folder}/huey.db", fsync=False)
        own = blocking.space("one").queue
        task = huey.task()(_nothing)

        def ours_one() -> None:
            own.put(PAYLOAD)
            (claimed,) = own.claim("worker", lease_s=60)
            claimed.complete()

        def huey_one() -> None:
            task(PAYLOAD)
            huey.execute(huey.dequeue())

        singles = [(timed(ours_one), timed(huey_one)) for _ in range(_tasks(table))]
        table.add("queue: put, claim, complete, SQLite, by huey's", 3.0, singles)


async def _postgres(table: Table, url: str, where: str) -> None:
    if "procrastinate" in others.missing("procrastinate"):
        return
    procrastinate = import_module("procrastinate")
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    connector = procrastinate.PsycopgConnector(conninfo=url, max_size=CONSUMERS)
    app = procrastinate.App(connector=connector)
    task = app.task(name="nothing")(_nothing_async)
    async with app.open_async(), keepstate.open(url) as ks:
        await app.schema_manager.apply_schema_async()

        async def theirs(count: int, consumers: int) -> float:
            await task.batch_defer_async(*[{"payload": PAYLOAD} for _ in range(count)])
            begun = time.perf_counter()
            await app.run_worker_async(
                concurrency=consumers, wait=False, install_signal_handlers=False, listen_notify=False
            )
            return time.perf_counter() - begun

        await _beside(table, f"PostgreSQL{where}, by procrastinate's", 1.5, _ours(ks), theirs)


async def _redis(table: Table, url: str, where: str) -> None:
    async with AsyncExitStack() as stack:
        ours = _ours(await stack.enter_async_context(keepstate.open(url)))
        if "huey" not in others.missing("huey"):
            await _beside(table, f"Redis{where}, by huey's", 0.5, ours, _huey(stack, url))
        if "arq" not in others.missing("arq"):
            await _beside(table, f"Redis{where}, by arq's", 2, ours, await _arq(stack, url))


async def _beside(table: Table, name: str, budget: float, ours: Consume, theirs: Consume) -> None:
    count = _tasks(table)
    for consume in (ours, theirs):
        await consume(max(8, count // 10), CONSUMERS)
    pairs = [(await ours(count, CONSUMERS), await theirs(count, CONSUMERS)) for _ in range(_rounds(table))]
    per_task = [(one / count, other / count) for one, other in pairs]
    table.add(f"queue: {CONSUMERS} consumers, {name}", budget, per_task, at_least=True)


def _ours(ks: Keepstate) -> Consume:
    queue = ks.space("tasks").queue

    async def consumer(worker: str) -> None:
        while claimed := await queue.claim(worker, lease_s=600):
            await claimed[0].complete()

    async def consume(count: int, consumers: int) -> float:
        for begin in range(0, count, 50):
            await asyncio.gather(*(queue.put(PAYLOAD) for _ in range(begin, min(begin + 50, count))))
        begun = time.perf_counter()
        await asyncio.gather(*(consumer(f"worker {number}") for number in range(consumers)))
        return time.perf_counter() - begun

    return consume


def _huey(stack: AsyncExitStack, url: str) -> Consume:
    """huey's consumers are threads: each takes a task and executes it."""
    huey = import_module("huey").RedisHuey(url=url, blocking=False)
    task = huey.task()(_nothing)
    pool = stack.enter_context(ThreadPoolExecutor(CONSUMERS))

    def consumer(_number: int) -> None:
        while (taken := huey.dequeue()) is not None:
            huey.execute(taken)

    async def consume(count: int, consumers: int) -> float:
        for _ in range(count):
            task(PAYLOAD)
        return timed(lambda: list(pool.map(consumer, range(consumers))))

    logging.getLogger("huey").setLevel(logging.ERROR)
    return consume


async def _arq(stack: AsyncExitStack, url: str) -> Consume:
    connections, workers = import_module("arq.connections"), import_module("arq.worker")
    pool = await connections.create_pool(connections.RedisSettings.from_dsn(url))
    stack.push_async_callback(pool.aclose)
    logging.getLogger("arq").setLevel(logging.ERROR)

    async def consume(count: int, consumers: int) -> float:
        for _ in range(count):
            await pool.enqueue_job("nothing", PAYLOAD)
        worker = workers.Worker(
            [workers.func(_arq_nothing, name="nothing")],
            redis_pool=pool,
            burst=True,
            max_jobs=consumers,
            poll_delay=0.001,
            handle_signals=False,
        )
        begun = time.perf_counter()
        await worker.main()
        return time.perf_counter() - begun

    return consume


def _tasks(table: Table) -> int:
    return table.scaled(TASKS, least=20)


def _rounds(table: Table) -> int:
    return table.scaled(ROUNDS, least=1)


def _nothing(payload: Any) -> None:
    """Do nothing, as a task."""


async def _nothing_async(payload: Any) -> None:
    """Do nothing, as a task of procrastinate."""


async def _arq_nothing(_context: Any, payload: Any) -> None:
    """Do nothing, as a task of arq."""
