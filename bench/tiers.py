"""What reading through tiers takes beside reading from PostgreSQL, by whether the server is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median

from bench import sides
from bench.harness import KEYS, VALUES, Figure, Table, timed
from keepstate import TieredStore, sync
from keepstate._finish import finish
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.wrappers.wrapper import StoreWrapper

SIZES = (500, 100_000)
BLOCKS, CALLS = 9, 40
STRAIGHT, VERIFIED, FRESH = "straight", "verified", "fresh"
"""From the server; remembered, and the server is asked whether it is so still; remembered within its time."""


def tiers(table: Table, server: str) -> None:
    """Add how much faster what is remembered is read than PostgreSQL answers, and how long reads take."""
    with ExitStack() as stack:
        stores: dict[str, StoreBase | StoreWrapper] = {
            STRAIGHT: sides.opened(server),
            VERIFIED: finish(TieredStore(cold=server, mode="blocking").open()),
            FRESH: finish(TieredStore(cold=server, max_staleness_s=3600, mode="blocking").open()),
        }
        for store in stores.values():
            stack.callback(_close, store)
        _hot(table, stores)
        for size in SIZES:
            _documents(table, stores, size)


def _hot(table: Table, stores: dict[str, StoreBase | StoreWrapper]) -> None:
    pairs = zip(KEYS[: table.scaled(200, least=20)], VALUES * 50, strict=False)
    writes = [Put(b"\x01" + key.encode(), value.encode()) for key, value in pairs]
    keys = [write.key for write in writes]
    finish(stores[STRAIGHT].apply([Batch(sides.SPACE, writes)]))

    def spent(store: StoreBase | StoreWrapper) -> float:
        begun = time.perf_counter()
        for key in keys:
            finish(store.read(sides.SPACE, [key]))
        return (time.perf_counter() - begun) / len(keys)

    spent(stores[FRESH])

    times = [(spent(stores[FRESH]), spent(stores[STRAIGHT])) for _ in range(BLOCKS)]
    table.add("tiered: hot read, by PostgreSQL's", 20, times, at_least=True)
    for name, store in stores.items():
        table.figure(_figure(name, "an entry", 500, median(spent(store) for _ in range(BLOCKS))))


def _documents(table: Table, stores: dict[str, StoreBase | StoreWrapper], size: int) -> None:
    """Tell how long a document's reading takes, each way in turn."""
    spent: dict[str, list[float]] = {name: [] for name in stores}
    with ExitStack() as stack:
        handles = {name: stack.enter_context(sync.open(store)) for name, store in stores.items()}
        handles[STRAIGHT].space("tiers").documents.put(f"{size}", "x" * size)
        for _ in range(BLOCKS + 1):
            for name, ks in handles.items():
                reads = partial(_reads, ks.space("tiers").documents.get, f"{size}")
                spent[name].append(timed(reads))
    for name, times in spent.items():
        table.figure(_figure(name, "a document", size, median(times[1:]) / CALLS))


def _close(store: StoreBase | StoreWrapper) -> None:
    finish(store.close())


def _reads(get: Callable[[str], object], key: str) -> None:
    for _ in range(CALLS):
        assert get(key) is not None


def _figure(who: str, what: str, size: int, seconds: float) -> Figure:
    return Figure("tiers", "PostgreSQL", who, what, size, round(seconds * 1e6, 1), "us")
