"""The tables of ways to keep state have a row for each factor, with each figure in its place."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tools import costs, patterns


def figure(
    who: str, what: str, value: float, unit: str, *, of: int = 0, store: str = "here"
) -> dict[str, Any]:
    group = "conflicts" if what in {"a change", "calls a change", "lost"} else "patterns"
    return {"group": group, "store": store, "who": who, "what": what, "of": of, "value": value, "unit": unit}


RESULTS: dict[str, Any] = {
    "figures": [
        figure("stateless", "a step", 950.0, "us", of=20),
        figure("stateless", "a step", 1_000.0, "us", of=40),
        figure("stateless", "a step", 1_100.0, "us", of=60),
        figure("tiered", "a step", 25_000.0, "us", of=20, store="SQLite"),
        figure("tiered", "a step", 26_000.0, "us", of=40, store="SQLite"),
        figure("tiered", "a step", 250_000.0, "us", of=60, store="SQLite"),
        figure("tiered", "a read", 950.0, "us", of=60, store="SQLite"),
        figure("stateless", "survives a kill", 0.0, "%", of=27),
        figure("tiered", "survives a kill", 100.0, "%", of=23, store="SQLite"),
        figure("stateless", "kept a step", 0.0, "B"),
        figure("tiered", "kept a step", 3_931.0, "B", store="SQLite"),
        figure("transact", "a change", 3_400.0, "us", of=2, store="SQLite"),
        figure("transact", "calls a change", 1.31, "calls", of=2, store="SQLite"),
        figure("transact", "lost", 0.0, "%", of=2, store="SQLite"),
        figure("get, then put", "a change", 2_100.0, "us", of=2, store="SQLite"),
        figure("get, then put", "calls a change", 1.0, "calls", of=2, store="SQLite"),
        figure("get, then put", "lost", 49.0, "%", of=2, store="SQLite"),
        {"group": "sending", "store": "here", "who": "stateless", "what": "sent with a message", "of": 300,
         "value": 139_800, "unit": "B"},
    ],
}  # fmt: skip


def test_each_way_has_its_figures_in_its_column() -> None:
    head, _, *rows = patterns.render_decisions(RESULTS).splitlines()

    assert head == "| | | stateless | tiered, SQLite |"
    assert rows[:4] == [
        "| speed | a step, after 20 turns | 0.95 ms | 25 ms |",
        "|  | a step, after 60 turns | 1.1 ms | 250 ms |",
        "|  | reading the context, after 60 turns | – | 0.95 ms |",
        "| persistence | acknowledged steps that a `kill -9` leaves | 0 % | 100 % |",
    ]
    assert rows[-1] == "|  | stored for a step of 400 B | 0 B | 3.9 KB |"


def test_a_change_tells_what_was_done_again_and_what_was_lost() -> None:
    *_, row = patterns.render_conflicts(RESULTS).splitlines()

    assert row == "| SQLite | 2 | 3.4 ms, 1.3 calls | 2.1 ms, 49 % lost |"


def test_what_is_sent_is_told_with_its_length() -> None:
    head, _, row = patterns.render_sent(RESULTS).splitlines()

    assert head == "| sent with a message, after 300 turns | bytes |"
    assert row == "| all that was said | 139.8 KB |"


def test_reading_through_tiers_is_told_beside_reading_straight() -> None:
    read = {"group": "tiers", "store": "PostgreSQL", "what": "a document", "of": 100_000, "unit": "us"}
    told = {"straight": 740.0, "verified": 790.0, "fresh": 110.0}

    table = patterns.render_tiers(
        {"figures": [{**read, "who": who, "value": us} for who, us in told.items()]}
    )

    assert table.splitlines()[-1] == "| a document of 100 KB | 740 us | 790 us | 110 us, 1/7 |"


def test_the_plot_has_a_line_and_a_label_for_each_way() -> None:
    picture = ElementTree.fromstring(patterns.picture(RESULTS))

    lines = picture.findall("{*}polyline")
    labels = [text.text for text in picture.findall("{*}text")]
    assert len(lines) == 2
    assert {"stateless: 1.1 ms", "tiered, SQLite: 250 ms", "1 ms", "10 ms", "100 ms"} <= set(labels)


def test_labels_stand_apart_and_all_is_in_the_picture() -> None:
    alike = [figure(f"way {n}", "a step", 1_000.0 + n, "us", of=of) for n in range(8) for of in (1, 10)]
    picture = ElementTree.fromstring(patterns.picture({"figures": alike}))

    labels = [text for text in picture.findall("{*}text") if (text.text or "").startswith("way")]
    heights = sorted(float(text.attrib["y"]) for text in labels)
    assert all(below - above >= 15.9 for above, below in pairwise(heights))
    assert heights[0] > 0
    assert heights[-1] < 400


@pytest.mark.parametrize(
    ("path", "what"),
    [
        *((patterns.PAGE, what) for what in (patterns.DECISIONS, patterns.SENT, patterns.CONFLICTS)),
        (patterns.TIERS_PAGE, patterns.TIERS),
    ],
)
def test_each_table_has_its_place_in_a_page(path: Path, what: str) -> None:
    page = costs.embed(path.read_text("utf-8"), "TABLE", what)

    assert f"begins -->\n\nTABLE\n\n<!-- the {what} ends" in page
