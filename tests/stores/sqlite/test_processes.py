"""Several processes on one file: killed, forked, and none of them starving."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import ClosedError, KeepstateError, UnsupportedError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Put
from keepstate.stores.sqlite import database as databases
from tests.processes import Program
from tests.stores.sqlite.conftest import Opens

# Newer Pythons warn of every fork of a process with threads: here that is the subject.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

COUNTER, A = b"\x02counter", b"\x01a"

COUNTS_UP = """
import sys
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.sqlite import SqliteStore
store = finish(SqliteStore(sys.argv[1], durability=sys.argv[2], runner=ThreadRunner()).open())
number = 0
while True:
    number += 1
    finish(store.apply([Batch("s", [Put(b"\\2counter", b"%d" % number), Put(b"\\1large", bytes(20_000))])]))
    print(number, flush=True)
"""

INCREMENTS = """
import sys, time
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.protocol import Applied, Batch, Check, Put
from keepstate.stores.sqlite import SqliteStore
KEY = b"\\2counter"
store = finish(SqliteStore(sys.argv[1], durability=sys.argv[2], runner=ThreadRunner()).open())
print("ready", flush=True)
input()
longest_s = 0.0
for _ in range(500):
    began_s = time.monotonic()
    while True:
        entry = finish(store.read("s", [KEY])).entries[0]
        count, version = (int(entry.value), entry.version) if entry else (0, 0)
        batch = Batch("s", [Put(KEY, b"%d" % (count + 1))], [Check(KEY, version=version)])
        [outcome] = finish(store.apply([batch]))
        if isinstance(outcome, Applied):
            break
    longest_s = max(longest_s, time.monotonic() - began_s)
finish(store.close())
print(longest_s, flush=True)
"""


@contextmanager
def started(script: str, *arguments: object) -> Generator[tuple[Program, IO[str], IO[str]]]:
    """Start a process and yield it with its standard input and output."""
    with Program("-c", script, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, process.stdin, process.stdout
        finally:
            process.kill()


def count(store: StoreBase) -> int:
    entry = finish(store.read("s", [COUNTER])).entries[0]
    return int(entry.value) if entry else 0


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_killed_writer_loses_no_acknowledged_write(path: Path, opened: Opens, durability: str) -> None:
    """Each second write is large, so that the log is moved while it runs."""
    for _ in range(4):
        with started(COUNTS_UP, path, durability) as (writer, _, said):
            lines = [said.readline() for _ in range(200)]
            writer.send_signal(signal.SIGKILL)
            acknowledged = int([*lines, *said][-1])

        store = opened(durability=durability)
        assert count(store) in {acknowledged, acknowledged + 1}
        assert isinstance(finish(store.apply([Batch("s", [Put(A, b"")])]))[0], Applied)
        finish(store.close())


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_four_processes_lose_no_increment(path: Path, opened: Opens, durability: str) -> None:
    race(path, durability)

    assert count(opened(durability=durability)) == 2_000


@pytest.mark.timed
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_no_increment_of_four_processes_waits_half_a_second(
    path: Path, opened: Opens, durability: str
) -> None:
    """A disk that stalls now and then is no starvation: that comes back every time."""
    longest_s = [1.0]
    for turn in range(1, 4):
        if max(longest_s) >= 0.5:
            longest_s = race(path, durability)
            assert count(opened(durability=durability)) == turn * 2_000

    assert max(longest_s) < 0.5


def race(path: Path, durability: str) -> list[float]:
    """Let four processes increment at once, and return how long each one's longest transaction took."""
    with ExitStack() as stack:
        writers = [stack.enter_context(started(INCREMENTS, path, durability)) for _ in range(4)]
        for _, _, said in writers:
            assert said.readline() == "ready\n"
        for _, told, _ in writers:
            told.write("\n")
            told.flush()
        return [float(said.readline()) for _, _, said in writers]


def test_a_batch_after_one_of_another_process_is_judged_by_what_that_left(path: Path, opened: Opens) -> None:
    """A process remembers heads, sizes and versions from one batch to the next."""
    store = opened()
    mine = [Put(COUNTER, b"1"), Put(A, b"1")]
    finish(store.apply([Batch("s", mine, [Check(A, version=0), Check(COUNTER, version=0)])]))
    with started(COUNTS_UP, path, "full") as (writer, _, said):
        assert said.readline() == "1\n"
        writer.send_signal(signal.SIGKILL)
        said.read()

    [refused] = finish(store.apply([Batch("s", [Put(A, b"2")], [Check(COUNTER, version=1)])]))
    [applied] = finish(store.apply([Batch("s", [Put(A, b"2")])]))
    assert isinstance(refused, Conflict)
    assert isinstance(applied, Applied)
    assert applied.revision == refused.actual + 1 >= 3


# ---- forks


def in_a_child(work: Callable[[], str]) -> str:
    """Run work in a forked process and return what it says; an error's type where it raised one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            said = work()
        except KeepstateError as error:
            said = type(error).__name__
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_may_not_use_its_parent_s_handle(opened: Opens) -> None:
    store = opened()
    finish(store.apply([Batch("s", [Put(COUNTER, b"1")])]))

    assert in_a_child(lambda: str(count(store))) == ClosedError.__name__
    assert in_a_child(lambda: str(finish(store.close()))) == ClosedError.__name__
    assert count(store) == 1


def test_a_forked_child_opens_the_file_anew_and_both_go_on(opened: Opens) -> None:
    store = opened()

    def add(to: StoreBase) -> None:
        seen = count(to)
        batch = Batch("s", [Put(COUNTER, b"%d" % (seen + 1))])
        assert isinstance(finish(to.apply([batch]))[0], Applied)

    def child() -> str:
        mine = opened()
        for _ in range(50):
            add(mine)
        finish(mine.close())
        return str(count(finish(store.twin(ThreadRunner()).open())))

    add(store)
    assert in_a_child(child) == "51"
    add(store)

    assert count(store) == 52


def test_a_child_s_end_takes_no_lock_from_its_parent(path: Path, opened: Opens) -> None:
    """A stranger that finds no lock would take itself for the last one, and remove the log."""
    store = opened()
    finish(store.apply([Batch("s", [Put(COUNTER, b"1")])]))
    in_a_child(lambda: str(finish(opened().close())))
    script = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM entries').fetchall(); c.close()"
    )
    subprocess.run([sys.executable, "-c", script, path], check=True, timeout=60)

    [outcome] = finish(store.apply([Batch("s", [Put(COUNTER, b"2")])]))

    assert isinstance(outcome, Applied)


def test_a_fork_waits_for_the_threads_that_are_at_work(opened: Opens) -> None:
    store, ended = opened(durability="normal"), threading.Event()

    def work() -> None:
        while not ended.is_set():
            finish(store.apply([Batch("s", [Put(COUNTER, b"%d" % (count(store) + 1))])]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_a_child(lambda: str(count(opened(durability="normal")) > 0)) == "True"
    finally:
        ended.set()
        for thread in threads:
            thread.join()

    assert count(store) > 0


def test_a_fork_amid_a_long_read_says_so_in_the_child(
    opened: Opens, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "FORK_WAIT_S", 0.01)
    store = opened()
    database = databases.acquire(str(path), store.capabilities.durability, 1.0)
    entered, may_end = threading.Event(), threading.Event()

    def read(_: object) -> None:
        entered.set()
        may_end.wait(60)

    reader = threading.Thread(target=database.read, args=(read,))
    reader.start()
    entered.wait(60)

    said = in_a_child(lambda: str(opened()))

    may_end.set()
    reader.join()
    databases.release(database)
    assert said == UnsupportedError.__name__
