"""`keepstate demo`: no update is lost while workers are killed, on each store that processes can share."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Keepstate, Started

WORKER = (sys.executable, "-m", "keepstate.cli.demo", "demo", "worker-1")


@pytest.mark.slow
@pytest.mark.parametrize("store", ["url", "redis_url", "postgres_url"])
def test_no_update_is_lost_when_a_worker_is_killed(
    keepstate: Keepstate, shell: Keepstate, store: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(store)

    ended = shell("demo", "--workers", "2", "--most", "60", "--json", "--url", url)

    assert ended.code == 0, ended.err
    told = ended.json()
    assert told["equal"] and told["counted"] == told["recounted"]
    assert (told["modules"], told["agents"]) == (60, ["worker-1", "worker-2"])
    assert (told["workers_killed"], told["workers_recovered"]) == (1, 1)
    assert told["modules_taken_over"] >= 1
    assert keepstate("spaces", "--url", url).out == ""


@pytest.mark.slow
def test_people_see_the_kill_and_the_second_count(shell: Keepstate, url: str, tmp_path: Path) -> None:
    ended = shell("demo", "--workers", "2", "--most", "60", "--keep", "--url", url, TMPDIR=str(tmp_path))

    assert ended.code == 0, ended.err
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+)  equal$", ended.out, re.MULTILINE)
    assert [name for name, *_ in rows] == ["modules", "lines", "events", "commits"]
    assert all(counted == again for _, counted, again in rows)
    assert re.search(r"worker-\d \(process \d+\) is killed while it holds \S+", ended.err)
    assert re.search(r"worker-\d continues from its own count: \d+ module", ended.err)
    (space,) = shell("spaces").out.split()
    assert shell("log", space).out.count("count ") == 60
    assert not list(tmp_path.glob("keepstate-demo-*"))


@pytest.mark.slow
def test_the_temporary_store_stays_if_asked(shell: Keepstate, tmp_path: Path) -> None:
    words = ("demo", "--workers", "1", "--kill", "0", "--most", "3")

    assert shell(*words, TMPDIR=str(tmp_path)).code == 0
    assert not list(tmp_path.glob("keepstate-demo-*"))

    kept = shell(*words, "--keep", TMPDIR=str(tmp_path))

    assert kept.code == 0, kept.err
    (found,) = re.findall(r"To look into it: keepstate (log .+)$", kept.err, re.MULTILINE)
    assert shell(*shlex.split(found)).out.count("count ") == 3


def test_a_worker_that_could_not_be_killed_in_time_is_told(shell: Keepstate) -> None:
    ended = shell("demo", "--workers", "2", "--kill", "1", "--most", "1")

    assert (ended.code, "workers were killed in time: take more modules" in ended.err) in {
        (1, True),
        (0, False),
    }


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("sqlite:////no/such/folder/demo.db", 3, "The folder /no/such/folder of"),
        ("redis://127.0.0.1:1/0?retry_for_s=0", 3, "127.0.0.1:1"),
        ("nowhere", 2, "is not a store URL"),
    ],
)
def test_a_worker_that_fails_says_why_in_one_line(started: Started, url: str, code: int, words: str) -> None:
    worker = started(command=WORKER)

    out, err = worker.communicate(url, timeout=60)

    assert (worker.returncode, err) == (code, "")
    assert words in out
    assert len(out.splitlines()) == 1


def test_a_store_of_one_process_is_rejected(keepstate: Keepstate) -> None:
    ended = keepstate("demo", "--url", "memory://", "--most", "1")

    assert ended.code == 2
    assert "cannot be shared" in ended.err


def test_the_last_worker_cannot_be_killed(keepstate: Keepstate) -> None:
    assert keepstate("demo", "--workers", "1", "--kill", "1").code == 2
