"""Measures all rows, prints them as they come, and writes `bench/results.json`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.embedded import memory, sqlite_full, sqlite_normal
from bench.harness import Row, Table
from bench.importing import importing
from bench.servers import postgres_rows, redis_rows

GROUPS: dict[str, Callable[[Table], None]] = {
    "memory": memory,
    "sqlite-normal": sqlite_normal,
    "sqlite-full": sqlite_full,
    "redis": redis_rows,
    "postgres": postgres_rows,
    "import": importing,
}
PACKAGES = ("keepstate", "apsw", "redis", "psycopg", "msgspec")
RESULTS = Path(__file__).parent / "results.json"


def main() -> int:
    """Returns 0 when every row was measured, within its budget or not: a noisy machine is no failure."""
    options = _options()
    print(f"{'':34}{'ratio':>9}{'budget':>10}{'ours':>12}{'raw':>12}", flush=True)
    table = Table(0.1 if options.quick else 1.0, _show)
    for name in options.only or GROUPS:
        GROUPS[name](table)
    over = [row.name for row in table.rows if not row.holds]
    print(
        f"{len(table.rows) - len(over)} of {len(table.rows)} within budget"
        + "".join(f"; not {name}" for name in over)
    )
    options.results.write_text(json.dumps(_results(table.rows, quick=options.quick), indent=1) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the operations; shows that it runs")
    parser.add_argument(
        "--only", action="append", choices=list(GROUPS), help="one group of rows; may be repeated"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write the figures")
    return parser.parse_args()


def _show(row: Row) -> None:
    budget = f"{'≥' if row.at_least else '≤'} {row.budget:g}"
    word = "" if row.holds else "  over budget"
    print(
        f"{row.name:34}{row.ratio:9.2f}{budget:>10}{row.ours_us:9.2f} us{row.raw_us:9.2f} us{word}",
        flush=True,
    )


def _results(rows: list[Row], *, quick: bool) -> dict[str, object]:
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "quick": quick,
        "rows": [row.as_json() for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
