"""How soon a watch tells of another process's change on PostgreSQL: at work, and after idle time."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection

from keepstate_testing.servers import Postgres

from bench.harness import Table
from keepstate import sync

SPACE, KEY = "watched", "plan"
WARM, IDLE = 200, 8
IDLE_S = 2.0
"""How long nothing happens before a change."""


def watches(table: Table) -> None:
    """Add the milliseconds from the call of a put in one process to the change in another one's watch."""
    with Postgres(durable=True) as server, sync.open(server.url) as ks:
        documents = ks.space(SPACE).documents
        documents.put(KEY, -1)
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=_watch, args=(server.url, theirs))
        process.start()
        theirs.close()
        ours.recv()

        def delay(pause_s: float) -> float:
            time.sleep(pause_s)
            begun_ns = time.monotonic_ns()  # one clock for all processes of a machine
            documents.put(KEY, begun_ns)
            return (int(ours.recv()) - begun_ns) / 1e6

        delay(0.0)
        at_work = [delay(0.01) for _ in range(table.scaled(WARM, least=10))]
        idle_s = 0.2 if table.is_quick else IDLE_S
        idle = [delay(idle_s) for _ in range(table.scaled(IDLE, least=2))]
        ours.close()
        process.terminate()
        process.join()
    table.limit("watch on PostgreSQL, other process", 3, "ms", at_work)
    table.limit("the same, after idle time", 10, "ms", idle)


def _watch(url: str, told: Connection) -> None:
    """Tell at which moment each change arrives; a process of the bench runs it."""
    with sync.open(url) as ks, ks.space(SPACE).documents.watch(KEY) as changes:
        told.send(0)
        for _ in changes:
            told.send(time.monotonic_ns())
