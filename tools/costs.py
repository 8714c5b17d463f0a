"""The tables and the plot of what things cost, in the documents, made from the results of the bench.

`python tools/costs.py [RESULTS]` writes them; without a path from `bench/results.json`. Those of ways to keep
state are made by `patterns`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a program it finds its tables there

from bench.plot import plotted  # noqa: E402
from bench.savers import TEXT_BYTES  # noqa: E402
from tools import patterns  # noqa: E402

RESULTS = ROOT / "bench" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "cost.md"
LANGGRAPH_PAGE = ROOT / "docs" / "tutorial" / "langgraph.md"
LANGGRAPH_PLOT = LANGGRAPH_PAGE.with_suffix(".svg")
COMMITS, MANAGERS, SAVERS = "bench's table", "managers' table", "savers' table"
"""What the marks around each table name."""
STORE = "SQLite normal"
LANGGRAPH = "LangGraph"
"""What the stores begin with in which its savers were timed: another page's matter."""

Costs = Iterable[Mapping[str, Any]]


def render(results: Mapping[str, Any]) -> str:
    """Return the table of one run, as it stands in the page between its two marks."""
    costs = [cost for cost in results["costs"] if cost["store"] == STORE]
    keepers = list(dict.fromkeys(cost["keeper"] for cost in costs))
    lines = [
        f"{_measured(results)}, in SQLite with `durability=normal`: median time and bytes a commit.",
        "",
        *_heading("| change | of |", "|---|--:|", keepers),
    ]
    for change, size in dict.fromkeys((cost["change"], cost["size"]) for cost in costs):
        row = {c["keeper"]: c for c in costs if (c["change"], c["size"]) == (change, size)}
        cells = (_cell(row[keeper]) if keeper in row else "–" for keeper in keepers)
        lines.append(f"| {change} | {size:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def render_managers(results: Mapping[str, Any]) -> str:
    """Return the table of what managers' calls cost, as it stands in the page between its two marks."""
    paces = [pace for pace in results["paces"] if not pace["store"].startswith(LANGGRAPH)]
    stores = list(dict.fromkeys(pace["store"] for pace in paces))
    lines = [
        f"{_measured(results)}: median time of a call.",
        "",
        *_heading("| call | of |", "|---|---|", stores),
    ]
    for call in dict.fromkeys(pace["call"] for pace in paces):
        for keeper in dict.fromkeys(pace["keeper"] for pace in paces if pace["call"] == call):
            us = {p["store"]: p["us"] for p in paces if (p["call"], p["keeper"]) == (call, keeper)}
            cells = (_time(us[store]) if store in us else "–" for store in stores)
            lines.append(f"| {call} | {keeper} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def render_savers(results: Mapping[str, Any]) -> str:
    """Return the table of LangGraph's savers, as it stands in the page between its two marks."""
    paces = [pace for pace in results["paces"] if pace["store"].startswith(LANGGRAPH)]
    keepers = list(dict.fromkeys(pace["keeper"] for pace in paces))
    lines = [
        f"{_measured(results)}: bytes of the closed file, and median times.",
        "",
        *_heading("| |", "|---|", keepers),
    ]
    for row in results["rows"]:
        if row["name"].startswith(LANGGRAPH) and row["unit"] == "B":
            cells = [_size(row["ours"]), _size(row["raw"])] + ["–"] * (len(keepers) - 2)
            what = row["name"].removeprefix(f"{LANGGRAPH}: ").removesuffix(", kB")
            lines.append(f"| {what} | " + " | ".join(cells) + " |")
    for store, call in dict.fromkeys((pace["store"], pace["call"]) for pace in paces):
        us = {p["keeper"]: p["us"] for p in paces if (p["store"], p["call"]) == (store, call)}
        cells = [_time(us[keeper]) if keeper in us else "–" for keeper in keepers]
        what = f"{call}, {store.removeprefix(LANGGRAPH).strip()}".removesuffix(", ")
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def embed(page: str, table: str, what: str = COMMITS) -> str:
    """Return the page with `table` between the marks that name it.

    Raises:
        ValueError: The page has no such marks.
    """
    marks = f"<!-- the {what} begins -->", f"<!-- the {what} ends -->"
    head, begin, rest = page.partition(marks[0])
    _, end, tail = rest.partition(marks[1])
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {' and '.join(marks)}")
    return f"{head}{begin}\n\n{table}\n\n{end}{tail}"


def main() -> int:
    """Write the tables of what was measured into the page."""
    results = json.loads((Path(sys.argv[1]) if sys.argv[1:] else RESULTS).read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    if results["costs"]:
        page = embed(page, render(results))
    if results["paces"]:
        page = embed(page, render_managers(results), MANAGERS)
    PAGE.write_text(page, "utf-8")
    if any(pace["store"].startswith(LANGGRAPH) for pace in results["paces"]):
        page = LANGGRAPH_PAGE.read_text("utf-8")
        LANGGRAPH_PAGE.write_text(embed(page, render_savers(results), SAVERS), "utf-8")
    if any(figure["group"] == "patterns" for figure in results.get("figures", ())):
        write_patterns(results)
    if growth := picture_of_growth(results):
        LANGGRAPH_PLOT.write_text(growth, "utf-8")
    return 0


def picture_of_growth(results: Mapping[str, Any]) -> str | None:
    """Return the picture of the savers' bytes by turn, or None if a run has none or only a few turns."""
    points: dict[str, list[tuple[int, int]]] = {}
    for figure in results.get("figures", ()):
        if figure["group"] == "growth":
            points.setdefault(figure["who"], []).append((figure["of"], int(figure["value"])))
    if not points or results["quick"]:
        return None
    turns = max(turn for line in points.values() for turn, _ in line)
    return plotted(points, turns, turns * TEXT_BYTES)


def write_patterns(results: Mapping[str, Any]) -> None:
    """Write the tables and the plot of ways to keep state."""
    told = f"{_measured(results)}: median times.\n\n"
    for path, what, table in (
        (patterns.PAGE, patterns.DECISIONS, told + patterns.render_decisions(results)),
        (patterns.PAGE, patterns.SENT, patterns.render_sent(results)),
        (patterns.PAGE, patterns.CONFLICTS, patterns.render_conflicts(results)),
        (patterns.TIERS_PAGE, patterns.TIERS, told + patterns.render_tiers(results)),
    ):
        path.write_text(embed(path.read_text("utf-8"), table, what), "utf-8")
    patterns.PLOT.write_text(patterns.picture(results), "utf-8")


def _measured(results: Mapping[str, Any]) -> str:
    machine, day = results["machine"], results["measured_at"][:10]
    place = (
        f"{machine['cores']} cores ({machine['system']}, {machine['machine']}), Python {results['python']}"
    )
    return f"Measured on {day} on {place}"


def _heading(first: str, ruled: str, columns: list[str]) -> tuple[str, str]:
    """Return the first two lines of a table: figures stand to the right."""
    return f"{first} {' | '.join(columns)} |", ruled + "--:|" * len(columns)


def _cell(cost: Mapping[str, Any]) -> str:
    return f"{_time(cost['us'])}, {_size(cost['stored_bytes'])}"


def _time(us: float) -> str:
    if us < 1_000:
        return f"{us / 1_000:.2f} ms"
    return f"{us / 1_000:.1f} ms" if us < 100_000 else f"{us / 1_000:.0f} ms"


def _size(stored: float) -> str:
    kilobytes = stored / 1_000
    if kilobytes >= 1_000:
        return f"{kilobytes / 1_000:.1f} MB"
    return f"{kilobytes:.1f} KB" if kilobytes < 100 else f"{kilobytes:.0f} KB"


if __name__ == "__main__":
    sys.exit(main())
