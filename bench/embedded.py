"""Documents in memory beside a dict, and on SQLite beside its own driver on a table of keys and values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

import keepstate
from bench import sides
from bench.harness import KEYS, VALUES, Item, Side, Table, timed
from bench.processes import processes
from keepstate import sync

UPSERT = "insert into kv values (?, ?) on conflict (k) do update set v = excluded.v"


def memory(table: Table) -> None:
    """Add puts and gets beside the calls of a dict's own methods."""
    raw = dict[str, str]()

    def set_raw(items: Sequence[Item]) -> None:
        put = raw.__setitem__
        for key, value in items:
            put(key, value)

    def get_raw(items: Sequence[Item]) -> None:
        get = raw.__getitem__
        for key, _ in items:
            get(key)

    with sync.open("memory://") as ks:
        documents = ks.space(sides.SPACE).documents
        table.compare("memory put", 500, sides.puts(documents), set_raw, operations=10_000)
        table.compare("memory get", 300, sides.gets(documents), get_raw, operations=10_000)


def sqlite_normal(table: Table) -> None:
    """Add puts and gets in `normal` durability beside a raw upsert and select in the same."""
    with TemporaryDirectory() as folder, _raw(Path(folder), "normal") as connection:
        url = f"sqlite:///{folder}/ours.db?durability=normal"
        with sync.open(url) as ks:
            documents = ks.space(sides.SPACE).documents
            put, get = sides.puts(documents), sides.gets(documents)
            table.compare("SQLite normal put", 4.0, put, _upserts(connection), operations=1_000)
            table.compare("SQLite normal get", 5.0, get, _selects(connection), operations=3_000)
        processes(table, "SQLite normal", url)


def sqlite_full(table: Table) -> None:
    """Add 64 tasks in `full` durability beside raw commits in sequence, and 64 threads beside them."""
    with TemporaryDirectory() as folder, _raw(Path(folder), "full") as connection:
        url = f"sqlite:///{folder}/ours.db?durability=full"

        async def run() -> None:
            async with keepstate.open(url) as ks:
                await table.compare_throughput(
                    "SQLite full, 64 tasks, one space",
                    4,
                    sides.tasks(ks),
                    _upserts(connection),
                    operations=4_000,
                )

        asyncio.run(run())
        asyncio.run(_threads_beside_tasks(table, f"{folder}/crowds"))
        processes(table, "SQLite full", url)


async def _threads_beside_tasks(table: Table, place: str) -> None:
    """Add how many documents 64 threads put in the time in which 64 tasks put one."""
    items = [
        (KEYS[number % len(KEYS)], VALUES[number % len(VALUES)])
        for number in range(table.scaled(4_000, least=128))
    ]
    async with keepstate.open(f"sqlite:///{place}-tasks.db") as of_tasks:
        with (
            sync.open(f"sqlite:///{place}-threads.db") as of_threads,
            ThreadPoolExecutor(sides.CROWD) as pool,
        ):
            tasks, threads = sides.tasks(of_tasks), sides.threads(of_threads, pool)
            pairs: list[tuple[float, float]] = []
            for _ in range(table.scaled(7, least=2)):
                loop = asyncio.get_running_loop()
                begun = loop.time()
                await tasks(items)
                spent = loop.time() - begun
                pairs.append((timed(lambda: threads(items)) / len(items), spent / len(items)))
    table.add("SQLite full, 64 threads beside 64 tasks", 0.85, pairs[1:], at_least=True)


@contextmanager
def _raw(folder: Path, synchronous: str) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(folder / "raw.db"))
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute("create table kv (k text primary key, v text) without rowid")
    for key in KEYS:
        connection.execute(UPSERT, (key, VALUES[0]))
    try:
        yield connection
    finally:
        connection.close()


def _upserts(connection: apsw.Connection) -> Side:
    def side(items: Sequence[Item]) -> None:
        for key, value in items:
            connection.execute("begin immediate")
            connection.execute(UPSERT, (key, value))
            connection.execute("commit")

    return side


def _selects(connection: apsw.Connection) -> Side:
    def side(items: Sequence[Item]) -> None:
        for key, _ in items:
            connection.execute("select v from kv where k = ?", (key,)).fetchone()

    return side
