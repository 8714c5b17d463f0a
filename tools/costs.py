"""The table of what a commit costs, in the documents, made from the results of the bench.

`python tools/costs.py [RESULTS]` writes it; without a path from `bench/results.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "cost.md"
BEGIN, END = "<!-- the bench's table begins -->", "<!-- the bench's table ends -->"
STORE = "SQLite normal"

Costs = Iterable[Mapping[str, Any]]


def render(results: Mapping[str, Any]) -> str:
    """Returns the table of one run, as it stands in the page between its two marks."""
    costs = [cost for cost in results["costs"] if cost["store"] == STORE]
    keepers = list(dict.fromkeys(cost["keeper"] for cost in costs))
    machine, day = results["machine"], results["measured_at"][:10]
    place = (
        f"{machine['cores']} cores ({machine['system']}, {machine['machine']}), Python {results['python']}"
    )
    lines = [
        f"Measured on {day} on {place}, in SQLite with `durability=normal`: median time and bytes a commit.",
        "",
        "| change | of | " + " | ".join(keepers) + " |",
        "|---|--:|" + "--:|" * len(keepers),
    ]
    for change, size in dict.fromkeys((cost["change"], cost["size"]) for cost in costs):
        row = {c["keeper"]: c for c in costs if (c["change"], c["size"]) == (change, size)}
        cells = (_cell(row[keeper]) if keeper in row else "–" for keeper in keepers)
        lines.append(f"| {change} | {size:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def embed(page: str, table: str) -> str:
    """Returns the page with `table` between its marks.

    Raises:
        ValueError: The page has no such marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}"


def main() -> int:
    """Writes the table into the page."""
    results = Path(sys.argv[1]) if sys.argv[1:] else RESULTS
    table = render(json.loads(results.read_text("utf-8")))
    PAGE.write_text(embed(PAGE.read_text("utf-8"), table), "utf-8")
    return 0


def _cell(cost: Mapping[str, Any]) -> str:
    return f"{_time(cost['us'])}, {_size(cost['stored_bytes'])}"


def _time(us: float) -> str:
    return f"{us / 1_000:.1f} ms" if us < 100_000 else f"{us / 1_000:.0f} ms"


def _size(stored: float) -> str:
    kilobytes = stored / 1_000
    if kilobytes >= 1_000:
        return f"{kilobytes / 1_000:.1f} MB"
    return f"{kilobytes:.1f} KB" if kilobytes < 100 else f"{kilobytes:.0f} KB"


if __name__ == "__main__":
    sys.exit(main())
