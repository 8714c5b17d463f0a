"""Measures all rows, prints them as they come, and writes `bench/results.json`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.embedded import memory, sqlite_full, sqlite_normal
from bench.harness import Row, Shown, Table
from bench.history import history
from bench.importing import importing
from bench.langgraph import langgraph
from bench.managers import managers
from bench.patterns import patterns
from bench.servers import postgres_rows, redis_rows
from bench.typed import typed

GROUPS: dict[str, Callable[[Table], None]] = {
    "memory": memory,
    "sqlite-normal": sqlite_normal,
    "sqlite-full": sqlite_full,
    "redis": redis_rows,
    "postgres": postgres_rows,
    "import": importing,
    "history": history,
    "managers": managers,
    "typed": typed,
    "patterns": patterns,
    "langgraph": langgraph,
}
PACKAGES = (
    "keepstate",
    "apsw",
    "redis",
    "psycopg",
    "msgspec",
    "kvgit",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "agenticaiframework",
)
RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Return 0 when every row was measured, within its budget or not: a noisy machine is no failure."""
    options = _options()
    print(f"{'':34}{'ratio':>9}{'budget':>10}{'ours':>12}{'raw':>12}", flush=True)
    table = Table(0.02 if options.quick else 1.0, _show)
    for name in options.only or GROUPS:
        GROUPS[name](table)
    over = [row.name for row in table.rows if not row.holds]
    print(
        f"{len(table.rows) - len(over)} of {len(table.rows)} within budget"
        + "".join(f"; not {name}" for name in over)
    )
    options.results.write_text(json.dumps(_results(table, quick=options.quick), indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few operations of each; shows that it runs")
    parser.add_argument(
        "--only", action="append", choices=list(GROUPS), help="one group of rows; may be repeated"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write the figures")
    return parser.parse_args()


def _show(line: Shown) -> None:
    if not isinstance(line, Row):
        print(line, flush=True)
        return
    budget = f"{'≥' if line.at_least else '≤'} {line.budget:g}"
    word = "" if line.holds else "  over budget"
    print(
        f"{line.name:34}{line.ratio:9.2f}{budget:>10}"
        f"{line.ours:9.2f} {line.unit:2}{line.raw:9.2f} {line.unit:2}{word}",
        flush=True,
    )


def _results(table: Table, *, quick: bool) -> dict[str, object]:
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "quick": quick,
        "rows": [row.as_json() for row in table.rows],
        "costs": [cost.as_json() for cost in table.costs],
        "paces": [pace.as_json() for pace in table.paces],
        "figures": [figure.as_json() for figure in table.figures],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
