"""The table of what the proof did is that of its record."""

from __future__ import annotations

from tools import reliability


def test_the_table_of_reliability_is_that_of_its_record() -> None:
    assert reliability.is_current(), "run python tools/reliability.py"
