"""What `make deep` did and found: its record as JSON, and the table in the documents that is made from it.

`python tools/reliability.py` writes the table from the record; `--check` only says if it is current.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "reliability.json"
PAGE = ROOT / "docs" / "explanation" / "reliability.md"
BEGIN, END = "<!-- the record's table begins -->", "<!-- the record's table ends -->"

WORK = {
    "operations": "operations",
    "worker_kills": "workers killed",
    "server_crashes": "servers killed",
    "failovers": "failovers",
    "power_images": "power-cut images",
    "cut_replies": "replies cut",
    "cancelled": "calls cancelled",
    "faults": "faults",
    "flipped_bits": "bits flipped",
    "seeds": "seeds simulated",
    "steps": "steps simulated",
    "schedules": "schedules of transactions",
    "positions": "positions of lost history",
    "histories": "edit histories",
    "commits": "commits",
    "collections": "collections while writers run",
    "collected": "objects collected",
    "tasks": "tasks",
    "task_steps": "steps of tasks",
    "answers": "answers raced",
    "budgets": "budgets raced",
    "spends": "calls under a budget",
    "inputs": "hostile inputs",
    "bugs_seeded": "bugs seeded",
    "bugs_caught": "bugs caught",
}
VERDICTS = {
    "lost": "lost",
    "ghosts": "invented",
    "partial": "half applied",
    "disordered": "out of order",
    "exceeded": "over a limit",
    "applied_twice": "applied twice",
    "misreported": "told wrongly",
    "corrupt": "damage read as data",
}
"""What a row may count, and what a reader sees of it: what was done, and what must be zero."""
LEAST = {
    "operations": 1_000_000,
    "worker_kills": 200,
    "server_crashes": 60,
    "power_images": 1_000,
    "seeds": 1_000,
    "schedules": 2_000,
    "positions": 1_000,
    "histories": 3_400,
    "collections": 100,
    "collected": 500,
    "tasks": 3_000,
    "answers": 24_000,
    "budgets": 6,
    "bugs_seeded": 12,
}
"""What a run must have done before its record is worth writing down."""

Row = Mapping[str, int]


def describe(rows: Mapping[str, Row], *, date: str, duration_s: float, seed: int) -> dict[str, Any]:
    """Return the record of one run.

    Args:
        rows: What was counted, by subject.
        date: The day of the run, `2026-01-31`.
        duration_s: How long it took, all in all.
        seed: What its random choices began with.
    """
    return {
        "date": date,
        "machine": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(),
        "duration_s": round(duration_s),
        "seed": seed,
        "totals": total(rows.values()),
        "rows": {subject: dict(row) for subject, row in sorted(rows.items())},
    }


def total(rows: Iterable[Row]) -> dict[str, int]:
    """Return the sum of all rows, every verdict named and each kind of work that was done."""
    rows = list(rows)
    sums = {name: sum(row.get(name, 0) for row in rows) for name in (*WORK, *VERDICTS)}
    return {name: count for name, count in sums.items() if count or name in VERDICTS}


def missing(totals: Row) -> list[str]:
    """Return what a run lacks of what a record stands for, as a reader is told it; nothing if whole."""
    lacks = [
        f"{totals.get(name, 0):,} {WORK[name]} of at least {least:,}"
        for name, least in LEAST.items()
        if totals.get(name, 0) < least
    ]
    seeded, caught = totals.get("bugs_seeded", 0), totals.get("bugs_caught", 0)
    if caught != seeded:
        lacks.append(f"{caught} of {seeded} planted bugs caught")
    lacks += [f"{totals[name]:,} {shown}" for name, shown in VERDICTS.items() if totals.get(name)]
    return lacks


def refuse_unknown(counts: Row) -> None:
    """Raise ValueError if a row counts what no reader would see."""
    if unknown := counts.keys() - WORK.keys() - VERDICTS.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: a row counts {', '.join((*WORK, *VERDICTS))}")


def render(record: Mapping[str, Any]) -> str:
    """Return the table of a record, as it stands in the page between its two marks."""
    machine = record["machine"]
    place = f"{machine['cores']} cores ({machine['system']}, {machine['machine']}), Python {record['python']}"
    minutes = record["duration_s"] / 60
    lines = [
        f"Run on {record['date']} on {place}, in {minutes:.0f} minutes, from seed {record['seed']}.",
        "",
        "| what | done | " + " | ".join(VERDICTS.values()) + " |",
        "|---|---|" + "---|" * len(VERDICTS),
        *(_line(subject, row) for subject, row in record["rows"].items()),
        _line("**all**", record["totals"]),
    ]
    return "\n".join(lines)


def embed(page: str, table: str) -> str:
    """Return the page with `table` between its marks.

    Raises:
        ValueError: The page has no such marks.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {BEGIN} and {END}")
    shown = f"{table}\n\n" if table else ""
    return f"{head}{BEGIN}\n\n{shown}{END}{tail}"


def write(record: Mapping[str, Any]) -> None:
    """Write the record, and the page's table from it."""
    RECORD.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(embed(PAGE.read_text("utf-8"), render(record)), "utf-8")


def is_current() -> bool:
    """Whether the page's table is that of the record; without a record there must be none."""
    page = PAGE.read_text("utf-8")
    table = render(json.loads(RECORD.read_text("utf-8"))) if RECORD.exists() else ""
    return page == embed(page, table)


def main() -> int:
    """Write the table, or with `--check` compares it; returns 1 if it was stale."""
    if "--check" not in sys.argv[1:]:
        write(json.loads(RECORD.read_text("utf-8")))
        return 0
    if is_current():
        return 0
    print("docs/explanation/reliability.md: the table is not the record's; run python tools/reliability.py")
    return 1


def _line(subject: str, row: Row) -> str:
    done = ", ".join(f"{row[name]:,} {shown}" for name, shown in WORK.items() if row.get(name))
    # A dash: that run could not have seen such a fault, and claims nothing.
    verdicts = " | ".join(f"{row[name]:,}" if name in row else "–" for name in VERDICTS)
    return f"| {subject} | {done} | {verdicts} |"


if __name__ == "__main__":
    sys.exit(main())
