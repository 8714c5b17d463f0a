"""Calls on much data: events beside OpenAI's SQLiteSession, appends beside raw rows, counts of spaces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from bench import others, sides
from bench.harness import Item, Table, timed
from bench.savers import TEXT_BYTES, texts
from keepstate import sync
from keepstate._finish import finish
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement

EVENTS, BY_APPEND = 1_000, 500
APPENDS = 10_000
TASKS = 10_000


def reads(table: Table) -> None:
    """Add the rows; those that count do not depend on the machine."""
    with TemporaryDirectory() as folder:
        _events(table, Path(folder))
        _appends(table, Path(folder))
        _counts(table, f"sqlite:///{folder}/counts.db?durability=normal")


def _events(table: Table, folder: Path) -> None:
    """Add how long 1,000 events take, beside the same messages of a session by OpenAI's SQLiteSession."""
    messages = [{"role": "user", "content": f"{number} ".ljust(200, "x")} for number in range(EVENTS)]
    with sync.open(f"sqlite:///{folder}/events.db?durability=normal") as ks:
        events = ks.space("events").events
        for begin in range(0, EVENTS, BY_APPEND):
            events.append(*messages[begin : begin + BY_APPEND])

        def ours() -> float:
            found: list[object] = []
            seconds = timed(lambda: found.extend(event.data for event in events.read(limit=EVENTS)))
            assert found == messages
            return seconds * 1e3

        rounds = table.scaled(30, least=3)
        if "SQLiteSession" in others.missing("SQLiteSession"):
            table.show(f"SQLiteSession is not installed, and not measured: {others.INSTALL}")
            table.limit(f"events.read({EVENTS:,})", 4, "ms", [ours() for _ in range(rounds)])
            return
        session = import_module("agents").SQLiteSession("bench", f"{folder}/session.db")

        async def compare() -> list[tuple[float, float]]:
            await session.add_items(messages)
            loop, pairs = asyncio.get_running_loop(), list[tuple[float, float]]()
            for _ in range(rounds + 1):
                begun = loop.time()
                assert await session.get_items() == messages
                pairs.append(((loop.time() - begun) * 1e3, await asyncio.to_thread(ours)))
            return pairs[1:]

        with closing(session):
            theirs, own = zip(*asyncio.run(compare()), strict=True)
        table.limit(f"events.read({EVENTS:,})", 4, "ms", own, theirs)


def _appends(table: Table, folder: Path) -> None:
    """Add what an append to a history takes beside a raw row insert, in memory, and in the file."""
    raw = apsw.Connection(f"{folder}/raw.db")
    raw.execute("pragma journal_mode = wal")
    raw.execute("pragma synchronous = normal")
    raw.execute("create table messages (number integer primary key, message text)")

    def inserts(items: Sequence[Item]) -> None:
        for key, value in items:
            message = json.dumps({"role": "user", "content": value, "key": key})
            raw.execute("begin immediate")
            raw.execute("insert into messages (message) values (?)", (message,))
            raw.execute("commit")

    with closing(raw), sync.open(f"sqlite:///{folder}/appends.db?durability=normal") as ks:
        history = ks.space("appends").history

        def appends(items: Sequence[Item]) -> None:
            for key, value in items:
                history.append("messages", {"role": "user", "content": value, "key": key})

        table.compare("history.append by a raw row insert, SQLite", 15, appends, inserts, operations=500)
    with sync.open("memory://") as ks:
        history = ks.space("appends").history
        took = [
            timed(partial(history.append, "messages", text)) * 1e6
            for text in texts(table.scaled(5_000, least=100))
        ]
    table.limit("history.append, memory", 70, "us", took)
    file = folder / "many.db"
    count = table.scaled(APPENDS, least=200)
    with sync.open(f"sqlite:///{file}?durability=normal") as ks:
        history = ks.space("appends").history
        for text in texts(count):
            history.append("messages", text)
    said = TEXT_BYTES * count
    table.weigh(f"file after {count:,} appends of 500 B, kB", 14_000, file.stat().st_size, said)


def _counts(table: Table, url: str) -> None:
    """Add how many reads `queue.counts()` and `space.size()` take where there is much to count."""
    calls: list[Measurement] = []
    measured = MeasuredStore(sides.opened(url), calls.append)
    with sync.open(measured) as ks:
        space = ks.space("many")
        tasks = table.scaled(TASKS, least=200)
        for begin in range(0, tasks, 100):
            with space.transaction() as tx:
                for number in range(begin, begin + 100):
                    tx.queue.put({"number": number})
        calls.clear()
        assert sum(space.queue.counts().values()) == tasks
        table.limit(f"queue.counts() of {tasks:,} tasks", 1, "reads", [len(calls)])
        calls.clear()
        assert space.size().size_bytes > 0
        table.limit(f"space.size() of {tasks:,} tasks", 1, "reads", [len(calls)])
    finish(measured.close())
