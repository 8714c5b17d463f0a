"""Rows of a database and fields of a server, bent, their checksums made right: our errors, or values.

`KEEPSTATE_SEED=n` begins with that seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
import redis

from keepstate import KeepstateError
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Check, Outcome, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.sqlite import SqliteStore, schema
from keepstate.stores.sqlite import connection as connections
from keepstate.stores.urls import StoreUrl
from tests.crashes.hostile import bent
from tests.crashes.test_hostile_bytes import Size, sizes, survives
from tests.tally import Tally

DOC, LOG, EXPIRING = b"\x02k", b"\x01log", b"\x01expires"
TABLES = ("spaces", "entries", "log", "retries")
NUMBERS = (0, -1, 1, 7, 2**62, -(2**62), None)


def fill(store: StoreBase) -> None:
    """Write rows of every kind, and close the store."""
    for number in range(5):
        writes = [Put(DOC, b"v%d" % number), Put(LOG, b"e", stamp=True), Put(EXPIRING, b"x", ttl_ms=10**6)]
        finish(store.apply([Batch("s", writes, token=b"t%d" % number)]))
    finish(store.apply([Batch("s", [Put(LOG, b"")], at=99, token=b"refused", retry_of=0)]))
    finish(store.close())


def applied(store: StoreBase, batch: Batch) -> Outcome:
    """Return a batch's outcome, raised if it is an error."""
    outcome = finish(store.apply([batch]))[0]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def every_call(store: StoreBase) -> Iterator[Callable[[], object]]:
    """Yield all that may be asked of a store."""
    yield lambda: finish(store.read("s", [DOC, EXPIRING]))
    yield lambda: finish(store.read("s", [DOC, *(b"\x01%d" % number for number in range(20))]))
    yield lambda: finish(store.scan("s", b"\x01"))
    yield lambda: finish(store.scan("s", b"\x02", reverse=True))
    yield lambda: finish(store.changes("s", 0))
    yield lambda: applied(store, Batch("s", [Put(DOC, b"new")], [Check(DOC, version=5)]))
    yield lambda: applied(store, Batch("s", [Put(LOG, b"")], token=b"t3", retry_of=2))
    yield lambda: applied(store, Batch("s", [Put(LOG, b"")], token=b"refused", retry_of=2))
    yield lambda: finish(store.sweep())
    yield lambda: finish(store.spaces())
    yield lambda: finish(store.drop("s"))


def use(make: Callable[[], StoreBase], seed: int) -> None:
    """Open the store and ask all of it."""
    try:
        store = finish(make().open())
    except KeepstateError:
        return
    for call in every_call(store):
        survives(call, seed)
    finish(store.close())


def bend_row(path: Path, random: Random) -> None:
    """Bend one column of one row as whoever has the page checksums could, and make all seals right."""
    database = apsw.Connection(str(path), vfs=connections.file_system())
    try:
        table = random.choice(TABLES)
        columns = [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")]
        row: Any = random.choice(list(database.execute(f"SELECT * FROM {table}")))
        at = random.randrange(len(columns))
        value = bent(row[at], random) if isinstance(row[at], bytes) else random.choice(NUMBERS)
        same = " AND ".join(f"{column} IS ?" for column in columns)
        database.execute(f"UPDATE {table} SET {columns[at]} = ? WHERE {same}", (value, *row))
        entries: Any = list(database.execute("SELECT id, key, value, version, expires_at_ms FROM entries"))
        for number, *parts in entries:
            seal = schema.entry_seal(*parts)
            database.execute("UPDATE entries SET seal = ? WHERE id = ?", (seal, number))
        for number, nonce, changes in list(database.execute("SELECT id, nonce, changes FROM log")):
            seal = schema.log_seal(number, nonce, changes)
            database.execute("UPDATE log SET seal = ? WHERE id = ?", (seal, number))
    except (apsw.Error, OverflowError):
        return  # the table itself does not take it
    finally:
        database.close()


@pytest.mark.parametrize("seed", [96, 627])
def test_what_bent_rows_found_stays_mended(seed: int, tmp_path: Path) -> None:
    """96: two records of one token. 627: a log row whose time is before 1970."""

    def make() -> SqliteStore:
        return SqliteStore(tmp_path / "bent.db", durability="normal", runner=ThreadRunner())

    fill(finish(make().open()))
    bend_row(tmp_path / "bent.db", Random(seed))
    use(make, seed)


@pytest.mark.parametrize("size", sizes(40, 1_500))
def test_bent_rows_of_sqlite_give_values_or_errors(size: Size, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "filled.db"

    def make(at: Path) -> SqliteStore:
        return SqliteStore(at, durability="normal", runner=ThreadRunner())

    fill(finish(make(path).open()))
    filled = path.read_bytes()
    for seed in size.seeds():
        hostile = tmp_path / f"{seed}.db"
        hostile.write_bytes(filled)
        bend_row(hostile, Random(seed))
        use(lambda: make(hostile), seed)  # noqa: B023  called at once
        hostile.unlink()

    tally("hostile bytes: rows of SQLite", inputs=size.inputs)


def bend_field(server: Any, random: Random) -> None:
    """Bend, removes or replaces one thing that the server holds."""
    name: Any = random.choice(sorted(server.keys("*")))
    if random.random() < 0.05:
        server.delete(name)
        server.set(name, b"of another type")
    elif server.type(name) == b"hash":
        field: Any = random.choice(sorted(server.hkeys(name)))
        old: Any = server.hget(name, field)
        if random.random() < 0.1:
            server.hdel(name, field)
        else:
            server.hset(name, field, bent(old, random))
    elif server.type(name) == b"zset":
        member: Any = random.choice(server.zrange(name, 0, -1))
        server.zrem(name, member)
        server.zadd(name, {bent(member, random): 0})


@pytest.mark.parametrize("size", sizes(60, 600))
def test_bent_fields_of_redis_give_values_or_errors(size: Size, redis_url: str, tally: Tally) -> None:
    url = StoreUrl.parse(f"{redis_url}?retry_for_s=0.05")
    server = redis.Redis.from_url(redis_url)
    for seed in size.seeds():
        server.flushdb()
        fill(finish(RedisStore(url, runner=ThreadRunner()).open()))
        bend_field(server, Random(seed))
        use(lambda: RedisStore(url, runner=ThreadRunner()), seed)

    server.close()
    tally("hostile bytes: fields of Redis", inputs=size.inputs)
