"""What public calls cost: round trips, SQL statements, write calls and bytes, as exact counts on SQLite.

Counts do not depend on the machine. `cold` is the first call of a new handle, `warm` the fourth. A better
count is written into the table; a worse one needs a reason that its change tells.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from keepstate import sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.stores.protocol import Batch, Outcome, Page, Put, Reading, Sizes
from keepstate.stores.sqlite import SqliteStore
from keepstate.sync import Keepstate, Queue
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

    async def sizes(self, space: str) -> Sizes:
        self.trips += 1
        return await super().sizes(space)

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
    for _ in range(2):
        ks.space("long").events.append(*[{"kind": "begun", "number": number} for number in range(500)])
    ks.space("large list").history.commit({"rows": list(range(10_000))})
    _talk(ks)


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


class _Workers:
    """A queue for each handle, which every call works with."""

    def __init__(self) -> None:
        self._queues: dict[Keepstate, Queue] = {}

    def open(self, ks: Keepstate) -> None:
        self._queues.setdefault(ks, ks.space("work").queue)

    def work(self, ks: Keepstate) -> None:
        queue = self._queues[ks]
        queue.put({"step": "next"})
        (task,) = queue.claim("worker", lease_s=60)
        task.complete()


_workers = _Workers()


def _talk(ks: Keepstate) -> None:
    """Store a conversation of 20 checkpoints."""
    saver = KeepstateSaver(_store_of(ks))
    config, said = THREAD, list[str]()
    for number in range(20):
        said = [*said, f"message {number} " * 20]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"said": said}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"said": number})
        saver.put_writes(config, [("said", number)], "task")


def _rows(ks: Keepstate) -> None:
    rows = ks.space("large list").history.checkout(load=False).slice("rows", 5_000, 5_100)
    assert rows == list(range(5_000, 5_100))


class _Savers:
    """A saver for each handle, which every call lists checkpoints with."""

    def __init__(self) -> None:
        self._savers: dict[Keepstate, KeepstateSaver] = {}

    def open(self, ks: Keepstate) -> None:
        if ks not in self._savers:
            self._savers[ks] = KeepstateSaver(_store_of(ks))

    def list(self, ks: Keepstate) -> None:
        assert len(list(self._savers[ks].list(THREAD, limit=10))) == 10


_savers = _Savers()


def _store_of(ks: Keepstate) -> CountedStore:
    assert isinstance(ks.store, CountedStore)
    return ks.store


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
    Row("documents.put", lambda ks: ks.space("a").documents.put("x", {"count": 1}), 1, Cost(1, 5, 16)),
    Row("documents.update", lambda ks: ks.space("a").documents.update("x", {"count": 2}), 2, Cost(1, 5, 16)),
    Row("three updates in a transaction", _three_updates, 4, Cost(2, 15, 48)),
    Row("events.append", lambda ks: ks.space("a").events.append({"kind": "next"}), 1, Cost(1, 6, 57)),
    Row("history.find", lambda ks: ks.space("small").history.find(), 2, Cost(1, 4, 0)),
    Row("checkout of 20 keys", lambda ks: ks.space("small").history.checkout(), 6, Cost(1, 4, 0)),
    Row(
        "checkout of 20 keys of 60",
        lambda ks: ks.space("large").history.checkout(load=[f"key{n}" for n in range(20)]),
        6,
        Cost(1, 4, 0),
    ),
    Row("begin", lambda ks: ks.space("large").history.begin(), 9, Cost(1, 5, 0)),
    Row("draft.commit", _drafts.commit, 1, Cost(1, 12, 1155), _drafts.begin),
    Row("history.append", lambda ks: ks.space("line").history.append("lines", 1), 3, Cost(1, 6, 165)),
    Row("conversation.append of a Session", _said, 6, Cost(1, 10, None)),
    Row("a turn of a Session", _turn, 17, Cost(10, 65, None)),
    Row("queue.put, claim and complete", _workers.work, 8, Cost(3, 26, 957), _workers.open),
    Row("queue.counts", lambda ks: ks.space("work").queue.counts(), 1, Cost(1, 4, 0)),
    Row("space.size", lambda ks: ks.space("a").size(), 1, Cost(1, 3, 0)),
    Row("events.read(1000)", lambda ks: ks.space("long").events.read(limit=1_000), 1, Cost(1, 4, 0)),
    Row("100 rows of a list of 10,000", _rows, 5, Cost(4, 25, 0)),
    Row("saver.list(10)", _savers.list, 13, Cost(2, 8, 0), _savers.open),
)


THREAD: Final[Any] = {"configurable": {"thread_id": "talk", "checkpoint_ns": ""}}


@contextmanager
def counted_stores(folder: Path) -> Iterator[Callable[[], CountedStore]]:
    """Yield a function that opens stores on one file, which count, in blocking use."""
    opened: list[CountedStore] = []

    def open_store() -> CountedStore:
        store = CountedStore(folder / "keepstate.db", durability="normal", runner=ThreadRunner())
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


def costs_of(row: Row, open_store: Callable[[], CountedStore]) -> list[Cost]:
    """Return the costs of the first four calls of a new handle, on what was written before."""
    filled = open_store()
    with sync.open(filled) as ks:
        _fill(ks)
    finish(filled.close())
    store = open_store()
    costs: list[Cost] = []
    with sync.open(store) as ks:
        for _ in range(4):
            if row.before is not None:
                row.before(ks)
            costs.append(store.measure(lambda: row.call(ks)))
    return costs


@pytest.mark.parametrize("row", CALLS, ids=[row.name for row in CALLS])
def test_a_call_costs_what_the_table_says(row: Row, tmp_path: Path) -> None:
    with counted_stores(tmp_path) as open_store:
        cold, *_, warm = costs_of(row, open_store)

    warm = warm._replace(written=None) if row.warm.written is None else warm
    assert (cold.trips, warm) == (row.cold, row.warm)


# ---- what reaches the disk

_TIMES: Final = 8
_texts = (random.Random(number).randbytes(250).hex() for number in itertools.count())


class Written(NamedTuple):
    """What some calls write to files: system calls, and bytes of the log and of the file."""

    calls: int
    bytes: int


def written_so_far() -> Written:
    """Return what this thread has written to files. Linux counts it, with all else that a thread writes."""
    counts = dict(line.split(": ") for line in IO.read_text(encoding="ascii").splitlines())
    return Written(int(counts["syscw"]), int(counts["wchar"]))


IO: Final = Path("/proc/thread-self/io")
counted_by_linux = pytest.mark.skipif(not IO.exists(), reason="only Linux counts what a thread writes")
WRITTEN: Final[dict[str, tuple[Call, Written]]] = {
    "documents.get": (lambda ks: ks.space("a").documents.get("x"), Written(0, 0)),
    "documents.put": (lambda ks: ks.space("a").documents.put("x", next(_texts)), Written(54, 95_384)),
    "documents.update": (
        lambda ks: ks.space("a").documents.update("x", lambda _: next(_texts)),
        Written(54, 95_384),
    ),
    "events.append": (lambda ks: ks.space("a").events.append(next(_texts)), Written(68, 124_224)),
    "queue.put, claim and complete": (_workers.work, Written(200, 364_432)),
}
"""Calls, and what eight of them write in a new file, after two; those that take text take 500 bytes."""
APPENDS_WRITE_AT_MOST: Final = Written(104, 200_000)
"""What eight appends to a history write. Their keys are hashes, so that the pages depend on chance."""


def _written(call: Call, path: Path) -> Written:
    with sync.open(f"sqlite:///{path}?durability=normal") as ks:
        _workers.open(ks)
        ks.space("a").documents.put("x", next(_texts))
        for _ in range(2):
            call(ks)
        before = written_so_far()
        for _ in range(_TIMES):
            call(ks)
        after = written_so_far()
    return Written(*(now - then for now, then in zip(after, before, strict=True)))


@counted_by_linux
@pytest.mark.parametrize("name", WRITTEN)
def test_calls_write_what_the_table_says(name: str, tmp_path: Path) -> None:
    call, held = WRITTEN[name]

    assert _written(call, tmp_path / "keepstate.db") == held


@counted_by_linux
def test_appends_write_few_pages(tmp_path: Path) -> None:
    written = _written(
        lambda ks: ks.space("a").history.append("said", next(_texts)), tmp_path / "keepstate.db"
    )

    assert written.calls <= APPENDS_WRITE_AT_MOST.calls
    assert written.bytes <= APPENDS_WRITE_AT_MOST.bytes
