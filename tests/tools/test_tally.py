"""What tests tell of their work reaches the process that a person started, from all its workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TELLS = """
def test_tells(tally):
    tally("a subject", operations=3, lost=0)

def test_tells_of_the_same(tally):
    tally("a subject", operations=4, lost=0)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_sums_of_all_processes_stand_at_the_end(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_telling.py").write_text(TELLS)

    run = run_tests(tmp_path, "-n", workers)

    assert run.returncode == 0, run.stdout
    assert "7 operations, 0 lost" in run.stdout


def test_a_count_without_a_name_in_the_record_fails(tmp_path: Path) -> None:
    (tmp_path / "test_telling.py").write_text("def test_tells(tally):\n    tally('x', losses=3)\n")

    run = run_tests(tmp_path)

    assert run.returncode == 1
    assert "losses: a row counts" in run.stdout


def run_tests(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.tally", *options, "--rootdir", str(folder)]
    return subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
