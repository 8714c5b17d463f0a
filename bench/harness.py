"""Interleaved measuring: both sides in turn, block by block, so that a machine that slows down slows both.

A side does a block of operations, one for each key that it is given, in a loop of its own: neither pays for a
call that the other does not make. Unless a row says otherwise, it is judged by the median of the ratios of
neighbouring blocks. It also has the means of both sides, which count rare work such as checkpoints of a log,
and the 99th percentiles, from blocks of one operation. Times depend on the machine; compare ratios.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil
from statistics import fmean, median
from typing import Any, Literal, TypeVar

from keepstate_testing.servers import Server

ServerT = TypeVar("ServerT", bound=Server)

KEYS = tuple(f"k{number:06}" for number in range(1_000))
VALUES = tuple(random.Random(number).randbytes(250).hex() for number in range(7))
"""A key gets another value each time: where a value stays as it is, SQLite writes and syncs nothing."""
SINGLES = 300
"""How many operations of each side are timed one by one, for the 99th percentile."""

Item = tuple[str, str]
Side = Callable[[Sequence[Item]], None]
AsyncSide = Callable[[Sequence[Item]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Spread:
    """The times of one side: median, mean and 99th percentile; all equal for something that was counted."""

    median: float
    mean: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float], singles: Sequence[float] = ()) -> Spread:
        """Return the spread of values; the 99th percentile is that of `singles`, if there are any."""
        ranked = sorted(singles or values)
        p99 = ranked[min(len(ranked) - 1, ceil(len(ranked) * 0.99) - 1)]
        return cls(round(median(values), 3), round(fmean(values), 3), round(p99, 3))


NOTHING = Spread(0.0, 0.0, 0.0)
"""The other side of a row that has none."""
Judged = Literal["median", "mean", "value"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: What was measured.
        ratio: The number that is judged: ours over raw in time, or raw over ours where the budget is a floor.
            For a row that is judged by value, the value.
        budget: The largest allowed number, or the least.
        at_least: Whether the budget is a floor.
        ours: Our side.
        raw: The other side.
        unit: The unit of both sides: microseconds, bytes, or that of the value.
        judged: By the median of ratios, the ratio of means, or the value.
    """

    name: str
    ratio: float
    budget: float
    at_least: bool
    ours: Spread
    raw: Spread
    unit: str = "us"
    judged: Judged = "median"

    @property
    def holds(self) -> bool:
        """Whether the number is within its budget."""
        return self.ratio >= self.budget if self.at_least else self.ratio <= self.budget

    def as_json(self) -> dict[str, Any]:
        """Return the row for `results.json`."""
        sides = {
            f"{side}{name}": getattr(spread, of)
            for side, spread in (("ours", self.ours), ("raw", self.raw))
            for name, of in (("", "median"), ("_mean", "mean"), ("_p99", "p99"))
        }
        facts = asdict(self)
        return {
            **{name: facts[name] for name in facts if name not in ("ours", "raw")},
            **sides,
            "holds": self.holds,
        }

    def __str__(self) -> str:
        budget = f"{'≥' if self.at_least else '≤'} {self.budget:g}"
        sides = "".join(
            f"{side.median:11,.2f} {self.unit:5}" if side is not NOTHING else f"{'–':>11} {'':5}"
            for side in (self.ours, self.raw)
        )
        tails = f"{self.ours.mean:11,.2f}{self.ours.p99:11,.2f}"
        return (
            f"{self.name:60}{self.ratio:9.2f}{budget:>9}{sides}{tails}{'' if self.holds else '  over budget'}"
        )


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
        return f"{what:60}{self.keeper:12}{self.us:12,.1f} us{self.stored_bytes:12,.0f} B"


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
        return f"{what:60}{self.keeper:20}{self.us:12,.1f} us"


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
        return f"{what:60}{self.who:20}{self.value:12,.1f} {self.unit}"


Shown = Row | Cost | Pace | Figure | str
"""A line of the table."""

PLACES = ((True, ", pinned"), (False, ""))
"""Whether caller and server have a core each, and how the row says so. Callers elsewhere pin nothing."""


@contextmanager
def apart(server: ServerT, *, is_pinned: bool = True) -> Generator[ServerT]:
    """Start a server on a core of its own and call it from another one, as if from another machine.

    Left to the scheduler, a caller and a server that wait for each other share a core or do not, by chance
    and for minutes: the same raw call then takes 33 us or 100, and a ratio says where each side was. Without
    `is_pinned`, the scheduler places both, as for most callers.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if len(cores) < 2 or not is_pinned:
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
        self,
        name: str,
        budget: float,
        ours: Side,
        raw: Side,
        *,
        operations: int,
        blocks: int = 9,
        at_least: bool = False,
    ) -> None:
        """Add how many times longer one of our operations takes than a raw one; the inverse for a floor."""
        given = self._blocks(operations, blocks)
        times = [(_timed(ours, items), _timed(raw, items)) for items in given]
        singles = [(_timed(ours, [item]), _timed(raw, [item])) for item in given[0][:SINGLES]]
        self.add(name, budget, times[1:], at_least=at_least, singles=singles)

    async def compare_async(
        self, name: str, budget: float, ours: AsyncSide, raw: AsyncSide, *, operations: int, blocks: int = 9
    ) -> None:
        """Add the same of awaited operations, one after the other in one loop."""
        given = self._blocks(operations, blocks)
        times = [(await _timed_async(ours, items), await _timed_async(raw, items)) for items in given]
        singles = [
            (await _timed_async(ours, [item]), await _timed_async(raw, [item])) for item in given[0][:SINGLES]
        ]
        self.add(name, budget, times[1:], singles=singles)

    async def compare_throughput(
        self, name: str, budget: float, ours: AsyncSide, raw: Side, *, operations: int, blocks: int = 7
    ) -> None:
        """Add how many times more of our operations are done in a time than raw ones in sequence."""
        times = [
            (await _timed_async(ours, items), _timed(raw, items))
            for items in self._blocks(operations, blocks)
        ]
        self.add(name, budget, times[1:], at_least=True)

    def add(
        self,
        name: str,
        budget: float,
        times: Sequence[tuple[float, float]],
        *,
        at_least: bool = False,
        judged: Judged = "median",
        singles: Sequence[tuple[float, float]] = (),
    ) -> None:
        """Add a row whose pairs of times, ours and raw in seconds, were measured elsewhere.

        Args:
            name: What was measured.
            budget: The largest ratio of ours to raw; with `at_least`, the least of raw to ours.
            times: The pairs.
            at_least: Whether the budget is a floor.
            judged: By the median of the pairs' ratios, or by the ratio of the means.
            singles: Pairs of single operations, for the 99th percentiles. The default is `times`.
        """
        sides = [
            Spread.of([each * 1e6 for each in side], [each * 1e6 for each in single])
            for side, single in zip(
                zip(*times, strict=True), zip(*singles or times, strict=True), strict=True
            )
        ]
        ours, raw = sides
        if judged == "mean":
            ratio = sum(pair[at_least] for pair in times) / sum(pair[not at_least] for pair in times)
        else:
            ratio = median(pair[at_least] / pair[not at_least] for pair in times)
        self._judge(Row(name, round(ratio, 3), budget, at_least, ours, raw, judged=judged))

    def limit(
        self,
        name: str,
        budget: float,
        unit: str,
        values: Sequence[float],
        beside: Sequence[float] = (),
        *,
        at_least: bool = False,
    ) -> None:
        """Add a row that is judged by the median of our values, in their own unit.

        Args:
            name: What was measured.
            budget: The largest value, or with `at_least` the least.
            unit: The unit of budget and values.
            values: Ours.
            beside: The other side's, if there is one.
            at_least: Whether the budget is a floor.
        """
        ours, raw = Spread.of(values), Spread.of(beside) if beside else NOTHING
        self._judge(Row(name, ours.median, budget, at_least, ours, raw, unit, "value"))

    def weigh(self, name: str, budget_kb: float, ours_bytes: float, raw_bytes: float = 0) -> None:
        """Add a row of how many kilobytes something of ours has, the other side's beside it."""
        ours, raw = (Spread(size, size, size) for size in (ours_bytes, raw_bytes))
        kilobytes = round(ours_bytes / 1_000, 3)
        self._judge(Row(name, kilobytes, budget_kb, False, ours, raw if raw_bytes else NOTHING, "B", "value"))

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

    def _judge(self, row: Row) -> None:
        self.rows.append(row)
        self.show(row)


def timed(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _timed(side: Side, items: Sequence[Item]) -> float:
    begun = time.perf_counter()
    side(items)
    return (time.perf_counter() - begun) / len(items)


async def _timed_async(side: AsyncSide, items: Sequence[Item]) -> float:
    begun = time.perf_counter()
    await side(items)
    return (time.perf_counter() - begun) / len(items)
