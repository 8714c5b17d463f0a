"""One process has the journal; another is told who, and gets it when that one is gone, however it went."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate.errors import ClosedError, StoreUnavailableError
from keepstate.stores.protocol import Put
from tests.stores.file.disks import A, opened, put, revision, values

ROOT = Path(__file__).parents[3]


@contextmanager
def holder(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.processes.hold_journal", str(path), how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_is_told_who_holds_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with holder(path, "hold") as process:
        assert said(process) == "holds"

        with pytest.raises(StoreUnavailableError, match=f"open in process {process.pid}") as caught:
            opened(path)

    assert "sqlite://" in str(caught.value)
    finish(opened(path).close())


def test_killing_the_holder_loses_no_acknowledged_write(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    last = 0
    for _ in range(3):
        with holder(path, "write") as process:
            assert said(process) == "holds"
            for _ in range(100):
                last = int(said(process))
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate()
        whole_lines = rest[: rest.rfind("\n") + 1]
        acknowledged = [last, *map(int, whole_lines.split())][-1]

        store = opened(path)

        found, [a, b] = revision(store), values(store)
        assert found >= acknowledged
        assert a is not None
        assert b == a * 1_000
        finish(store.close())


def test_a_forked_child_does_not_keep_the_journal_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with holder(path, "fork") as process:
        words = {said(process) for _ in range(3)}
        child = int((words - {"holds", "left"}).pop())
        try:
            process.send_signal(signal.SIGKILL)
            process.wait()

            store = opened(path)

            assert put(store, Put(A, b"1")) == 1
            finish(store.close())
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_cannot_open_what_its_parent_holds(tmp_path: Path) -> None:
    store = opened(tmp_path / "journal")
    put(store, Put(A, b"1"))

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Python warns of forks beside threads; the child only asks and leaves
        child = os.fork()
    if child == 0:  # pragma: no cover  runs in the child
        verdict = 1
        try:
            opened(tmp_path / "journal")
        except StoreUnavailableError as error:
            verdict = 0 if f"open in process {os.getppid()}" in str(error) else 2
        finally:
            os._exit(verdict)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    put(store, Put(A, b"2"))
    finish(store.close())


def test_the_last_handle_lets_the_journal_go(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first, second = opened(path), opened(path)
    finish(first.close())
    with pytest.raises(ClosedError):
        values(first)

    assert "is open in process" in complaint(path)
    finish(second.close())

    assert complaint(path) == ""


def complaint(path: Path) -> str:
    """Let another process open the journal, and return its last words."""
    code = f"from tests.stores.file.disks import *; finish(opened(Path({str(path)!r})).close())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stderr.splitlines()[-1] if done.stderr else ""
