"""Files that are cut off beneath a store, or that have two names: no acknowledged write is lost unnoticed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from keepstate_testing.faults.disk import CuttingDisk

from keepstate.errors import CorruptError
from tests.crashes import cut_and_bound
from tests.crashes.cut_and_bound import acknowledged, opened
from tests.tally import Tally, first_seed

COUNTS = [
    pytest.param(25, id="short"),
    pytest.param(400, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(300)]),
]
ROOT = Path(__file__).resolve().parents[2]
WRITES = """
import sys
from pathlib import Path
from tests.crashes.cut_and_bound import acknowledged, opened
from keepstate.errors import UnsupportedError
try:
    with opened(sys.argv[1], Path(sys.argv[2])) as store:
        print(sum(acknowledged(store, number) for number in range(100, 120)))
except UnsupportedError as error:
    print("refused")
"""


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_nothing_is_acknowledged_into_a_gap(kind: str, count: int, tmp_path: Path, tally: Tally) -> None:
    for seed in range(first_seed(), first_seed() + count):
        place = tmp_path / str(seed)
        place.mkdir()
        cut_and_bound.cut_off(kind, place, Random(seed))
        shutil.rmtree(place)
    tally(f"{'SQLite' if kind == 'sqlite' else kind}: files cut off", faults=count, lost=0)


@pytest.mark.parametrize(("kind", "ends"), [("file", "store"), ("sqlite", "store-wal"), ("sqlite", "store")])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5])
def test_a_write_after_a_cut_is_refused_and_so_are_those_after_it(
    kind: str, ends: str, share: float, tmp_path: Path
) -> None:
    with opened(kind, tmp_path / "store") as store:
        assert all(acknowledged(store, number) for number in range(30))
        path = tmp_path / ends
        os.truncate(path, int(path.stat().st_size * share))

        assert [acknowledged(store, number) for number in range(100, 110)] == [False] * 10


def test_the_error_says_which_file_was_cut_off_and_what_to_do(tmp_path: Path) -> None:
    for kind, ends in (("file", "store"), ("sqlite", "store-wal")):
        place = tmp_path / kind
        place.mkdir()
        with opened(kind, place / "store") as store:
            acknowledged(store, 1)
            os.truncate(place / ends, 10)

            with pytest.raises(CorruptError, match=r"cut off.*`keepstate repair`") as caught:
                cut_and_bound.write(store, 2)

        assert str(place / ends) in str(caught.value)


def test_a_cut_between_two_writes_of_one_transaction_is_noticed(tmp_path: Path) -> None:
    disk = CuttingDisk()
    with opened("sqlite", tmp_path / "store", disk) as store:
        assert all(acknowledged(store, number) for number in range(10))
        disk.cut("write", "store-wal", 0.4)

        assert not acknowledged(store, 10)
        assert [(before > after) for _, before, after in disk.cuts] == [True]


def test_a_log_that_another_process_moved_and_emptied_was_not_cut_off(tmp_path: Path) -> None:
    """By a second process, whose close moves all of the log while this one has the file open."""
    with opened("sqlite", tmp_path / "store") as store:
        assert acknowledged(store, 1)
        said = subprocess.run(
            [sys.executable, "-c", WRITES, "sqlite", str(tmp_path / "store")],
            capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
        ).stdout  # fmt: skip

        assert said == "20\n"
        assert (tmp_path / "store-wal").stat().st_size == 0
        assert all(acknowledged(store, number) for number in range(2, 40))


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_second_process_under_a_second_name_is_refused_and_nothing_is_lost(
    kind: str, tmp_path: Path
) -> None:
    with opened(kind, tmp_path / "store") as store:
        assert acknowledged(store, 1)
        (tmp_path / "link").hardlink_to(tmp_path / "store")

        said = subprocess.run(
            [sys.executable, "-c", WRITES, kind, str(tmp_path / "link")],
            capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
        ).stdout  # fmt: skip

        assert said == "refused\n"
        assert all(acknowledged(store, number) for number in range(2, 10))


def test_one_journal_under_two_names_loses_no_acknowledged_key(tmp_path: Path, tally: Tally) -> None:
    cut_and_bound.two_names(tmp_path)
    tally("file: opened under two names", faults=1, lost=0)
