"""What public calls cost: round trips, SQL statements, write calls and bytes, as exact counts on SQLite.

Counts do not depend on the machine. `cold` is the first call of a new handle, `warm` the fourth. A better
count is written into the table; a worse one needs a reason that its change tells.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from bench.compared import MAKERS, count_calls, puts_at_turn
from keepstate import Budget, TaskSpec, Usage, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.engine.queue.ticks import decode_schedule, encode_schedule, schedule_key, tick_key
from keepstate.stores.protocol import Batch, Delete, Outcome, Page, Put, Reading, Sizes
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
    """A store that counts the calls of the thread that made it, and not those of the background delivery."""

    trips = statements = written = 0
    _thread = threading.get_ident()

    @property
    def _counts(self) -> bool:
        return threading.get_ident() == self._thread

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.trips += self._counts
        for write in [write for batch in batches for write in batch.writes if self._counts]:
            self.written += len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.trips += self._counts
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.trips += self._counts
        return await super().scan(space, prefix, **options)

    async def sizes(self, space: str) -> Sizes:
        self.trips += self._counts
        return await super().sizes(space)

    def note(self, _cursor: object, _sql: str, _bindings: object) -> bool:
        self.statements += self._counts
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


class _Steps:
    """A task for each handle, which every call does a step of."""

    def __init__(self) -> None:
        self._tasks: dict[Keepstate, Any] = {}
        self._numbers = itertools.count()

    def open(self, ks: Keepstate) -> None:
        if ks not in self._tasks:
            queue = ks.space("steps").queue
            queue.put(1)
            (self._tasks[ks],) = queue.claim("worker", lease_s=600)

    def open_again(self, ks: Keepstate) -> None:
        queue = ks.space("steps").queue
        queue.put(1)
        (task,) = queue.claim("worker", lease_s=600)
        for number in range(3):
            task.step(f"step/{number}", lambda: {"text": "done"})
        task.release()
        (self._tasks[ks],) = queue.claim("worker", lease_s=600)

    def step(self, ks: Keepstate) -> None:
        self._tasks[ks].step(f"step/{next(self._numbers)}", lambda: {"text": "done"})

    def recorded(self, ks: Keepstate) -> None:
        for number in range(3):
            self._tasks[ks].step(f"step/{number}", lambda: {"text": "done"})

    def once(self, ks: Keepstate) -> None:
        self._tasks[ks].step(f"once/{next(self._numbers)}", lambda: {"text": "done"}, once=True)

    def transact(self, ks: Keepstate) -> None:
        self._tasks[ks].transact(f"tx/{next(self._numbers)}", lambda tx: tx.documents.put("x", 1))


_steps = _Steps()


class _Schedules:
    """A schedule that is due before every call."""

    def make_due(self, ks: Keepstate) -> None:
        ks.space("nightly").schedules.put("n", every_s=60, overlap="allow")
        for task in ks.space("nightly").queue.list():  # the next instant may be the same millisecond
            ks.space("nightly").queue.discard(task.id)
        store, key = _store_of(ks), schedule_key("n")
        reading = finish(store.read("nightly", [key]))
        assert reading.entries[0] is not None
        record = decode_schedule(reading.entries[0].value, "the schedule")
        due = msgspec.structs.replace(
            record, anchor_ms=reading.now_ms - 60_000, last_ms=reading.now_ms - 1, due_ms=reading.now_ms
        )
        writes = [
            Delete(tick_key(record.due_ms or 0, "n")),
            Put(key, encode_schedule(due)),
            Put(tick_key(reading.now_ms, "n"), b""),
        ]
        finish(store.apply([Batch("nightly", writes)]))

    def tick(self, ks: Keepstate) -> None:
        assert ks.space("nightly").schedules.tick() == 1


_schedules = _Schedules()


class _Approvals:
    """A pending approval with a task that waits, before every answer."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._id = ""

    def ask(self, ks: Keepstate) -> None:
        self._id = f"pay/{next(self._numbers)}"
        ks.space("approvals").approvals.ask(
            "Pay?", id=self._id, subject={"pay": 1}, to=["ann"], then=TaskSpec()
        )

    def answer(self, ks: Keepstate) -> None:
        ks.space("approvals").approvals.answer(self._id, True, by="ann")


_approvals = _Approvals()


class _Usage:
    """Uses under a budget."""

    def limit(self, ks: Keepstate) -> None:
        ks.space("spending").usage.set_budget("all", Budget(calls=1_000_000))

    def record(self, ks: Keepstate) -> None:
        ks.space("spending").usage.record(Usage(model="large", cost=Decimal("0.01")))

    def spend(self, ks: Keepstate) -> None:
        with ks.space("spending").usage.reserve(model="large") as spend:
            spend.record(Usage(model="large", cost=Decimal("0.01")))


_usage = _Usage()


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
    Row("events.append", lambda ks: ks.space("a").events.append({"kind": "next"}), 1, Cost(1, 5, 57)),
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
    Row("conversation.append of a Session", _said, 6, Cost(1, 11, None)),
    Row("a turn of a Session", _turn, 14, Cost(7, 58, None)),
    Row("queue.put, claim and complete", _workers.work, 8, Cost(3, 27, 1101), _workers.open),
    Row("task.step", _steps.step, 1, Cost(1, 5, None), _steps.open),
    Row("three recorded steps of a new attempt", _steps.recorded, 1, Cost(1, 4, 0), _steps.open_again),
    Row("task.step with once", _steps.once, 2, Cost(2, 9, None), _steps.open),
    Row("task.transact", _steps.transact, 2, Cost(2, 12, None), _steps.open),
    Row("a tick of a schedule", _schedules.tick, 4, Cost(4, 26, None), _schedules.make_due),
    Row("a tick without a due schedule", lambda ks: ks.space("work").schedules.tick(), 1, Cost(1, 5, 0)),
    Row("approvals.ask", _approvals.ask, 2, Cost(2, 27, None)),
    Row("approvals.answer", _approvals.answer, 3, Cost(3, 23, None), _approvals.ask),
    Row("approvals.pending", lambda ks: ks.space("work").approvals.pending(), 1, Cost(1, 5, 0)),
    Row("usage.record", _usage.record, 3, Cost(3, 13, 73), _usage.limit),
    Row("usage.reserve, until it ends", _usage.spend, 5, Cost(5, 25, None), _usage.limit),
    Row("usage.totals", lambda ks: ks.space("spending").usage.totals("month"), 2, Cost(2, 10, 0)),
    Row("usage.budgets", lambda ks: ks.space("spending").usage.budgets(), 1, Cost(1, 5, 0)),
    Row("queue.counts", lambda ks: ks.space("work").queue.counts(), 1, Cost(1, 4, 0)),
    Row("space.size", lambda ks: ks.space("a").size(), 1, Cost(1, 3, 0)),
    Row("events.read(1000)", lambda ks: ks.space("long").events.read(limit=1_000), 1, Cost(1, 4, 0)),
    Row("100 rows of a list of 10,000", _rows, 5, Cost(4, 25, 0)),
    Row("saver.list(10)", _savers.list, 13, Cost(2, 8, 0), _savers.open),
)


THREAD: Final[Any] = {"configurable": {"thread_id": "talk", "checkpoint_ns": ""}}


_TRIES: Final = 4


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
    # If the machine stands still in between, a call also does what has become due.
    for attempt in range(_TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with counted_stores(folder) as open_store:
            cold, *_, warm = costs_of(row, open_store)
        warm = warm._replace(written=None) if row.warm.written is None else warm
        if (cold.trips, warm) == (row.cold, row.warm):
            return

    assert (cold.trips, warm) == (row.cold, row.warm)


# ---- calls of Python functions

PYTHON_CALLS_AT_MOST: Final = {
    "documents.put": 82,
    "documents.get": 35,
    "documents.update": 165,
    "events.append": 96,
    "history.append": 290,
    "history.commit": 1_290,
    "begin": 2_450,
    "draft.commit": 1_070,
}
"""Python functions that a warm call calls, in memory, as Python 3.11 counts them; later ones count fewer."""


@pytest.mark.parametrize("name", PYTHON_CALLS_AT_MOST)
def test_a_call_calls_few_functions(name: str) -> None:
    with ExitStack() as stack:
        ks = stack.enter_context(sync.open("memory://"))
        operations = MAKERS[name](ks, stack)
        counts = [count_calls(operations)["calls"] for _ in range(3)]  # a call may also compare clocks

    assert min(counts) <= PYTHON_CALLS_AT_MOST[name]


PUT_CALLS_AT_MOST: Final = {5: 467, 20: 483, 50: 503, 100: 492}
"""Turns of a short conversation, and the Python functions that a put of LangGraph's saver calls there."""


@pytest.mark.parametrize("turn", PUT_CALLS_AT_MOST)
def test_a_put_of_a_short_conversation_calls_few_functions(turn: int, tmp_path: Path) -> None:
    with ExitStack() as stack:
        operations = puts_at_turn(f"{tmp_path}/talks", turn, stack)
        counts = [count_calls(operations)["calls"] for _ in range(3)]  # a node may end, or the log move

    assert min(counts) <= PUT_CALLS_AT_MOST[turn]


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
    "queue.put, claim and complete": (_workers.work, Written(214, 393_272)),
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

    # If the machine stands still in between, a call also writes what has become due.
    tries = (_written(call, tmp_path / f"{number}.db") for number in range(3))
    written = next((each for each in tries if each == held), None) or _written(call, tmp_path / "last.db")

    assert written == held


@counted_by_linux
def test_appends_write_few_pages(tmp_path: Path) -> None:
    written = _written(
        lambda ks: ks.space("a").history.append("said", next(_texts)), tmp_path / "keepstate.db"
    )

    assert written.calls <= APPENDS_WRITE_AT_MOST.calls
    assert written.bytes <= APPENDS_WRITE_AT_MOST.bytes
