"""Pages of `find` in a store of 100,000 and of 1,000,000 subjects, each with a space of its own.

The rows are those that carriers write, written without their subjects: a page reads the index only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Final

from keepstate_testing.servers import Postgres, Redis

from bench.harness import Table, timed
from keepstate import sync
from keepstate._finish import finish
from keepstate.engine.index.rows import MetaRecord, Row, digest_of, encode, places, row_key
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.store_abilities import content_name
from keepstate.names import INDEX_SPACE
from keepstate.stores.protocol import Applied, Batch, Put, Write

SPACES: Final = (100_000, 1_000_000)
MOST_MS: Final = 5.0
_BEGIN_MS: Final = 1_700_000_000_000
_OWNERS: Final = 1_000
_ROWS_A_BATCH: Final = 150
QUERIES: Final[dict[str, dict[str, Any]]] = {
    "find()": {},
    "find(kind=, state=)": {"kind": "workflow", "state": "running"},
    "find(owner=)": {"owner": "user 8"},
    'find(under="session/996")': {"under": "session/996"},
    'find(under="session")': {"under": "session"},
    'find(order="due")': {"order": "due"},
}


def finding(table: Table) -> None:
    """Add the time of a page, the first one and a later one, by the number of spaces."""
    for count in SPACES:
        with TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/find.db?durability=normal"
            _show_pages(table, url, table.scaled(count, least=2_000), "SQLite")
    count = table.scaled(SPACES[0], least=2_000)
    with Redis() as server:
        _show_pages(table, server.url, count, "Redis")
    with Postgres() as server:
        _show_pages(table, server.url, count, "PostgreSQL")


def _show_pages(table: Table, url: str, count: int, store: str) -> None:
    """Add the rows of one store, which must be empty."""
    with sync.open(url) as ks:
        fill(ks, count)
        for name, query in QUERIES.items():
            first = page = ks.find(**query)
            assert page, name
            for _ in range(3):
                page = ks.find(**query, after=page.next) if page.next is not None else page
            pages = {"": None} if page.next is None else {"": None, ", a later page": page.next}
            assert first.next is not None or len(pages) == 1
            for what, after in pages.items():
                call = partial(ks.find, **query, after=after)
                times = [timed(call) * 1e3 for _ in range(table.scaled(30, least=3))]
                table.limit(f"{name}, {store}, {count:,} spaces{what}", MOST_MS, "ms", times)


def fill(ks: sync.Keepstate, count: int) -> None:
    """Write the index of a store with so many subjects."""
    store = ks.store
    name_of = partial(content_name, store, INDEX_SPACE)
    writes: list[Write] = [Put(layout.INDEX_META, encode(MetaRecord(is_complete=True)))]
    for number, row in enumerate(_rows(count), start=1):
        digest = digest_of(name_of, row.space, row.subject)
        writes.append(Put(row_key(digest), encode(row)))
        writes += [Put(place, b"") for place in places(name_of, digest, row)]
        if number % _ROWS_A_BATCH == 0:
            _apply(store, writes)
            writes = []
    if writes:
        _apply(store, writes)


def _apply(store: Any, writes: list[Write]) -> None:
    outcome = finish(store.apply([Batch(INDEX_SPACE, writes)]))[0]
    assert isinstance(outcome, Applied), outcome


def _rows(count: int) -> Iterator[Row]:
    """Yield sessions, workflows and queues, changed in an order that is not that of their names."""
    for number in range(count):
        at_ms = _BEGIN_MS + number * 7_919 % (count * 10)
        owner = f"user {number % _OWNERS}"
        match number % 4:
            case 0 | 1:
                yield Row(1, f"session/{number}", "session", str(number), "open", owner, None, at_ms, None)
            case 2:
                state = "running" if number % 100 == 2 else "completed"
                yield Row(
                    1, f"workflow/{number}", "workflow", str(number), state, None, "Import", at_ms, None
                )
            case _:
                yield Row(1, f"pool {number}", "queue", "mail", "waiting", None, None, at_ms, at_ms + 60_000)
