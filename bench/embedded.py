"""Memory beside a dict, and SQLite beside its own driver on a table of keys and values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from bench import sides
from bench.harness import KEYS, VALUES, Item, Side, Table
from keepstate._finish import finish

UPSERT = "insert into kv values (?, ?) on conflict (k) do update set v = excluded.v"


def memory(table: Table) -> None:
    """Add puts and gets beside the calls of a dict's own methods."""
    store, raw = sides.opened("memory://"), dict[bytes, bytes]()

    def set_raw(items: Sequence[Item]) -> None:
        put = raw.__setitem__
        for key, value in items:
            put(key, value)

    def get_raw(items: Sequence[Item]) -> None:
        get = raw.__getitem__
        for key, _ in items:
            get(key)

    try:
        table.compare("memory put", 60, sides.puts(store), set_raw, operations=10_000, blocks=15)
        table.compare("memory get", 50, sides.gets(store), get_raw, operations=10_000, blocks=15)
    finally:
        finish(store.close())


def sqlite_normal(table: Table) -> None:
    """Add puts and gets in `normal` durability beside a raw upsert and select in the same."""
    with TemporaryDirectory() as folder, _raw(Path(folder), "normal") as connection:
        store = sides.opened(f"sqlite:///{folder}/ours.db?durability=normal")
        try:
            budgets = ("SQLite normal put", 6.0), ("SQLite normal get", 3.5)
            put, get = sides.puts(store), sides.gets(store)
            table.compare(*budgets[0], put, _upserts(connection), operations=1_000)
            table.compare(*budgets[1], get, _selects(connection), operations=3_000)
        finally:
            finish(store.close())


def sqlite_full(table: Table) -> None:
    """Add 64 tasks on one space in `full` durability beside raw commits in sequence."""
    with TemporaryDirectory() as folder, _raw(Path(folder), "full") as connection:

        async def run() -> None:
            store = await sides.opened_async(f"sqlite:///{folder}/ours.db?durability=full")
            try:
                await table.compare_throughput(
                    "SQLite full, 64 tasks, one space", 4, sides.crowd(store, spaces=1), _upserts(connection),
                    operations=4_000,
                )  # fmt: skip
            finally:
                await store.close()

        asyncio.run(run())


@contextmanager
def _raw(folder: Path, synchronous: str) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(folder / "raw.db"))
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {synchronous}")
    connection.execute("create table kv (k blob primary key, v blob) without rowid")
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
