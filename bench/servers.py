"""Redis and PostgreSQL beside their own drivers, on private servers, in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import psycopg
import redis
import redis.asyncio
from keepstate_testing.servers import Postgres, Redis

from bench import sides
from bench.harness import Item, Side, Table, apart
from keepstate._finish import finish

UPSERT = "insert into kv values (%s, %s) on conflict (k) do update set v = excluded.v"
SELECT = "select v from kv where k = %s"


def redis_rows(table: Table) -> None:
    """Add puts and gets beside SET and GET."""
    with apart(Redis()) as server:
        store, raw = sides.opened(server.url), redis.Redis.from_url(server.url)

        def sets(items: Sequence[Item]) -> None:
            for key, value in items:
                raw.set(key, value)

        def gets(items: Sequence[Item]) -> None:
            for key, _ in items:
                raw.get(key)

        try:
            table.compare("Redis put", 1.5, sides.puts(store), sets, operations=1_000)
            table.compare("Redis get", 1.25, sides.gets(store), gets, operations=1_000)
        finally:
            finish(store.close())
            raw.close()
        asyncio.run(_redis_async(table, server.url))


async def _redis_async(table: Table, url: str) -> None:
    store, raw = await sides.opened_async(url), redis.asyncio.Redis.from_url(url)

    async def sets(items: Sequence[Item]) -> None:
        for key, value in items:
            await raw.set(key, value)

    async def gets(items: Sequence[Item]) -> None:
        for key, _ in items:
            await raw.get(key)

    try:
        await table.compare_async("Redis put, async", 1.5, sides.async_puts(store), sets, operations=1_000)
        await table.compare_async("Redis get, async", 1.25, sides.async_gets(store), gets, operations=1_000)
    finally:
        await store.close()
        await raw.aclose()


def postgres_rows(table: Table) -> None:
    """Add puts and gets beside upserts and selects, and 64 tasks over 16 spaces beside upserts alone."""
    with apart(Postgres(durable=True)) as server, psycopg.connect(server.url, autocommit=True) as raw:
        _make_table(raw)
        store = sides.opened(server.url)
        try:
            table.compare("PostgreSQL put", 1.6, sides.puts(store), _upserts(raw), operations=400)
            table.compare("PostgreSQL get", 1.25, sides.gets(store), _selects(raw), operations=800)
        finally:
            finish(store.close())
        asyncio.run(_postgres_async(table, server.url))
    with apart(Postgres(durable=True)) as server, psycopg.connect(server.url, autocommit=True) as raw:
        _make_table(raw)
        asyncio.run(_postgres_crowd(table, server.url, _upserts(raw)))


async def _postgres_async(table: Table, url: str) -> None:
    store = await sides.opened_async(url)
    raw = await psycopg.AsyncConnection.connect(url, autocommit=True)

    async def upserts(items: Sequence[Item]) -> None:
        for key, value in items:
            await raw.execute(UPSERT, (key, value))

    async def selects(items: Sequence[Item]) -> None:
        for key, _ in items:
            await (await raw.execute(SELECT, (key,))).fetchone()

    try:
        await table.compare_async(
            "PostgreSQL put, async", 1.6, sides.async_puts(store), upserts, operations=400
        )
        await table.compare_async(
            "PostgreSQL get, async", 1.25, sides.async_gets(store), selects, operations=800
        )
    finally:
        await store.close()
        await raw.close()


async def _postgres_crowd(table: Table, url: str, upserts_in_sequence: Side) -> None:
    store = await sides.opened_async(url)
    try:
        await table.compare_throughput(
            "PostgreSQL, 64 tasks, 16 spaces",
            2,
            sides.crowd(store, spaces=16),
            upserts_in_sequence,
            operations=1_000,
        )
    finally:
        await store.close()


def _make_table(connection: psycopg.Connection[Any]) -> None:
    connection.execute("create table kv (k bytea primary key, v bytea)")


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
