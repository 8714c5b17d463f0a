"""Documents put by one process and by four at once, each into a space of its own in one store."""

from __future__ import annotations

import multiprocessing
from functools import partial
from multiprocessing.pool import Pool
from statistics import median

from bench import sides
from bench.harness import KEYS, VALUES, Figure, Table, timed
from keepstate import sync

PROCESSES = 4
ROUNDS = 5

_opened: dict[str, sync.Keepstate] = {}
"""The handle of a process that puts; it ends with the process."""


def processes(table: Table, store: str, url: str) -> None:
    """Tell how many documents one process puts in a second, and how many four put at once, in turn."""
    each = table.scaled(400, least=20)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.processes"])
    with context.Pool(PROCESSES) as pool:
        rates: dict[int, list[float]] = {1: [], PROCESSES: []}
        for _ in range(table.scaled(ROUNDS, least=1) + 1):
            for count, told in rates.items():
                seconds = timed(partial(_put_at_once, pool, url, count, each))
                told.append(count * each / seconds)
        pool.close()
        pool.join()
    for count, found in rates.items():
        table.figure(
            Figure(
                "processes",
                store,
                "keepstate",
                "documents put a second",
                count,
                round(median(found[1:])),
                "puts",
            )
        )


def _put_at_once(pool: Pool, url: str, count: int, each: int) -> None:
    pool.starmap(
        _put, [(url, f"{sides.SPACE}/process {number}", each) for number in range(count)], chunksize=1
    )


def _put(url: str, space: str, count: int) -> None:
    if url not in _opened:
        _opened[url] = sync.open(url)
    documents = _opened[url].space(space).documents
    for number in range(count):
        documents.put(KEYS[number % len(KEYS)], VALUES[number % len(VALUES)])
