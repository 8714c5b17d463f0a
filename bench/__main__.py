"""Measures and prints all rows, and writes one file: `bench/results.json`, or that of `--results`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.counts import counts
from bench.embedded import memory, sqlite_full, sqlite_normal
from bench.harness import Shown, Table
from bench.history import history
from bench.importing import importing
from bench.langgraph import langgraph
from bench.lines import lines
from bench.managers import managers
from bench.patterns import patterns
from bench.queues import queues
from bench.reads import reads
from bench.servers import postgres_rows, redis_rows
from bench.typed import typed
from bench.watches import watches

GROUPS: dict[str, Callable[[Table], None]] = {
    "memory": memory,
    "sqlite-normal": sqlite_normal,
    "sqlite-full": sqlite_full,
    "redis": redis_rows,
    "postgres": postgres_rows,
    "import": importing,
    "counts": counts,
    "reads": reads,
    "queue": queues,
    "watch": watches,
    "lines": lines,
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
    "procrastinate",
    "huey",
    "arq",
    "openai-agents",
)
RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Return 0 when every row was measured, within its budget or not: a noisy machine is no failure."""
    options = _options()
    print(
        f"{'':52}{'judged':>9}{'budget':>9}{'ours':>11}{'':6}{'raw':>11}{'':6}{'mean':>11}{'p99':>11}",
        flush=True,
    )
    table = Table(0.02 if options.quick else 1.0, _show)
    seconds: dict[str, float] = {}
    for name in options.only or GROUPS:
        begun = time.perf_counter()
        GROUPS[name](table)
        seconds[name] = round(time.perf_counter() - begun, 1)
        print(f"{name}: {seconds[name]:.0f} s", flush=True)
    over = [row.name for row in table.rows if not row.holds]
    print(
        f"{len(table.rows) - len(over)} of {len(table.rows)} within budget"
        + "".join(f"; not {name}" for name in over)
    )
    options.results.write_text(json.dumps(_results(table, seconds, quick=options.quick), indent=1) + "\n")
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
    print(line, flush=True)


def _results(table: Table, seconds: dict[str, float], *, quick: bool) -> dict[str, object]:
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "quick": quick,
        "seconds": seconds,
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
