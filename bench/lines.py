"""Searches of a history of 100,000 commits on SQLite, PostgreSQL and Redis: reads and milliseconds.

The history is made once, in memory, and imported into each store. Each search has a handle that has read
nothing; the same search again has what it read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from keepstate_testing.servers import Postgres, Redis

from bench import sides
from bench.harness import Figure, Table, apart, timed
from keepstate import sync
from keepstate._finish import finish
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement

COMMITS, BY_TRANSACTION = 100_000, 400
SEARCHES = 40
PLANS = 20
"""How often `plan` changes; it is the key whose last changes are asked for."""
SPACE = "long"
ROWS = 90_000

Search = Callable[[sync.History], object]


def lines(table: Table) -> None:
    """Add reads and times of each kind of search, on each store."""
    count = table.scaled(COMMITS, least=2_000)
    with TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        with sync.open("memory://") as ks:
            build(ks, count)
            ks.space(SPACE).history.export_bundle(bundle)
        _search(table, "SQLite", f"sqlite:///{folder}/ours.db?durability=normal", bundle, count)
        with apart(Postgres(durable=True)) as server:
            _search(table, "PostgreSQL", server.url, bundle, count)
        with apart(Redis()) as server:
            _search(table, "Redis", server.url, bundle, count)
        _rows_of_a_list(table, f"sqlite:///{folder}/list.db?durability=normal")


def build(ks: sync.Keepstate, count: int) -> None:
    """Commit appends to `messages`; some commits change `plan`."""
    space = ks.space(SPACE)
    for begin in range(0, count, BY_TRANSACTION):
        with space.transaction() as tx:
            for number in range(begin + 1, min(begin + BY_TRANSACTION, count) + 1):
                if number % (count // PLANS):
                    tx.history.append("messages", f"message {number}")
                    continue
                draft = tx.history.begin(load=False)
                draft["plan"] = number
                draft.commit()


def _search(table: Table, store: str, url: str, bundle: Path, count: int) -> None:
    reads: list[Measurement] = []
    measured = MeasuredStore(sides.opened(url), reads.append)
    with sync.open(measured) as ks:
        seconds = timed(lambda: ks.space(SPACE).history.import_bundle(bundle))
        table.figure(Figure("lines", store, "keepstate", "import of a bundle", count, round(seconds, 1), "s"))
        history = ks.space(SPACE).history
        dice = random.Random(5)
        numbers = [
            1,
            2,
            count - 1,
            *(dice.randrange(1, count) for _ in range(table.scaled(SEARCHES, least=5))),
        ]
        times = [history.find(f"main#{number}").created_at for number in numbers]
        for name, refs in (
            ("main#n", [f"main#{number}" for number in numbers]),
            ("main~n", [f"main~{number}" for number in numbers]),
            ("by time", times),
        ):
            searches = [lambda history, ref=ref: history.find(ref) for ref in refs]
            found = [_measure(ks, reads, search) for search in searches]
            at = f"{name} at {count:,}, {store}"
            table.limit(f"{at}: most reads", 40, "reads", [max(first for first, _, _ in found)])
            table.limit(f"{at}: mean reads", 29, "reads", [fmean(first for first, _, _ in found)])
            table.limit(f"{at}: again", 0, "reads", [max(again for _, again, _ in found)])
            milliseconds = [each for _, _, each in found]
            if store == "SQLite":
                table.limit(at, 5, "ms", milliseconds)
            else:
                table.figure(
                    Figure("lines", store, "keepstate", name, count, round(fmean(milliseconds), 2), "ms")
                )
        _timed_only(table, ks, reads, f'blame(("messages", 0)) at {count:,}, {store}', 100, _blame)
        _timed_only(table, ks, reads, f"last {PLANS} changes at {count:,}, {store}", 50, _changes)
    finish(measured.close())


def _measure(ks: sync.Keepstate, reads: Sequence[Measurement], search: Search) -> tuple[int, int, float]:
    """Return the reads of a search by a new handle, those of the same search again, and its milliseconds."""
    history = ks.space(SPACE).history
    before = len(reads)
    seconds = timed(lambda: search(history))
    first = len(reads) - before
    search(history)
    return first, len(reads) - before - first, seconds * 1e3


def _timed_only(
    table: Table, ks: sync.Keepstate, reads: Sequence[Measurement], name: str, budget: float, search: Search
) -> None:
    found = [_measure(ks, reads, search) for _ in range(table.scaled(9, least=2))]
    table.limit(name, budget, "ms", [milliseconds for _, _, milliseconds in found])


def _blame(history: sync.History) -> None:
    assert history.blame(("messages", 0)).commit.number == 1


def _changes(history: sync.History) -> None:
    assert len(list(history.changes_of("plan", limit=PLANS))) == PLANS


def _rows_of_a_list(table: Table, url: str) -> None:
    """Add how long 100 rows of a list take, by a process that has read nothing of it."""
    count = table.scaled(ROWS, least=9_000)
    rows = [{"number": number, "text": f"row {number} " * 4} for number in range(count)]
    with sync.open(url) as ks:
        ks.space("list").history.commit({"rows": rows})
    middle = count // 2

    def read() -> float:
        with sync.open(url) as ks:
            history = ks.space("list").history
            history.find()  # the store is open, and nothing of the state is read
            found: list[object] = []
            seconds = timed(
                lambda: found.extend(history.checkout(load=False).slice("rows", middle, middle + 100))
            )
            assert found == rows[middle : middle + 100]
            return seconds * 1e3

    table.limit(
        f"100 rows of a list of {count:,}", 10, "ms", [read() for _ in range(table.scaled(15, least=3))]
    )
