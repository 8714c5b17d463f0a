"""An event loop reads single entries by itself, and only while that never makes it wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keepstate._runner import TaskRunner
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.sqlite.readers import LoopBudget
from keepstate.testing.clocks import ManualClock

A = b"\x01a"
RECOVERY = """
import fcntl, os, struct, sys
file = os.open(sys.argv[1], os.O_RDWR)
for byte in (120, 122):  # SQLite's locks of the writer and of a recovery
    fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
header = os.pread(file, 96, 0)
os.pwrite(file, bytes(96), 0)
print("held", flush=True)
sys.stdin.readline()
os.pwrite(file, header, 0)
"""
"""A process that recovers the log of a database for as long as its input is open."""


class Hops:
    """Counts the calls of a loop that run in a thread, while the block runs."""

    def __init__(self, planting: pytest.MonkeyPatch) -> None:
        self.count = 0
        loop = asyncio.get_running_loop()
        run = loop.run_in_executor

        def counted(*given: Any) -> Any:
            self.count += 1
            return run(*given)

        planting.setattr(loop, "run_in_executor", counted)


async def open_with_entry(path: Path, **options: Any) -> SqliteStore:
    store = await SqliteStore(path, runner=TaskRunner(), **options).open()
    await store.apply([Batch("s", [Put(A, b"1")])])
    await store.read("s", [A])  # opens a connection
    return store


def test_a_read_of_few_entries_needs_no_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[int]:
        store, counts = await open_with_entry(path), list[int]()
        hops = Hops(monkeypatch)
        for keys in ([A], [b"\x01%d" % n for n in range(5)]):
            before = hops.count
            for _ in range(20):
                await store.read("s", keys)
            counts.append(hops.count - before)
        await store.close()
        return counts

    assert asyncio.run(run()) == [0, 20]


def test_a_read_sees_each_commit_of_another_handle(path: Path) -> None:
    async def run() -> list[bytes]:
        store, found = await open_with_entry(path), list[bytes]()
        other = await SqliteStore(path, runner=TaskRunner()).open()
        for number in range(5):
            await other.apply([Batch("s", [Put(A, b"%d" % number)])])
            entry = (await store.read("s", [A])).entries[0]
            found.append(b"" if entry is None else entry.value)
        await other.close()
        await store.close()
        return found

    assert asyncio.run(run()) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_file_of_another_host_is_never_read_by_the_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> int:
        store = await open_with_entry(path, unsafe_fs=True)
        hops = Hops(monkeypatch)
        await store.read("s", [A])
        await store.close()
        return hops.count

    assert asyncio.run(run()) == 2, "one for the read, one for the end"


def test_a_locked_file_does_not_hold_the_loop(path: Path) -> None:
    async def run() -> bytes:
        store = await open_with_entry(path)
        command = [sys.executable, "-c", RECOVERY, f"{path}-shm"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as recovering:
            assert recovering.stdout is not None
            assert recovering.stdout.readline() == b"held\n"
            reading = asyncio.create_task(store.read("s", [A]))
            await asyncio.sleep(0.05)
            assert not reading.done()
            recovering.communicate(b"\n")
        entry = (await reading).entries[0]
        await store.close()
        return b"" if entry is None else entry.value

    assert asyncio.run(run()) == b"1"


def test_a_damaged_entry_is_an_error_in_the_loop_too(path: Path) -> None:
    async def run() -> None:
        store = await open_with_entry(path)
        store._open_database._writer._execute("UPDATE entries SET value = x'32'").fetchall()
        with pytest.raises(CorruptError, match="the entry of"):
            await store.read("s", [A])
        await store.close()

    asyncio.run(run())


def test_reads_that_wait_go_to_threads_until_the_loop_has_made_up_for_them() -> None:
    clock = ManualClock()
    budget = LoopBudget(clock)

    def read(ms: int, *, waits: bool) -> bool:
        is_allowed = budget.begin()
        if waits:
            time.sleep(0.001)  # a wait that the system counts
        clock.advance(ms)
        budget.end()
        return is_allowed

    assert [read(60, waits=True) for _ in range(3)] == [True, True, False]
    clock.advance(5_000)
    assert [read(60, waits=True) for _ in range(3)] == [True, True, False]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the waits of a thread")
def test_time_that_other_processes_had_the_processor_is_not_counted() -> None:
    clock = ManualClock()
    budget = LoopBudget(clock)
    allowed = list[bool]()

    for _ in range(5):
        allowed.append(budget.begin())
        clock.advance(1_000)
        budget.end()

    assert all(allowed)
