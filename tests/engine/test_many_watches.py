"""What many watches on one opened store cost: one waiter, however many they are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import psycopg
from keepstate_testing.servers import Redis

import keepstate
import keepstate.sync
from keepstate.engine.space.keepstate import Keepstate

MANY = 500


async def added_by_watches(ks: Keepstate, count: Callable[[], int]) -> int:
    """Return by how many `count` grows with 500 watches, each of which has heard of a change."""
    documents = ks.space("run/1").documents
    await documents.put("a", 0)
    before = count()
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(documents.watch(timeout_s=30)) for _ in range(MANY)]
        async with asyncio.timeout(60):
            while count() == before:
                await asyncio.sleep(0.01)
        await documents.put("a", 1)
        for watch in watches:
            assert (await anext(watch)).new == 1
        return count() - before


async def test_watches_on_redis_share_one_connection(redis_server: Redis, redis_url: str) -> None:
    def connections() -> int:
        lines = str(redis_server.command("CLIENT", "LIST")).splitlines()
        return sum("lib-name=redis-py" in line for line in lines)  # what asks here names no library

    async with keepstate.open(redis_url) as ks:
        assert await added_by_watches(ks, connections) == 1


async def test_watches_on_postgres_share_one_connection(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as asking:

        def connections() -> int:
            row = asking.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'keepstate'"
            ).fetchone()
            assert row is not None
            return int(row[0])

        async with keepstate.open(postgres_url) as ks:
            assert await added_by_watches(ks, connections) == 1


async def test_watches_on_sqlite_share_one_task(tmp_path: Path) -> None:
    async with keepstate.open(f"sqlite:///{tmp_path}/keepstate.db") as ks:
        assert await added_by_watches(ks, started_tasks) == 1


def test_blocking_watches_on_sqlite_share_one_thread(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/keepstate.db") as ks, ExitStack() as stack:
        documents = ks.space("run/1").documents
        documents.put("a", 0)
        before = set(threading.enumerate())
        watches = [stack.enter_context(documents.watch(timeout_s=30)) for _ in range(MANY)]
        documents.put("a", 1)
        for watch in watches:
            assert next(watch).new == 1

        assert [thread.name for thread in set(threading.enumerate()) - before] == ["keepstate waiter"]


def started_tasks() -> int:
    return sum(task.get_name().startswith("keepstate ") for task in asyncio.all_tasks())
