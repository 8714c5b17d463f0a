"""What a commit costs in time and bytes, beside those who keep the whole; and what reading one costs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import apsw
import msgspec
from keepstate_testing.servers import Postgres, Redis

import keepstate
from bench import others
from bench.changes import APPEND, CHANGES, KEY, SIZES, Change, conversation, keyed
from bench.harness import Cost, Table, apart, timed
from bench.keepers import (
    Keeper,
    Kvgit,
    LangGraph,
    MemorySnapshot,
    Ours,
    PostgresSnapshot,
    RedisSnapshot,
    SqliteSnapshot,
)
from keepstate.values.compression import compress, decompress

TURNS, HEAVY_TURNS = 50, 20
WARM_TURNS = 3
READS = 7
MANY = 10_000
Makers = Sequence[Callable[[Change, int], Keeper]]


def history(table: Table) -> None:
    """Add the rows of histories that have a budget, and show what each change costs everywhere."""
    for name in others.missing("kvgit", "SqliteSaver"):
        table.show(f"{name} is not installed, and not measured: {others.INSTALL}")
    _memory(table)
    _sqlite(table)
    with apart(Redis()) as server:
        _costs(table, "Redis", _beside(server.url, lambda *of: RedisSnapshot(server.url, *of)))
    with apart(Postgres(durable=True)) as server:
        _costs(table, "PostgreSQL", _beside(server.url, lambda *of: PostgresSnapshot(server.url, *of)))
    _read_one_key(table)
    _read_back(table)


def _beside(url: str, *rest: Callable[[Change, int], Keeper]) -> Makers:
    return [lambda *of: Ours(url, *of), *rest]


def _memory(table: Table) -> None:
    makers = [*_beside("memory://", MemorySnapshot)]
    if "kvgit" not in others.missing():
        makers.append(lambda *of: Kvgit(None, *of))
    costs = _costs(table, "memory", makers)
    append, key = (
        _of(costs, change, size, "keepstate") for change, size in ((APPEND, MANY), (KEY, KEY.sizes[0]))
    )
    whole = _of(costs, APPEND, MANY, "snapshot").stored_bytes
    table.weigh("history append at 10,000, KB", 2.5, append.stored_bytes, whole)
    rival = next((one for one in costs if one.keeper == "kvgit" and one.change == KEY.name), key)
    table.weigh("history 1 of 1,000 keys, KB", 2.2, key.stored_bytes, rival.stored_bytes)


def _sqlite(table: Table) -> None:
    with TemporaryDirectory() as folder:

        def place(of: tuple[Change, int], ending: str) -> Path:
            return Path(folder) / f"{CHANGES.index(of[0])}-{of[1]}-{ending}"

        makers = [
            *_beside(
                f"sqlite:///{folder}/ours.db?durability=normal",
                lambda *of: SqliteSnapshot(place(of, "snapshot.db"), *of),
            )
        ]
        if "kvgit" not in others.missing():
            makers.append(lambda *of: Kvgit(place(of, "kvgit"), *of))
        if "SqliteSaver" not in others.missing():
            makers.append(lambda *of: LangGraph(place(of, "saver.db"), *of))
        _costs(table, "SQLite normal", makers)
        _appends(table, folder)


def _appends(table: Table, folder: str) -> None:
    """Add the rows of appends to few and to many messages, and to a snapshot, each in turn."""
    url = f"sqlite:///{folder}/appends.db?durability=normal"
    many = Ours(url, APPEND, MANY)
    few = Ours(url, APPEND, SIZES[0])
    whole = SqliteSnapshot(Path(folder) / "appends-snapshot.db", APPEND, MANY)
    try:
        for _ in range(WARM_TURNS):
            for keeper in (many, few, whole):
                keeper.turn()
        rounds = [
            (
                [timed(many.turn) for _ in range(10)],
                [timed(few.turn) for _ in range(10)],
                timed(whole.turn),
            )
            for _ in range(table.scaled(20, least=5))
        ]
    finally:
        for keeper in (many, few, whole):
            keeper.close()
    pairs = [(median(ours), median(less)) for ours, less, _ in rounds]
    table.add("history append, 10,000 over 100", 1.3, pairs)
    table.add("history append beside a snapshot", 100, [(median(o), s) for o, _, s in rounds], at_least=True)


def _costs(table: Table, store: str, makers: Makers) -> list[Cost]:
    costs: list[Cost] = []
    for change in CHANGES:
        for size in change.sizes:
            if table.is_quick and size not in (SIZES[0], KEY.sizes[0]) and change is not APPEND:
                continue
            found = _compared(store, change, size, makers, table)
            costs += found
            table.tell(found)
    return costs


def _compared(store: str, change: Change, size: int, makers: Makers, table: Table) -> list[Cost]:
    """Let all of them make the same changes, each in turn."""
    turns, heavy_turns = table.scaled(TURNS, least=8), table.scaled(HEAVY_TURNS, least=4)
    with _kept(change, size, makers) as keepers:
        times: dict[str, list[float]] = {keeper.name: [] for keeper in keepers}
        for keeper in keepers:
            for _ in range(WARM_TURNS):
                keeper.turn()
        before = {keeper.name: keeper.stored_bytes() for keeper in keepers}
        for turn in range(turns):
            for keeper in keepers:
                if turn < heavy_turns or size < MANY or not keeper.is_heavy:
                    times[keeper.name].append(timed(keeper.turn))
        return [
            Cost(
                store,
                change.name,
                size,
                keeper.name,
                round(median(times[keeper.name]) * 1e6, 1),
                round((keeper.stored_bytes() - before[keeper.name]) / len(times[keeper.name])),
                len(times[keeper.name]),
            )
            for keeper in keepers
        ]


@contextmanager
def _kept(change: Change, size: int, makers: Makers) -> Generator[list[Keeper]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(make(change, size))) for make in makers]


# ---- reading


def _read_one_key(table: Table) -> None:
    """Add the row of opening a store of 10,000 keys, and reading one."""
    if "kvgit" in others.missing():
        return
    with TemporaryDirectory() as folder:
        url, other = f"sqlite:///{folder}/ours.db?durability=normal", Path(folder) / "kvgit"
        state = keyed(MANY)
        with keepstate.sync.open(url) as ks:
            ks.space("run").history.commit(state)
        tree = others.kvgit_worktree(other)
        tree.update(state)
        tree.commit()
        tree.repo.close()

        def ours() -> None:
            with keepstate.sync.open(url) as ks:
                assert ks.space("run").history.checkout(load=["key77"])["key77"] == state["key77"]

        def theirs() -> None:
            opened = others.kvgit_worktree(other)
            assert opened["key77"] == state["key77"]
            opened.repo.close()

        table.add("open, read one key of 10,000, kvgit", 0.1, _pairs(table, ours, theirs))


def _read_back(table: Table) -> None:
    """Add the rows of reading 10,000 messages with nothing at hand, beside one blob that is stored alike."""
    with TemporaryDirectory() as folder:
        url, state = f"sqlite:///{folder}/ours.db?durability=normal", conversation(MANY)
        whole = apsw.Connection(f"{folder}/blob.db")
        whole.execute("create table blob (state blob)")
        # Compressed too, and in a file: else most of what is compared would be what that costs.
        whole.execute("insert into blob values (?)", (compress(msgspec.msgpack.encode(state)),))
        with closing(whole), keepstate.sync.open(url) as ks:
            ks.space("run").history.commit(state)

            def read() -> None:
                assert len(ks.space("run").history.checkout()["messages"]) == MANY

            def read_and_verify() -> None:
                own = ks.space("run").history
                assert own.verify().problems == ()
                assert len(own.checkout()["messages"]) == MANY

            def decode() -> None:
                for (blob,) in whole.execute("select state from blob"):
                    assert len(msgspec.msgpack.decode(decompress(blob))["messages"]) == MANY

            table.add("10,000 messages back, cold; a blob", 4, _pairs(table, read, decode))
            table.add("the same, every hash verified", 7, _pairs(table, read_and_verify, decode))


def _pairs(table: Table, ours: Callable[[], None], theirs: Callable[[], None]) -> list[tuple[float, float]]:
    for warm in (ours, theirs):
        warm()
    return [(timed(ours), timed(theirs)) for _ in range(table.scaled(3 * READS, least=5))]


def _of(costs: Sequence[Cost], change: Change, size: int, keeper: str) -> Cost:
    return next(c for c in costs if (c.change, c.size, c.keeper) == (change.name, size, keeper))
