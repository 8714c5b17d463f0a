"""The bench runs, and writes what it has measured; the figures themselves are no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import others

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(300)
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
    # One row compares with kvgit, which only `make bench` installs.
    count = 25 + ("kvgit" not in others.missing())
    assert len(written["rows"]) == count
    assert all(row["ratio"] > 0 and row["ours"] > 0 and row["raw"] > 0 for row in written["rows"])
    assert f"of {count} within budget" in done.stdout
    assert {cost["store"] for cost in written["costs"]} == {"memory", "SQLite normal", "Redis", "PostgreSQL"}
    assert all(cost["us"] > 0 and cost["stored_bytes"] > 0 for cost in written["costs"])
    everywhere = {"memory", "file", "SQLite normal", "SQLite full", "Redis", "PostgreSQL"}
    ours = {(pace["store"], pace["call"]) for pace in written["paces"] if pace["keeper"] == "keepstate"}
    assert {store for store, _ in ours} == everywhere and len(ours) == 6 * len(everywhere)
    assert all(pace["us"] > 0 for pace in written["paces"])
