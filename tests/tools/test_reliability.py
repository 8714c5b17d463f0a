"""The record of the proof: a reader is shown what was counted, and a zero where somebody looked."""

from __future__ import annotations

import pytest

from tools.reliability import BEGIN, END, LEAST, describe, embed, missing, refuse_unknown, render, total

ROWS = {
    "SQLite": {"operations": 1_000, "worker_kills": 2, "lost": 0, "ghosts": 0},
    "Redis": {"operations": 500, "server_crashes": 1, "lost": 1},
}


def test_totals_sum_the_work_and_name_every_verdict() -> None:
    sums = total(ROWS.values())

    assert sums == {
        "operations": 1_500,
        "worker_kills": 2,
        "server_crashes": 1,
        "lost": 1,
        "ghosts": 0,
        "partial": 0,
        "disordered": 0,
        "applied_twice": 0,
        "misreported": 0,
        "corrupt": 0,
        "exceeded": 0,
    }


def test_a_row_shows_a_zero_that_was_looked_for_and_a_dash_where_nobody_looked() -> None:
    table = render(describe(ROWS, date="2026-01-31", duration_s=61.0, seed=7))

    assert "| Redis | 500 operations, 1 servers killed | 1 | – | – | – | – | – | – |" in table
    assert "| SQLite | 1,000 operations, 2 workers killed | 0 | 0 | – | – | – | – | – |" in table
    assert "2026-01-31" in table
    assert "seed 7" in table


def test_a_count_that_no_reader_would_see_is_refused() -> None:
    with pytest.raises(ValueError, match="losses: a row counts operations"):
        refuse_unknown({"losses": 1})


def test_the_table_replaces_only_what_stands_between_its_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    assert embed(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        embed("no marks", "table")


def test_a_run_that_did_all_that_a_record_stands_for_lacks_nothing() -> None:
    assert missing({**LEAST, "bugs_caught": LEAST["bugs_seeded"], "lost": 0}) == []


def test_a_run_that_did_less_or_found_something_says_what_it_lacks() -> None:
    totals = {**LEAST, "operations": 999_999, "bugs_seeded": 13, "bugs_caught": 12, "lost": 1}
    del totals["server_crashes"]

    assert missing(totals) == [
        "999,999 operations of at least 1,000,000",
        "0 servers killed of at least 60",
        "12 of 13 planted bugs caught",
        "1 lost",
    ]
