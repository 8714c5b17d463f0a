"""A second SQLite library in the process drops our locks: nothing is acknowledged that is then not there.

Each life of a process with a stranger in it soon ends, with an error or by the system; the next goes on
beside the others. What every life was told is written down as it is told, and looked for in the end.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.sqlite import SqliteStore
from tests.processes.share_database import EVERY, key, partner
from tests.tally import Tally

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = ("lost", "ghosts", "partial", "corrupt")
MANY = 100_000
LENGTHS = [
    pytest.param(0.7, 1, id="short"),
    pytest.param(10.0, 20, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(120)]),
]


@dataclass
class Life:
    """What one process was told: how many writes were acknowledged, and what ended it."""

    acknowledged: int = 0
    ended: list[str] = field(default_factory=list[str])

    @property
    def visits(self) -> int:
        """Return how often the stranger came by: beside a writer, whose locks stay, a life may go on."""
        return self.acknowledged // EVERY + len(self.ended)


@pytest.mark.parametrize(("seconds", "least"), LENGTHS)
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
    roles: list[str], seconds: float, least: int, tmp_path: Path, tally: Tally
) -> None:
    path = tmp_path / "keepstate.db"
    finish(finish(SqliteStore(path, runner=ThreadRunner()).open()).close())

    lives = run(roles, path, seconds)

    found = judged(path, lives)
    operations = sum(life.acknowledged for life in lives.values())
    visits = sum(life.visits for name, life in lives.items() if not name.startswith("alone"))
    verdicts = {verdict: found[verdict] for verdict in VERDICTS}
    tally("SQLite: a second library in the process", operations=operations, faults=visits, **verdicts)
    assert not any(verdicts.values()), (verdicts, lives)
    assert {how for life in lives.values() for how in life.ended} <= {"corrupt", "killed"}
    assert visits >= least


@pytest.mark.parametrize("stranger", ["library", "file"])
def test_locks_that_were_dropped_are_noticed_before_the_next_answer(stranger: str, tmp_path: Path) -> None:
    path = tmp_path / "keepstate.db"

    lives = run([stranger], path, 30, lives=1)

    assert lives == {f"{stranger}.0": Life(EVERY - 1, ["corrupt"])}
    assert judged(path, lives) == Counter()


def run(roles: list[str], path: Path, seconds: float, *, lives: int = MANY) -> dict[str, Life]:
    """Run the processes at once, life after life; returns what each life was told."""
    module = [sys.executable, "-m", "tests.processes.share_database"]
    said = [path.with_name(f"{role}.said") for role in roles]
    running: list[subprocess.Popen[bytes]] = []
    for role, told in zip(roles, said, strict=True):
        with told.open("wb") as output:
            command = [*module, role, str(path), str(seconds), str(lives)]
            running.append(subprocess.Popen(command, cwd=ROOT, stdout=output))
    codes = [process.wait(timeout=seconds + 60) for process in running]
    assert codes == [0] * len(roles)

    found: dict[str, Life] = defaultdict(Life)
    for line in "".join(told.read_text() for told in said).splitlines():
        life, what = line.split()
        if what.isdigit():
            found[life].acknowledged = int(what)
        else:
            found[life].ended.append(what)
    return dict(found)


def judged(path: Path, lives: dict[str, Life]) -> Counter[str]:
    """Count what is wrong in the file, as plain SQLite reads it, against what the lives were told."""
    connection = sqlite3.connect(path)
    try:
        is_sound = connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute("SELECT name, key FROM entries JOIN spaces ON spaces.id = space").fetchall()
    finally:
        connection.close()
    present: dict[str, set[bytes]] = defaultdict(set)
    for name, found in rows:
        present[name.decode()].add(found)
    wrong = Counter[str]() if is_sound else Counter(corrupt=1)
    wrong["ghosts"] += sum(len(keys) for name, keys in present.items() if name not in lives)
    for name, life in lives.items():
        wrong += _compared(present[name], life.acknowledged)
    return +wrong


def _compared(keys: set[bytes], acknowledged: int) -> Counter[str]:
    """Count what a life lacks of its batches, each of two keys; one more than was answered may be there."""
    wrong = Counter[str]()
    for number in range(1, acknowledged + 2):
        there = len({key(number), partner(number)} & keys)
        wrong["lost"] += number <= acknowledged and there == 0
        wrong["partial"] += there == 1
    possible = {of(number) for number in range(1, acknowledged + 2) for of in (key, partner)}
    wrong["ghosts"] += len(keys - possible)
    return wrong
