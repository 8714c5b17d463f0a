"""Interleaved measuring: both sides in turn, block by block, so that a machine that slows down slows both.

A side does a block of operations, one for each key that it is given, in a loop of its own: neither pays for a
call that the other does not make. What is reported is the median of the ratios of neighbouring blocks; the
times beside it are the floor that was met on this machine, and nothing to compare between machines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeVar

from keepstate_testing.servers import Server

ServerT = TypeVar("ServerT", bound=Server)

KEYS = tuple(b"\x01k%06d" % number for number in range(1_000))
VALUES = tuple(bytes([number]) * 500 for number in range(7))
"""A key gets another value each time: where a value stays as it is, SQLite writes and syncs nothing."""

Item = tuple[bytes, bytes]
Side = Callable[[Sequence[Item]], None]
AsyncSide = Callable[[Sequence[Item]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: What was measured.
        ratio: Ours over raw, in time; in throughput where the budget is a floor.
        budget: What the ratio must not pass, or must reach.
        at_least: Whether the budget is a floor.
        ours: Median time of one of our operations; bytes of it, where these are weighed.
        raw: That of the other side.
        unit: Of both: microseconds or bytes.
    """

    name: str
    ratio: float
    budget: float
    at_least: bool
    ours: float
    raw: float
    unit: str = "us"

    @property
    def holds(self) -> bool:
        """Whether the ratio is within its budget."""
        return self.ratio >= self.budget if self.at_least else self.ratio <= self.budget

    def as_json(self) -> dict[str, Any]:
        """Return the row for `results.json`."""
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a change cost whom: one line of the page about costs.

    Attributes:
        store: Where it was kept.
        change: What was done.
        size: To how many messages, or keys.
        keeper: Who kept it.
        us: Median time of one change and commit, in microseconds.
        stored_bytes: What each commit added, keys included.
        turns: How many there were.
    """

    store: str
    change: str
    size: int
    keeper: str
    us: float
    stored_bytes: float
    turns: int

    def as_json(self) -> dict[str, Any]:
        """Return the line for `results.json`."""
        return asdict(self)

    def __str__(self) -> str:
        what = f"{self.store}: {self.change} ({self.size:,})"
        return f"{what:52}{self.keeper:12}{self.us:12,.1f} us{self.stored_bytes:12,.0f} B"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one call took whom.

    Attributes:
        store: Where.
        call: What was done.
        keeper: By whom.
        us: Median time of a call over blocks of calls, in microseconds.
        calls: How many there were.
    """

    store: str
    call: str
    keeper: str
    us: float
    calls: int

    def as_json(self) -> dict[str, Any]:
        """Return the line for `results.json`."""
        return asdict(self)

    def __str__(self) -> str:
        what = f"{self.store}: {self.call}"
        return f"{what:52}{self.keeper:20}{self.us:12,.1f} us"


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that was counted, weighed or timed, of whatever kind, and has no budget.

    Attributes:
        group: Of which question it is one.
        store: Where.
        who: Of whom or what.
        what: What was measured.
        of: At which length, or by how many; 0 where that says nothing.
        value: How much.
        unit: Of what.
    """

    group: str
    store: str
    who: str
    what: str
    of: int
    value: float
    unit: str

    def as_json(self) -> dict[str, Any]:
        """Return the line for `results.json`."""
        return asdict(self)

    def __str__(self) -> str:
        what = f"{self.store}: {self.what}" + (f" ({self.of:,})" if self.of else "")
        return f"{what:52}{self.who:20}{self.value:12,.1f} {self.unit}"


Shown = Row | Cost | Pace | Figure | str
"""A line of the table."""


@contextmanager
def apart(server: ServerT) -> Generator[ServerT]:
    """Start a server on a core of its own and call it from another one, as if from another machine.

    Left to the scheduler, a caller and a server that wait for each other share a core or do not, by chance
    and for minutes: the same raw call then takes 33 us or 100, and a ratio says where each side was.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if len(cores) < 2:
        with server:
            yield server
        return
    own = max(cores)
    os.sched_setaffinity(0, {own})
    try:
        with server:
            os.sched_setaffinity(0, {min(cores)})
            try:
                yield server
            finally:
                os.sched_setaffinity(0, cores)
    finally:
        os.sched_setaffinity(0, cores)


class Table:
    """Measures rows, each in so many blocks of so many operations.

    Args:
        scale: Shrinks or stretches the number of operations.
        show: Called with each line when it is measured, and with what a reader of the figures must know.
    """

    def __init__(self, scale: float, show: Callable[[Shown], None]) -> None:
        self._scale, self.show = scale, show
        self.rows: list[Row] = []
        self.costs: list[Cost] = []
        self.paces: list[Pace] = []
        self.figures: list[Figure] = []

    def _blocks(self, operations: int, blocks: int) -> list[list[Item]]:
        """Return the keys and values of each block; the first one warms up."""
        wanted = max(8 if self.is_quick else 64, int(operations * self._scale))
        blocks = min(blocks, 1) if self.is_quick else blocks
        return [
            [(KEYS[number % len(KEYS)], VALUES[(number + block) % len(VALUES)]) for number in range(wanted)]
            for block in range(blocks + 1)
        ]

    def compare(
        self, name: str, budget: float, ours: Side, raw: Side, *, operations: int, blocks: int = 9
    ) -> None:
        """Add how many times longer one of our operations takes than a raw one."""
        times = [(_timed(ours, items), _timed(raw, items)) for items in self._blocks(operations, blocks)]
        self._add(name, budget, times[1:], at_least=False)

    async def compare_async(
        self, name: str, budget: float, ours: AsyncSide, raw: AsyncSide, *, operations: int, blocks: int = 9
    ) -> None:
        """Add the same of awaited operations, one after the other in one loop."""
        times = [
            (await _timed_async(ours, items), await _timed_async(raw, items))
            for items in self._blocks(operations, blocks)
        ]
        self._add(name, budget, times[1:], at_least=False)

    async def compare_throughput(
        self, name: str, budget: float, ours: AsyncSide, raw: Side, *, operations: int, blocks: int = 7
    ) -> None:
        """Add how many times more of our operations are done in a time than raw ones in sequence."""
        times = [
            (await _timed_async(ours, items), _timed(raw, items))
            for items in self._blocks(operations, blocks)
        ]
        self._add(name, budget, times[1:], at_least=True)

    def add(self, name: str, budget: float, times: Sequence[tuple[float, float]]) -> None:
        """Add a row whose pairs of times, ours and raw in seconds, were measured elsewhere."""
        self._add(name, budget, times, at_least=False)

    def add_at_least(self, name: str, budget: float, times: Sequence[tuple[float, float]]) -> None:
        """Add a row of how many times longer the other side takes, which is to be so many at least."""
        self._add(name, budget, times, at_least=True)

    def weigh(self, name: str, budget_kb: float, ours_bytes: float, raw_bytes: float) -> None:
        """Add a row of how many kilobytes something of ours has, the other side's beside it."""
        self._judge(Row(name, round(ours_bytes / 1_000, 3), budget_kb, False, ours_bytes, raw_bytes, "B"))

    def tell(self, costs: Sequence[Cost]) -> None:
        """Add lines that have no budget."""
        self.costs += costs
        for cost in costs:
            self.show(cost)

    def time(self, pace: Pace) -> None:
        """Add a line of how long a call took whom."""
        self.paces.append(pace)
        self.show(pace)

    def figure(self, figure: Figure) -> None:
        """Add a line of any kind."""
        self.figures.append(figure)
        self.show(figure)

    @property
    def is_quick(self) -> bool:
        """Whether only to show that it runs, in as few operations as give every figure."""
        return self._scale < 1

    def scaled(self, count: int, *, least: int) -> int:
        """Return how often to do what is worth doing so often."""
        return max(least, round(count * self._scale))

    def _add(self, name: str, budget: float, times: Sequence[tuple[float, float]], *, at_least: bool) -> None:
        ratio = median((raw / ours) if at_least else (ours / raw) for ours, raw in times)
        ours_us, raw_us = (median(side) * 1e6 for side in zip(*times, strict=True))
        self._judge(Row(name, round(ratio, 3), budget, at_least, round(ours_us, 3), round(raw_us, 3)))

    def _judge(self, row: Row) -> None:
        self.rows.append(row)
        self.show(row)


def _timed(side: Side, items: Sequence[Item]) -> float:
    begun = time.perf_counter()
    side(items)
    return (time.perf_counter() - begun) / len(items)


async def _timed_async(side: AsyncSide, items: Sequence[Item]) -> float:
    begun = time.perf_counter()
    await side(items)
    return (time.perf_counter() - begun) / len(items)
