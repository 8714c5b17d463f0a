"""LangGraph's own tests of graphs, with our saver in place of theirs: forks, time travel, interrupts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.adapters.conftest import url_of
from tests.adapters.langgraph.sdists import unpacked

COUNTS = {"1.2.22": 648}
LEAST = 600
"""How many tests take a checkpointer: in the version that is locked, and at least in those near it."""
INTERRUPTS = ("tests/test_interruption.py", "tests/test_interrupt_state.py", "tests/test_strict_resume.py")
PLUGIN = Path(__file__).parent
SOURCE = PLUGIN.parents[2] / "src"
_OPTIONS = ("-p", "lend_saver", "-p", "no:randomly", "-q", "-n", "2", "-o", "addopts=--strict-markers")
_TALLY = re.compile(r"(\d+) (passed|failed|error)")


@pytest.fixture(scope="module")
def their_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("langgraph", tmp_path_factory.mktemp("langgraph"))


@pytest.mark.slow
def test_forks_pass_in_memory(their_folder: Path) -> None:
    tally = ran(their_folder, "memory://", "tests/test_time_travel.py")

    assert tally.get("failed", 0) == 0
    assert tally["passed"] > 40


@pytest.mark.slow
def test_going_back_in_time_passes_where_conflicts_raise(their_folder: Path) -> None:
    tally = ran(their_folder, "memory://", "tests/test_time_travel.py", "-k", "fork", on_conflict="raise")

    assert tally.get("failed", 0) == 0
    assert tally["passed"] > 10


@pytest.mark.slow
def test_interrupts_that_ask_pass_in_memory(their_folder: Path) -> None:
    tally = ran(their_folder, "memory://", *INTERRUPTS, approvals=True)

    assert tally.get("failed", 0) == 0
    assert tally["passed"] > 40


@pytest.mark.theirs
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("kind", "on_conflict"),
    [("sqlite", "fork"), ("redis", "fork"), ("postgres", "fork"), ("sqlite", "raise")],
)
def test_all_that_take_a_checkpointer_pass(
    kind: str, on_conflict: str, their_folder: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(kind, request, tmp_path)

    tally = ran(their_folder, url, "tests", on_conflict=on_conflict)
    passed, failed = tally.get("passed", 0), tally.get("failed", 0)
    if failed:  # some of theirs race with sleeps of 10 ms: what fails fails again by itself
        again = ran(their_folder, url, "tests", "--last-failed", "-n", "0", on_conflict=on_conflict)
        passed, failed = passed + again.get("passed", 0), again.get("failed", 0)

    assert failed + tally.get("error", 0) == 0
    assert passed >= LEAST
    assert passed == COUNTS.get(version("langgraph"), passed)


def ran(
    folder: Path, url: str, *what: str, on_conflict: str = "fork", approvals: bool = False
) -> dict[str, int]:
    """Return how many of their tests have passed and failed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, *what],
        cwd=folder,
        env={
            **os.environ,
            "KEEPSTATE_URL": url,
            "KEEPSTATE_ON_CONFLICT": on_conflict,
            "KEEPSTATE_APPROVALS": "yes" if approvals else "",
            "NO_DOCKER": "true",
            "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, folder, SOURCE))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    tally = {what: int(count) for count, what in _TALLY.findall(done.stdout[-2_000:])}
    assert "passed" in tally, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert done.returncode in (0, 1), done.stdout[-4_000:]
    print(done.stdout[-6_000:] if tally.get("failed") or tally.get("error") else tally)
    return tally
