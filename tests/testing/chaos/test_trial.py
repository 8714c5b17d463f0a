"""A trial says what it did, and takes nothing for well that could not be tried."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from keepstate_testing.chaos import Crash, Plan, Report, run
from keepstate_testing.proof import Findings, Kind

pytestmark = pytest.mark.slow
PROGRAM = """
import sys
from pathlib import Path
from keepstate_testing.chaos import Plan, run

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run(Plan(urls=(f"sqlite:///{folder}/chaos.db",), folder=folder, seconds=100, seed=1))
"""
HERE = "tests.testing.chaos.test_trial"


def fail() -> None:
    """Called by a worker."""
    raise ValueError("this worker cannot begin")


def end() -> None:
    """Called by a worker."""
    os._exit(3)


def trial(
    folder: Path, seconds: float = 0.5, prepare: str | None = None, crash: Crash | None = None
) -> Report:
    """Return what a short run on SQLite came to; with `crash`, only one worker is killed."""
    histories = folder / "histories"
    histories.mkdir()
    return run(
        Plan(
            urls=(f"sqlite:///{folder}/chaos.db?durability=normal",),
            folder=histories,
            seconds=seconds,
            seed=1,
            workers=2,
            clients=2,
            kill_every_s=(0.1, 0.2),
            prepare=prepare,
            crash=crash,
            crash_share=1.0,
        )
    )


def test_both_modes_are_killed_and_take_part(tmp_path: Path) -> None:
    report = trial(tmp_path, seconds=1.0)

    assert report.faults == []
    assert report.worker_kills >= 3
    assert report.findings.operations > 100
    assert len(list(tmp_path.glob("histories/*.history"))) > 2


def test_a_worker_that_cannot_go_on_is_told_with_its_trace(tmp_path: Path) -> None:
    report = trial(tmp_path, prepare=f"{HERE}:fail")

    assert any("ValueError: this worker cannot begin" in fault for fault in report.faults)


def test_a_worker_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    report = trial(tmp_path, prepare=f"{HERE}:end")

    assert "a worker ended by itself, with status 3" in report.faults


def test_a_report_is_read_at_a_glance() -> None:
    findings = Findings(operations=7)
    findings.add(Kind.LOST, "chaos/0", "it is gone")
    report = Report(worker_kills=3, server_crashes=2, unanswered=1, samples=4, findings=findings)

    assert str(report).splitlines() == [
        "workers killed 3 times and paused 0 times, servers crashed 2 times",
        "1 batches unanswered, history lost 0 times",
        "4 samples searched, 0 given up",
        "7 operations: 1 lost, 0 ghosts, 0 partial, 0 disordered, 0 applied_twice",
        "  lost: chaos/0: it is gone",
    ]


def test_a_server_is_crashed_as_often_as_planned(tmp_path: Path) -> None:
    crashes: list[Random] = []

    report = trial(tmp_path, crash=crashes.append)

    assert (report.server_crashes, report.worker_kills) == (len(crashes), 1)
    assert len(crashes) >= 2


def test_workers_do_not_outlive_who_runs_the_trial(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen([sys.executable, str(program), str(tmp_path)]) as parent:
        until_s = time.monotonic() + 60
        while not list(tmp_path.glob("*.history")) and time.monotonic() < until_s:
            time.sleep(0.05)
        workers = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()

    _, left = psutil.wait_procs(workers, timeout=60)

    assert len(workers) > 1
    assert left == []
