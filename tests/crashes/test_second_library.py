"""A second SQLite library in the process drops our locks: nothing is acknowledged that is then not there."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.sqlite import SqliteStore
from tests.crashes.second_library import EVERY, key
from tests.tally import Tally

ROOT = Path(__file__).resolve().parents[2]
LENGTHS = [
    pytest.param(0.7, id="short"),
    pytest.param(10.0, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(120)]),
]


@pytest.mark.parametrize("seconds", LENGTHS)
@pytest.mark.parametrize(
    "roles",
    [
        pytest.param(["library"], id="library"),
        pytest.param(["library", "alone"], id="library beside a writer"),
        pytest.param(["file", "alone"], id="file beside a writer"),
        pytest.param(["file", "onlooker"], id="file beside an onlooker"),
    ],
)
def test_a_stranger_in_the_process_takes_nothing_that_was_acknowledged(
    roles: list[str], seconds: float, tmp_path: Path, tally: Tally
) -> None:
    path = tmp_path / "keepstate.db"
    finish(finish(SqliteStore(path, runner=ThreadRunner()).open()).close())

    answers = run(roles, path, seconds)

    lost = 0
    for role, (acknowledged, failed) in zip(roles, answers, strict=True):
        assert failed in {None, "corrupt"}, role
        lost += len(missing(path, role, acknowledged))
    assert lost == 0, answers
    tally("SQLite: a second library in the process", operations=sum(n for n, _ in answers), lost=0)


@pytest.mark.parametrize("stranger", ["library", "file"])
def test_locks_that_were_dropped_are_noticed_before_the_next_answer(stranger: str, tmp_path: Path) -> None:
    path = tmp_path / "keepstate.db"

    [(acknowledged, failed)] = run([stranger], path, 30)

    assert (acknowledged, failed) == (EVERY - 1, "corrupt")
    assert missing(path, stranger, acknowledged) == []


def run(roles: list[str], path: Path, seconds: float) -> list[tuple[int, str | None]]:
    """Runs the processes at once; one that the system kills for its lost memory acknowledges nothing more."""
    module = [sys.executable, "-m", "tests.crashes.second_library"]
    running = [
        subprocess.Popen(
            [*module, role, str(path), str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for role in roles
    ]
    said = [process.communicate(timeout=seconds + 60)[0] for process in running]
    for process in running:
        assert process.returncode in {0, -signal.SIGBUS}
    return [tuple(json.loads(line)) if line else (0, "corrupt") for line in said]


def missing(path: Path, role: str, acknowledged: int) -> list[int]:
    """Returns acknowledged writes that are not in the file, as plain SQLite reads it."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute(
            "SELECT key FROM entries JOIN spaces ON spaces.id = space WHERE name = ?", (role.encode(),)
        )
        present = {found for (found,) in rows}
    finally:
        connection.close()
    return [number for number in range(1, acknowledged + 1) if key(number) not in present]
