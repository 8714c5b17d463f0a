"""The example of a deploy and its rollback ends with everything that was added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_rollback_loses_nothing(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.rollback", f"sqlite:///{tmp_path}/trips.db"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert "trips: 3 documents, trip@1 to trip@2 in 3; 3 written" in ended.stdout
    assert ended.stdout.endswith("Three trips, each with all of the 35 dollars.\n")
