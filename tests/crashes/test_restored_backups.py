"""Positions of a history that a restored backup has replaced: each raises, in a process that never saw it."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.crashes import restored
from tests.tally import Tally, first_seed

DEEP = [pytest.mark.deep, pytest.mark.timeout(600)]
SIZES = [
    pytest.param("file", 3, id="file-short"),
    pytest.param("SQLite", 3, id="SQLite-short"),
    pytest.param("file", 220, id="file-long", marks=DEEP),
    pytest.param("SQLite", 80, id="SQLite-long", marks=DEEP),
]


@pytest.mark.parametrize(("kind", "count"), SIZES)
def test_no_position_of_a_lost_history_is_followed(
    kind: str, count: int, tmp_path: Path, tally: Tally
) -> None:
    positions = 0
    for seed in range(first_seed(), first_seed() + count):
        positions += restored.go_on(kind.lower(), tmp_path / str(seed), Random(seed))
        shutil.rmtree(tmp_path / str(seed))

    assert positions >= 2 * count
    tally(f"{kind}: positions after lost history", positions=positions, misreported=0)
