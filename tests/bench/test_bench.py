"""The bench runs, and writes what it has measured; the figures themselves are no test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from bench import counts, inspector, others
from bench.__main__ import GROUPS, measure
from bench.harness import Spread, Table
from tools.bootstrap import find_browser
from tools.patterns import FACTORS

ROOT = Path(__file__).resolve().parents[2]

KVGIT = "kvgit" not in others.missing()
LANGGRAPH = "LangGraph's savers" not in others.missing()
QUEUES = 3 - len(others.missing("procrastinate", "huey", "arq"))
ROWS = {
    "memory": 2,
    "sqlite-normal": 2,
    "sqlite-full": 2,
    "redis": 8,
    "postgres": 9,
    "import": 4,
    "counts": 11 + 3 * counts.IO.exists(),
    "reads": 6,
    "find": 36,
    "queue": 2 + 2 * QUEUES + ("huey" not in others.missing("huey")),
    "idle": 4,
    "steps": 3 * ("DBOS" not in others.missing("DBOS")),
    "chats": 2,
    "watch": 2,
    "lines": 37,
    "history": 6 + KVGIT,
    "managers": 0,
    "typed": 12,
    "patterns": 2,
    "server": 6,
    "inspector": inspector.ROWS * (find_browser() is not None),
    "langgraph": 21 * LANGGRAPH,
}
"""How many budgets each group has; only `make bench` installs all the others that are compared with."""
FIGURES = {
    "sqlite-normal",
    "sqlite-full",
    "redis",
    "postgres",
    "counts",
    "lines",
    "patterns",
    "inspector",
    "idle",
} | ({"langgraph"} if LANGGRAPH else set())
"""The groups that also tell figures without a budget."""
STORES = {"memory", "file", "SQLite normal", "SQLite full", "Redis", "PostgreSQL"}

Written = dict[str, Any]


def test_each_group_is_tried() -> None:
    assert set(ROWS) == set(GROUPS)


def test_the_bench_writes_its_results_and_no_page() -> None:
    modules = {path.name: path.read_text("utf-8") for path in (ROOT / "bench").glob("*.py")}

    assert [name for name, text in modules.items() if re.search(r"write_(text|bytes)", text)] == [
        "__main__.py"
    ]


def test_a_row_is_judged_by_medians_by_means_or_by_its_value() -> None:
    table = Table(1.0, lambda _: None)
    pairs = [(1e-6, 2e-6), (1e-6, 2e-6), (4e-6, 2e-6)]

    table.add("median", 0.5, pairs)
    table.add("mean", 1.0, pairs, judged="mean")
    table.add("floor", 2.0, pairs, at_least=True)
    table.limit("value", 2, "ms", [1, 2, 9], [3])

    median, mean, floor, value = table.rows
    assert (median.ratio, mean.ratio, floor.ratio, value.ratio) == (0.5, 1.0, 2.0, 2)
    assert all(row.holds for row in table.rows)
    assert median.ours == Spread(1.0, 2.0, 4.0)
    assert value.ours == Spread(2, 4, 9)
    assert value.raw == Spread(3, 3, 3)


def test_a_group_that_fails_is_reported_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(_table: Table) -> None:
        raise OSError("no server")

    def works(table: Table) -> None:
        table.limit("value", 2, "ms", [3])

    code = measure({"first": breaks, "second": works}, Table(1.0, lambda _: None), tmp_path / "results.json")

    written: Written = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert code == 1
    assert written["failed"] == {"first": "OSError: no server"}
    assert [row["name"] for row in written["rows"]] == ["value"]
    assert "0 of 1 within budget, 1 groups failed" in capsys.readouterr().out


def test_a_missed_budget_is_reported_and_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table(1.0, lambda _: None)

    code = measure({"slow": lambda table: table.limit("value", 2, "ms", [3])}, table, tmp_path / "results")

    assert code == 0
    assert "not within budget: value" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--quick"], ["--only", "memory"]])
def test_a_part_of_the_bench_does_not_replace_the_results_of_a_whole_run(option: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *option], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "need --results" in done.stderr


@pytest.mark.slow
def test_two_trees_are_compared_by_counts_and_ratios() -> None:
    options = ["--rounds", "2", "--only", "SQLite documents.get", "--only", "start: import"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", ".", ".", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    _, start, get = done.stdout.splitlines()
    assert start.startswith("start: import keepstate")
    old, new = re.findall(r"(\d+), (\d+)", get)[-2:]
    assert old == new
    assert old[1] == "4"  # statements


def test_what_is_no_checkout_is_not_compared(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", ".", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "has no src/keepstate" in done.stderr


LONG: Final = ("patterns", "langgraph", "inspector", "managers", "idle", "history")
"""Groups that take over ten seconds even when they measure next to nothing; the other tests import them."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "group",
    [pytest.param(group, marks=pytest.mark.deep if group in LONG else ()) for group in ROWS],
)
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
    for row in written["rows"]:
        assert row["ratio"] >= 0, row
        assert row["ours"] <= row["ours_p99"] or row["judged"] != "value", row
        assert row["judged"] == "value" or (row["ours"] > 0 and row["raw"] > 0), row
    assert set(written["seconds"]) == {group}
    assert f"of {ROWS[group]} within budget" in done.stdout
    assert all(cost["us"] > 0 and cost["stored_bytes"] > 0 for cost in written["costs"])
    assert all(pace["us"] > 0 for pace in written["paces"])
    assert (group in FIGURES) == bool(written["figures"])
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
