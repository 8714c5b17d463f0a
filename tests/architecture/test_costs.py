"""What public calls cost: round trips, SQL statements and bytes written, as exact counts on a SQLite store.

Counts do not depend on the machine. `cold` is the first call of a new handle, `warm` the fourth. A better
count is written into the table; a worse one needs a reason that its change tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import pytest

from keepstate import sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.protocol import Batch, Outcome, Page, Put, Reading
from keepstate.stores.sqlite import SqliteStore
from keepstate.sync import Keepstate
from keepstate.sync.sessions.session import Session


class Cost(NamedTuple):
    """What one call costs: calls of the store, SQL statements, and bytes of keys and values in batches.

    The bytes are None where they depend on ids and times that compress by chance.
    """

    trips: int
    statements: int
    written: int | None


class CountedStore(SqliteStore):
    """A store that counts."""

    trips = statements = written = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.trips += 1
        for batch in batches:
            for write in batch.writes:
                self.written += len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.trips += 1
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.trips += 1
        return await super().scan(space, prefix, **options)

    def note(self, _cursor: object, _sql: str, _bindings: object) -> bool:
        self.statements += 1
        return True

    def measure(self, call: Callable[[], object]) -> Cost:
        before = self.trips, self.statements, self.written
        call()
        after = self.trips, self.statements, self.written
        return Cost(*(now - then for now, then in zip(after, before, strict=True)))


def _state(keys: int, size: int = 400) -> dict[str, Any]:
    return {f"key{number}": f"{number:04}" * (size // 4) for number in range(keys)}


def _fill(ks: Keepstate) -> None:
    """Write what the calls below work on."""
    documents = ks.space("a").documents
    for name in "xyz":
        documents.put(name, {"count": 0})
    ks.space("small").history.commit(_state(20))
    messages = [{"role": "user", "content": f"{number:04}" * 40} for number in range(200)]
    ks.space("large").history.commit({**_state(60), "messages": messages})
    ks.space("a").events.append({"kind": "begun"})
    for number in range(20):
        ks.space("line").history.append("lines", number)


def _three_updates(ks: Keepstate) -> None:
    with ks.space("a").transaction() as tx:
        for name in "xyz":
            tx.documents.update(name, lambda old: {"count": old["count"] + 1})


class _Drafts:
    """A draft for each handle, which every call changes and commits."""

    def __init__(self) -> None:
        self._drafts: dict[Keepstate, Any] = {}
        self._count = 0

    def begin(self, ks: Keepstate) -> None:
        self._drafts[ks] = ks.space("large").history.begin()

    def commit(self, ks: Keepstate) -> None:
        self._count += 1
        draft = self._drafts[ks]
        draft["key3"] = f"{self._count:04}" * 100
        draft.commit()


_drafts = _Drafts()


def _said(ks: Keepstate) -> None:
    Session("s1", user_id="u1", persistence=ks).conversation.append(
        {"role": "user", "content": "What is next?"}
    )


def _turn(ks: Keepstate) -> None:
    session = Session("s1", user_id="u1", persistence=ks)
    session.conversation.append({"role": "user", "content": "What is next?"})
    session.get_context()
    session.conversation.append({"role": "assistant", "content": "This."})
    session.update({"step": "next"})


Call = Callable[[Keepstate], object]


class Row(NamedTuple):
    """A public call and its costs; `before` prepares each call, and is not measured."""

    name: str
    call: Call
    cold: int
    warm: Cost
    before: Call | None = None


CALLS: Final = (
    Row("documents.get", lambda ks: ks.space("a").documents.get("x"), 1, Cost(1, 4, 0)),
    Row("documents.put", lambda ks: ks.space("a").documents.put("x", {"count": 1}), 1, Cost(1, 7, 16)),
    Row("documents.update", lambda ks: ks.space("a").documents.update("x", {"count": 2}), 2, Cost(1, 7, 16)),
    Row("three updates in a transaction", _three_updates, 4, Cost(2, 17, 48)),
    Row("events.append", lambda ks: ks.space("a").events.append({"kind": "next"}), 1, Cost(1, 7, 57)),
    Row("history.find", lambda ks: ks.space("small").history.find(), 2, Cost(1, 4, 0)),
    Row("checkout of 20 keys", lambda ks: ks.space("small").history.checkout(), 6, Cost(1, 4, 0)),
    Row(
        "checkout of 20 keys of 60",
        lambda ks: ks.space("large").history.checkout(load=[f"key{n}" for n in range(20)]),
        6,
        Cost(1, 4, 0),
    ),
    Row("begin", lambda ks: ks.space("large").history.begin(), 9, Cost(1, 5, 0)),
    Row("draft.commit", _drafts.commit, 1, Cost(1, 14, 1155), _drafts.begin),
    Row("history.append", lambda ks: ks.space("line").history.append("lines", 1), 3, Cost(1, 8, 165)),
    Row("conversation.append of a Session", _said, 6, Cost(1, 12, None)),
    Row("a turn of a Session", _turn, 17, Cost(10, 71, None)),
)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], CountedStore]]:
    """Open stores on one file, which count, in blocking use."""
    opened: list[CountedStore] = []

    def open_store() -> CountedStore:
        store = CountedStore(tmp_path / "keepstate.db", durability="normal", runner=ThreadRunner())
        opened.append(store)
        finish(store.open())
        return store

    def count_statements(connection: apsw.Connection) -> None:
        store = opened[-1]
        connection.exec_trace = store.note

    apsw.connection_hooks.append(count_statements)
    try:
        yield open_store
    finally:
        apsw.connection_hooks.remove(count_statements)
        for store in opened:
            finish(store.close())


@pytest.mark.parametrize("row", CALLS, ids=[row.name for row in CALLS])
def test_a_call_costs_what_the_table_says(row: Row, open_store: Callable[[], CountedStore]) -> None:
    filled = open_store()
    with sync.open(filled) as ks:
        _fill(ks)
    finish(filled.close())
    store = open_store()
    with sync.open(store) as ks:
        costs: list[Cost] = []
        for _ in range(4):
            if row.before is not None:
                row.before(ks)
            costs.append(store.measure(lambda: row.call(ks)))

    warm = costs[-1]._replace(written=None) if row.warm.written is None else costs[-1]
    assert (costs[0].trips, warm) == (row.cold, row.warm)
