"""The bench runs, and writes what it has measured; the figures themselves are no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.alone
def test_a_quick_run_writes_a_row_for_each_budget(tmp_path: Path) -> None:
    results = tmp_path / "results.json"

    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    written = json.loads(results.read_text())
    assert written["quick"]
    assert len(written["rows"]) == 15
    assert all(row["ratio"] > 0 and row["ours_us"] > 0 and row["raw_us"] > 0 for row in written["rows"])
    assert "of 15 within budget" in done.stdout
