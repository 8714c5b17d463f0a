"""The tables of costs are made from what the bench wrote, and stand in the page between their marks."""

from __future__ import annotations

from typing import Any

import pytest

from tools import costs

MACHINE = {"system": "Linux", "machine": "x86_64", "cores": 2}
RESULTS: dict[str, Any] = {
    "measured_at": "2026-11-21T15:00:00+00:00",
    "machine": MACHINE,
    "python": "3.11.7",
    "costs": [
        {"store": "SQLite normal", "change": "append", "size": 100, "keeper": "keepstate", "us": 512.0,
         "stored_bytes": 1_234},
        {"store": "memory", "change": "append", "size": 100, "keeper": "keepstate", "us": 1.0,
         "stored_bytes": 1},
    ],
    "paces": [
        {"store": "memory", "call": "save", "keeper": "keepstate", "us": 61.4},
        {"store": "memory", "call": "save", "keeper": "other", "us": 2_345.0},
        {"store": "Redis", "call": "save", "keeper": "keepstate", "us": 250_000.0},
        {"store": "LangGraph SQLite", "call": "put", "keeper": "keepstate", "us": 570.0},
        {"store": "LangGraph", "call": "put", "keeper": "SqliteSaver", "us": 4_400.0},
    ],
    "rows": [
        {"name": "memory put", "unit": "us", "ours": 1.0, "raw": 1.0},
        {"name": "LangGraph: 9 turns, kB", "unit": "B", "ours": 2_600_000, "raw": 325_000_000},
    ],
}  # fmt: skip


def test_commits_are_shown_in_one_store() -> None:
    *_, row = costs.render(RESULTS).splitlines()

    assert row == "| append | 100 | 0.51 ms, 1.2 KB |"


def test_calls_are_shown_by_who_does_them_in_every_store() -> None:
    head, *_, ours, theirs = costs.render_managers(RESULTS).splitlines()

    assert head == "Measured on 2026-11-21 on 2 cores (Linux, x86_64), Python 3.11.7: median time of a call."
    assert ours == "| save | keepstate | 0.06 ms | 250 ms |"
    assert theirs == "| save | other | 2.3 ms | – |"


def test_savers_are_shown_by_bytes_and_by_time() -> None:
    _, _, head, _, size, put, other = costs.render_savers(RESULTS).splitlines()

    assert head == "| | keepstate | SqliteSaver |"
    assert size == "| 9 turns | 2.6 MB | 325.0 MB |"
    assert put == "| put, SQLite | 0.57 ms | – |"
    assert other == "| put | – | 4.4 ms |"


def test_growth_is_drawn_from_a_whole_run_only() -> None:
    grown = [
        {"group": "growth", "who": who, "of": turn, "value": 1_000.0 * turn}
        for who in ("keepstate", "SqliteSaver")
        for turn in (100, 200)
    ]

    picture = costs.picture_of_growth({"quick": False, "figures": grown})

    assert picture is not None and "SqliteSaver: 200 kB" in picture
    assert costs.picture_of_growth({"quick": True, "figures": grown}) is None
    assert costs.picture_of_growth({"quick": False, "figures": []}) is None


def test_each_table_goes_between_its_marks() -> None:
    page = costs.PAGE.read_text("utf-8")

    first = costs.embed(page, "COMMITS")
    both = costs.embed(first, "MANAGERS", costs.MANAGERS)

    assert "begins -->\n\nCOMMITS\n\n<!-- the bench's table ends" in both
    assert "begins -->\n\nMANAGERS\n\n<!-- the managers' table ends" in both


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        costs.embed("nothing", "table")
