"""Documents on Redis and PostgreSQL beside their own drivers, on private servers, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, closing
from typing import Any

import psycopg
import redis
import redis.asyncio
from keepstate_testing.servers import Postgres, Redis

import keepstate
from bench import sides
from bench.harness import PLACES, Item, Side, Table, apart
from bench.processes import processes
from keepstate import sync

UPSERT = "insert into kv values (%s, %s) on conflict (k) do update set v = excluded.v"
SELECT = "select v from kv where k = %s"


def redis_rows(table: Table) -> None:
    """Add puts and gets beside SET and GET: caller and server on a core each, and placed by the scheduler."""
    for is_pinned, where in PLACES:
        with apart(Redis(), is_pinned=is_pinned) as server:
            raw = redis.Redis.from_url(server.url)

            def sets(items: Sequence[Item], raw: Any = raw) -> None:
                for key, value in items:
                    raw.set(key, value)

            def gets(items: Sequence[Item], raw: Any = raw) -> None:
                for key, _ in items:
                    raw.get(key)

            with closing(raw), sync.open(server.url) as ks:
                documents = ks.space(sides.SPACE).documents
                table.compare(f"Redis put{where}", 1.5, sides.puts(documents), sets, operations=1_000)
                table.compare(f"Redis get{where}", 1.5, sides.gets(documents), gets, operations=1_000)
            asyncio.run(_redis_async(table, server.url, where))
            if not is_pinned:
                processes(table, "Redis", server.url)


async def _redis_async(table: Table, url: str, where: str) -> None:
    raw = redis.asyncio.Redis.from_url(url)

    async def sets(items: Sequence[Item]) -> None:
        for key, value in items:
            await raw.set(key, value)

    async def gets(items: Sequence[Item]) -> None:
        for key, _ in items:
            await raw.get(key)

    async with keepstate.open(url) as ks, aclosing(raw):
        documents = ks.space(sides.SPACE).documents
        put, get = sides.async_puts(documents), sides.async_gets(documents)
        await table.compare_async(f"Redis put, async{where}", 1.5, put, sets, operations=1_000)
        await table.compare_async(f"Redis get, async{where}", 1.5, get, gets, operations=1_000)


def postgres_rows(table: Table) -> None:
    """Add puts and gets beside upserts and selects, and 64 tasks over 16 spaces beside upserts alone."""
    for is_pinned, where in PLACES:
        with (
            apart(Postgres(durable=True), is_pinned=is_pinned) as server,
            psycopg.connect(server.url, autocommit=True) as raw,
        ):
            _make_table(raw)
            with sync.open(server.url) as ks:
                documents = ks.space(sides.SPACE).documents
                put, get = sides.puts(documents), sides.gets(documents)
                table.compare(f"PostgreSQL put{where}", 1.6, put, _upserts(raw), operations=400)
                table.compare(f"PostgreSQL get{where}", 1.5, get, _selects(raw), operations=800)
            asyncio.run(_postgres_async(table, server.url, where))
            if not is_pinned:
                processes(table, "PostgreSQL", server.url)
    with apart(Postgres(durable=True)) as server, psycopg.connect(server.url, autocommit=True) as raw:
        _make_table(raw)
        asyncio.run(_postgres_crowd(table, server.url, _upserts(raw)))


async def _postgres_async(table: Table, url: str, where: str) -> None:
    raw = await psycopg.AsyncConnection.connect(url, autocommit=True)

    async def upserts(items: Sequence[Item]) -> None:
        for key, value in items:
            await raw.execute(UPSERT, (key, value))

    async def selects(items: Sequence[Item]) -> None:
        for key, _ in items:
            await (await raw.execute(SELECT, (key,))).fetchone()

    async with keepstate.open(url) as ks, raw:
        documents = ks.space(sides.SPACE).documents
        put, get = sides.async_puts(documents), sides.async_gets(documents)
        await table.compare_async(f"PostgreSQL put, async{where}", 1.6, put, upserts, operations=400)
        await table.compare_async(f"PostgreSQL get, async{where}", 1.5, get, selects, operations=800)


async def _postgres_crowd(table: Table, url: str, upserts_in_sequence: Side) -> None:
    async with keepstate.open(url) as ks:
        await table.compare_throughput(
            "PostgreSQL, 64 tasks, 16 spaces",
            2,
            sides.tasks(ks, spaces=16),
            upserts_in_sequence,
            operations=1_000,
        )


def _make_table(connection: psycopg.Connection[Any]) -> None:
    connection.execute("create table kv (k text primary key, v text)")


def _upserts(connection: psycopg.Connection[Any]) -> Side:
    def side(items: Sequence[Item]) -> None:
        for key, value in items:
            connection.execute(UPSERT, (key, value))

    return side


def _selects(connection: psycopg.Connection[Any]) -> Side:
    def side(items: Sequence[Item]) -> None:
        for key, _ in items:
            connection.execute(SELECT, (key,)).fetchone()

    return side
