"""What five ways to keep an agent's state cost, and what they give: see `ways`.

Time goes to a conversation that grows, all ways in turn, turn by turn. What is left after a kill, and what
several processes do together, is measured by processes that are killed, and by four at once.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from keepstate_testing.servers import Postgres

from bench import sides
from bench.conflicts import conflicts
from bench.harness import Figure, Table, apart
from bench.tiers import tiers
from bench.ways import WAYS, InMemory, Persisted, Stateless, Way, work
from keepstate import sync
from keepstate._finish import finish
from keepstate.stores.base import StoreBase
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement

TURNS = 300
TEXT_BYTES = 200
STEPS = 20
PROCESSES = 4
HERE = "here"
"""The store of ways that keep nothing beyond the process."""


class Case(NamedTuple):
    """A way, and where it keeps what it keeps."""

    name: str
    store: str
    place: str

    @property
    def way(self) -> type[Way]:
        """The way."""
        return WAYS[self.name]

    def session(self, name: str) -> str:
        """Return what a session of it is called, where several ways have one store."""
        return f"{name}-{self.name.replace(' ', '-')}"

    def told(self, what: str, value: float, unit: str, *, of: int = 0) -> Figure:
        """Return a figure of it."""
        return Figure("patterns", self.store, self.name, what, of, round(value, 1), unit)


def patterns(table: Table) -> None:
    """Add what each way costs and give, what conflicts cost, and rows of what must not grow."""
    with TemporaryDirectory() as folder:
        with apart(Postgres(durable=True)) as server:
            cases = _cases(folder, server.url)
            _grow(table, cases)
            _same_at_any_length(table, f"sqlite:///{folder}/lengths.db?durability=normal")
            tiers(table, server.url)
        with Postgres(durable=True) as server:
            for case in _cases(f"{folder}/processes", server.url):
                _complexity(table, case)
                _processes(table, case)
            asyncio.run(conflicts(table, {"SQLite": f"sqlite:///{folder}/c.db", "PostgreSQL": server.url}))


def _cases(folder: str, server: str) -> list[Case]:
    Path(folder).mkdir(exist_ok=True)
    kept = {"SQLite": f"sqlite:///{folder}/{{}}.db", "PostgreSQL": server}
    return [
        Case("stateless", HERE, "memory://"),
        Case("in memory", HERE, f"memory://{Path(folder).name}"),
        *(
            Case(name, store, place.format(name))
            for store, place in kept.items()
            for name, way in WAYS.items()
            if way not in (Stateless, InMemory)
        ),
    ]


# ---- speed


def _grow(table: Table, cases: Sequence[Case]) -> None:
    """Let a conversation grow in all ways, and tell how long a step takes at which length."""
    turns = table.scaled(TURNS, least=40)
    shown = [max(1, turns * part // 20) for part in range(1, 21)]
    with ExitStack() as stack:
        ways = {case: case.way(case.place, case.session("grows")) for case in cases}
        for way in ways.values():
            stack.callback(way.close)
        spent: dict[Case, list[float]] = {case: [] for case in cases}
        for turn in range(1, turns + 1):
            for case, way in ways.items():
                spent[case].append(_timed(way, _said(turn)))
            if turn in shown:
                for case, seconds in spent.items():
                    table.figure(case.told("a step", median(seconds) * 1e6, "us", of=turn))
                    seconds.clear()
        for case, way in ways.items():
            reads = [_read(way) for _ in range(table.scaled(30, least=5))]
            if case.way is not Stateless:
                table.figure(case.told("a read", median(reads) * 1e6, "us", of=turns))
    sent = json.dumps([{"role": "user", "content": _said(turn)} for turn in range(2 * turns)])
    one = json.dumps({"session_id": "session-123", "user_input": _said(1)})
    for name, size in (("stateless", len(sent)), ("persisted", len(one))):
        table.figure(Figure("sending", HERE, name, "sent with a message", turns, size, "B"))


def _said(turn: int) -> str:
    return f"{turn} ".ljust(TEXT_BYTES, "x")


def _timed(way: Way, said: str) -> float:
    begun = time.perf_counter()
    way.step(said)
    return time.perf_counter() - begun


def _read(way: Way) -> float:
    begun = time.perf_counter()
    way.read()
    return time.perf_counter() - begun


def _same_at_any_length(table: Table, place: str) -> None:
    """Add how much longer a step takes in a long conversation than where the context has just been full."""
    turns = table.scaled(TURNS, least=40)
    short, long = Persisted(place, "short"), Persisted(place, "long")
    for way, length in ((short, turns // 2), (long, 2 * turns)):
        for turn in range(length):
            way.step(_said(turn))
    pairs = [(_timed(long, _said(turn)), _timed(short, _said(turn))) for turn in range(turns // 4)]
    table.add(f"patterns: a step at {2 * turns} turns", 1.3, pairs)
    short.close()
    long.close()


# ---- complexity


def _complexity(table: Table, case: Case) -> None:
    """Tell a way's lines, its calls of a store, and what it keeps."""
    calls: list[Measurement] = []
    store = sides.opened(case.place)
    way = case.way(MeasuredStore(store, calls.append), case.session("weighed"))
    for turn in range(STEPS):
        way.step(_said(turn))
    calls.clear()
    for turn in range(STEPS):
        way.step(_said(turn))
    table.figure(case.told("lines", case.way.lines(), "lines"))
    table.figure(case.told("store calls a step", len(calls) / STEPS, "calls"))
    table.figure(case.told("kept a step", _kept_bytes(store, case) / (2 * STEPS), "B"))
    way.close()
    finish(store.close())


def _kept_bytes(store: StoreBase, case: Case) -> int:
    """Return how much a store keeps of the session, keys and values."""
    with sync.open(store) as ks:
        names = [name for name in ks.spaces() if name.endswith(case.session("weighed"))]
        return sum(ks.space(name).size().size_bytes for name in names)


# ---- processes


class _Worker:
    """A process that does steps, forked from one that has imported the ways."""

    def __init__(self, case: Case) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["bench.ways"])
        self._orders, orders = context.Pipe()
        self._process = context.Process(target=work, args=(case.name, case.place, orders))
        self._process.start()
        orders.close()

    def ask(self, what: str, session: str, count: int = 0) -> None:
        """Order steps of a session, or what is known of it."""
        self._orders.send((what, session, count))

    def answers(self, count: int) -> list[int]:
        """Return so many answers."""
        return [self._orders.recv() for _ in range(count)]

    def kill(self) -> int:
        """Kill it as `kill -9` does, and return how many steps it has still acknowledged."""
        self._process.kill()
        self._process.join()
        acknowledged = 0
        with suppress(EOFError, OSError):
            while self._orders.poll():
                self._orders.recv()
                acknowledged += 1
        self.end()
        return acknowledged

    def end(self) -> None:
        """Let it come to its end."""
        self._orders.close()
        self._process.join()
        self._process.close()


def _processes(table: Table, case: Case) -> None:
    """Tell how many steps one process and four do, what all know of, and what a kill leaves."""
    steps = table.scaled(STEPS, least=5)
    workers = [_Worker(case) for _ in range(PROCESSES)]
    try:
        own = [case.session(f"own{number}") for number in range(PROCESSES)]
        for worker, session in zip(workers, own, strict=True):
            _rate([worker], session, steps=1)
        table.figure(case.told("steps a second", _rate(workers[:1], *own, steps=steps), "steps", of=1))
        table.figure(case.told("steps a second", _rate(workers, *own, steps=steps), "steps", of=PROCESSES))
        one = case.session("shared")
        shared = _rate(workers, *[one] * PROCESSES, steps=steps)
        _rate(workers[:1], one, steps=1)  # whose writes are checked, and so tell what others wrote
        table.figure(case.told("steps a second in one session", shared, "steps", of=PROCESSES))
        workers[0].ask("known", one)
        known = workers[0].answers(1)[0] / 2 / (PROCESSES * steps + 1)
        table.figure(case.told("known of what all were told", 100 * known, "%", of=PROCESSES))
        _kill(table, case, workers.pop(), steps)
    finally:
        for worker in workers:
            worker.end()


def _rate(workers: Sequence[_Worker], *sessions: str, steps: int) -> float:
    begun = time.perf_counter()
    for worker, session in zip(workers, sessions, strict=False):
        worker.ask("steps", session, steps)
    for worker in workers:
        worker.answers(steps)
    return len(workers) * steps / (time.perf_counter() - begun)


def _kill(table: Table, case: Case, worker: _Worker, steps: int) -> None:
    """Kill a process at work; tells how much of what it had acknowledged another one reads."""
    worker.ask("steps", case.session("killed"), 1_000_000)
    worker.answers(steps)
    done = steps + worker.kill()
    after = case.way(case.place, case.session("killed"))
    kept = after.count() / 2
    moments = after.moments() / kept if kept else 0
    after.close()
    table.figure(case.told("survives a kill", min(100.0, 100 * kept / done), "%", of=done))
    table.figure(case.told("moments a step", moments, "moments", of=done))
