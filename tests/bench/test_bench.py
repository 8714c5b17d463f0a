"""The bench runs, and writes what it has measured; the figures themselves are no test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import others
from bench.__main__ import GROUPS
from tools.patterns import FACTORS

ROOT = Path(__file__).resolve().parents[2]

KVGIT = "kvgit" not in others.missing()
LANGGRAPH = "LangGraph's savers" not in others.missing()
ROWS = {
    "memory": 2,
    "sqlite-normal": 2,
    "sqlite-full": 1,
    "redis": 4,
    "postgres": 5,
    "import": 1,
    "history": 6 + KVGIT,
    "managers": 0,
    "typed": 12,
    "patterns": 2,
    "langgraph": 6 * LANGGRAPH,
}
"""How many budgets each group has; only `make bench` installs all the others that are compared with."""
STORES = {"memory", "file", "SQLite normal", "SQLite full", "Redis", "PostgreSQL"}

Written = dict[str, Any]


def test_each_group_is_tried() -> None:
    assert set(ROWS) == set(GROUPS)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("group", ROWS)
def test_a_quick_run_writes_a_row_for_each_budget(group: str, tmp_path: Path) -> None:
    results = tmp_path / "results.json"

    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--only", group, "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    written: Written = json.loads(results.read_text())
    assert written["quick"]
    assert len(written["rows"]) == ROWS[group]
    assert all(row["ratio"] > 0 and row["ours"] > 0 and row["raw"] > 0 for row in written["rows"])
    assert f"of {ROWS[group]} within budget" in done.stdout
    assert all(cost["us"] > 0 and cost["stored_bytes"] > 0 for cost in written["costs"])
    assert all(pace["us"] > 0 for pace in written["paces"])
    assert (group == "patterns") == bool(written["figures"])
    MORE.get(group, lambda _: None)(written)


def _costs_on_each_kind_of_store(written: Written) -> None:
    assert {cost["store"] for cost in written["costs"]} == STORES - {"file", "SQLite full"}


def _six_calls_on_each_store(written: Written) -> None:
    ours = {(pace["store"], pace["call"]) for pace in written["paces"] if pace["keeper"] == "keepstate"}
    assert {store for store, _ in ours} == STORES and len(ours) == 6 * len(STORES)


def _a_figure_for_each_question_of_each_way(written: Written) -> None:
    figures = {(f["what"], f["who"], f["store"]): f["value"] for f in written["figures"]}
    kept = [
        (way, store) for way in ("persisted", "event-sourced", "tiered") for store in ("SQLite", "PostgreSQL")
    ]
    ways = [("stateless", "here"), ("in memory", "here"), *kept]
    questions = [what for whats in FACTORS.values() for what in whats]
    told = {(what, *way) for what, *way in figures}
    assert {(what, *way) for what in questions for way in ways} - told == {("a read", "stateless", "here")}
    for way in ways:
        assert figures["survives a kill", *way] == (100 if way in kept else 0)
        assert figures["moments a step", *way] == pytest.approx(2 if way in kept else 0, abs=0.1)
        assert figures["known of what all were told", *way] == (
            100 if way in kept else pytest.approx(0, abs=30)
        )
    lost = [f["value"] for f in written["figures"] if f["what"] == "lost" and f["who"] != "get, then put"]
    assert lost
    assert not any(lost)


MORE: dict[str, Callable[[Written], None]] = {
    "history": _costs_on_each_kind_of_store,
    "managers": _six_calls_on_each_store,
    "patterns": _a_figure_for_each_question_of_each_way,
}
