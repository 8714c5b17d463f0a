"""Counts that do not depend on the machine: round trips of public calls, and bytes written for 500 bytes.

`tests/architecture/test_costs.py` defines the calls and holds all their counts; here those with a budget are
shown beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import others
from bench.harness import VALUES, Figure, Table
from bench.savers import OURS, Conversation, opened, texts
from keepstate import sync
from tests.architecture.test_costs import CALLS, Cost, costs_of, counted_stores

BUDGETS: dict[str, tuple[int, int | None]] = {
    "documents.update": (1, None),
    "three updates in a transaction": (2, None),
    "checkout of 20 keys": (1, 2),
    "begin": (1, None),
    "draft.commit": (1, None),
    "a turn of a Session": (4, None),
    "queue.put, claim and complete": (3, None),
    "queue.counts": (1, None),
    "space.size": (1, None),
    "saver.list(10)": (3, None),
}
"""Round trips of a call, warm and cold; None where cold has no budget."""
PUTS = 1_000
IO = Path("/proc/self/io")


def counts(table: Table) -> None:
    """Add the round trips of calls and the bytes written for 500; show the statements of each call."""
    for row in CALLS:
        with TemporaryDirectory() as folder, counted_stores(Path(folder)) as open_store:
            first, *_, last = costs_of(row, open_store)
        for when, cost, budget in zip(
            ("warm", "cold"), (last, first), BUDGETS.get(row.name, (None, None)), strict=True
        ):
            if budget is not None:
                table.limit(f"{row.name}, {when}", budget, "trips", [cost.trips])
            _show(table, row.name, when, cost)
    if IO.exists():
        _written(table)


def _show(table: Table, name: str, when: str, cost: Cost) -> None:
    for what, value in cost._asdict().items():
        if value is not None:
            table.figure(Figure("counts", "SQLite", when, f"{name}: {what}", 0, value, ""))


def _written(table: Table) -> None:
    """Add how many bytes are written for 500 bytes, mean of a run that includes checkpoints of the log."""
    with TemporaryDirectory() as folder:
        with sync.open(f"sqlite:///{folder}/put.db?durability=normal") as ks:
            space = ks.space("puts")

            def put(number: int) -> None:
                space.documents.put(f"{number:06}", f"{number} {VALUES[number % len(VALUES)]}")

            def append(number: int) -> None:
                space.history.append("messages", f"{number} {VALUES[number % len(VALUES)]}")

            _add(table, "documents.put", put)
            _add(table, "history.append", append)
        if not others.missing("SqliteSaver"):
            with opened(OURS, folder) as saver:
                talk = Conversation(saver)
                said = texts(table.scaled(PUTS, least=50))
                _add(table, "LangGraph put", lambda _: talk.put(next(said)))


def _add(table: Table, name: str, call: Callable[[int], object]) -> None:
    puts = table.scaled(PUTS, least=50)
    before = _bytes()
    for number in range(puts):
        call(number)
    table.limit(f"{name} of 500 B: written to disk", 22, "KB", [(_bytes() - before) / puts / 1e3])


def _bytes() -> int:
    lines = dict(line.split(": ") for line in IO.read_text(encoding="ascii").splitlines())
    return int(lines["wchar"])
