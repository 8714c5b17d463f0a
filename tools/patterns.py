"""The tables and the plot of ways to keep an agent's state, made from the figures of the bench.

`tools/costs.py` puts them into the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.plot import drawn

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "patterns.md"
PLOT = PAGE.with_suffix(".svg")
TIERS_PAGE = ROOT / "docs" / "how-to" / "tiers.md"
DECISIONS, SENT, CONFLICTS = "decisions' table", "table of what is sent", "conflicts' table"
TIERS = "tiers' table"
"""What the marks around each table name."""

FACTORS = {
    "speed": ("a step", "a read"),
    "persistence": ("survives a kill",),
    "scalability": ("steps a second", "steps a second in one session", "known of what all were told"),
    "debuggability": ("moments a step",),
    "complexity": ("lines", "store calls a step", "kept a step"),
}
"""The factors to decide by, and what was measured of each."""
WORDS = {
    "a step": "a step, after {} turns",
    "a read": "reading the context, after {} turns",
    "survives a kill": "acknowledged steps that a `kill -9` leaves",
    "steps a second": "steps a second, processes: {}",
    "steps a second in one session": "the same, all in one session: {}",
    "known of what all were told": "messages to {} processes that the next step knows",
    "moments a step": "past states per step that another process can read",
    "lines": "lines that say how state is kept",
    "store calls a step": "calls of a store in a step",
    "kept a step": "stored for a step of 400 B",
}
HERE = "here"

Figures = Sequence[Mapping[str, Any]]


def render_decisions(results: Mapping[str, Any]) -> str:
    """Return the table of what each way costs and give."""
    figures = _of("patterns", results)
    shown = _shown_turns(figures)
    columns = list(dict.fromkeys((figure["store"], figure["who"]) for figure in figures))
    lines = [
        "| | | " + " | ".join(_column(*column) for column in columns) + " |",
        "|---|---|" + "--:|" * len(columns),
    ]
    for factor, whats in FACTORS.items():
        told = factor
        for what in whats:
            sizes = dict.fromkeys(f["of"] for f in figures if f["what"] == what)
            for of in sorted(sizes) if "{}" in WORDS[what] else [None]:
                if what == "a step" and of not in shown:
                    continue
                found = {
                    (f["store"], f["who"]): f for f in figures if f["what"] == what and of in (None, f["of"])
                }
                cells = (_cell(found[column]) if column in found else "–" for column in columns)
                lines.append(f"| {told} | {WORDS[what].format(of)} | " + " | ".join(cells) + " |")
                told = ""
    return "\n".join(lines)


def render_sent(results: Mapping[str, Any]) -> str:
    """Return the table of what a client sends along with a message."""
    figures = _of("sending", results)
    names = {"stateless": "all that was said", "persisted": "the session's name, and the message"}
    lines = [f"| sent with a message, after {figures[0]['of']:,} turns | bytes |", "|---|--:|"]
    return "\n".join([*lines, *(f"| {names[f['who']]} | {_cell(f)} |" for f in figures)])


def render_conflicts(results: Mapping[str, Any]) -> str:
    """Return the table of what a change costs by how many make changes at once."""
    figures = _of("conflicts", results)
    ways = list(dict.fromkeys(figure["who"] for figure in figures))
    lines = ["| in | tasks | " + " | ".join(ways) + " |", "|---|--:|" + "--:|" * len(ways)]
    for store, of in dict.fromkeys((figure["store"], figure["of"]) for figure in figures):
        found = {(f["who"], f["what"]): f for f in figures if (f["store"], f["of"]) == (store, of)}
        lines.append(f"| {store} | {of} | " + " | ".join(_change(found, way) for way in ways) + " |")
    return "\n".join(lines)


def render_tiers(results: Mapping[str, Any]) -> str:
    """Return the table of what reading through tiers takes."""
    figures = _of("tiers", results)
    ways = {
        "straight": "straight from the server",
        "verified": "remembered, verified by the server",
        "fresh": "remembered, within `max_staleness_s`",
    }
    lines = ["| reading, in PostgreSQL | " + " | ".join(ways.values()) + " |", "|---|" + "--:|" * len(ways)]
    for what, of in dict.fromkeys((figure["what"], figure["of"]) for figure in figures):
        found = {f["who"]: f["value"] for f in figures if (f["what"], f["of"]) == (what, of)}
        straight = found["straight"]
        cells = (f"{found[way]:,.0f} us" + _part(straight / found[way]) for way in ways)
        lines.append(f"| {what} of {_size(of)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _part(times: float) -> str:
    return f", 1/{times:.0f}" if times >= 1.5 else ""


def _size(size: int) -> str:
    return f"{size:,} B" if size < 1_000 else f"{size / 1_000:,.0f} KB"


def picture(results: Mapping[str, Any]) -> str:
    """Return the plot of how long a step takes as a conversation grows."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for figure in _of("patterns", results):
        if figure["what"] == "a step":
            name = _column(figure["store"], figure["who"])
            lines.setdefault(name, []).append((figure["of"], figure["value"]))
    dashed = [name for name in lines if name.endswith("PostgreSQL")]
    return drawn("Time of a step, as a conversation grows", lines, _time, dashed=dashed)


def _of(group: str, results: Mapping[str, Any]) -> Figures:
    return [figure for figure in results.get("figures", []) if figure["group"] == group]


def _shown_turns(figures: Figures) -> tuple[int, int]:
    turns = sorted({figure["of"] for figure in figures if figure["what"] == "a step"})
    return turns[0], turns[-1]


def _column(store: str, who: str) -> str:
    return who if store == HERE else f"{who}, {store}"


def _change(found: Mapping[tuple[str, str], Mapping[str, Any]], way: str) -> str:
    time, calls, lost = (found[way, what] for what in ("a change", "calls a change", "lost"))
    told = _cell(time)
    if calls["value"] >= 1.05:
        told += f", {calls['value']:.1f} calls"
    return told + (f", {lost['value']:.0f} % lost" if lost["value"] else "")


def _cell(figure: Mapping[str, Any]) -> str:
    value, unit = figure["value"], figure["unit"]
    if unit == "us":
        return _time(value)
    if unit == "B":
        return f"{value:,.0f} B" if value < 1_000 else f"{value / 1_000:,.1f} KB"
    if unit == "%":
        return f"{value:.0f} %"
    return f"{value:,.0f}"


def _time(us: float) -> str:
    return f"{us / 1_000:.2g} ms" if us < 100_000 else f"{us / 1_000:.0f} ms"
