"""The demo counts every module once, although a worker is killed in mid-run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from keepstate.testing.servers import Redis
from tests.cli.conftest import Keepstate, Started

WORKER = (sys.executable, "-m", "keepstate.cli.demo_worker", "demo", "worker 1")


@pytest.mark.slow
@pytest.mark.parametrize("store", ["url", "redis_url", "postgres_url"])
def test_nothing_is_lost_or_done_twice_when_a_worker_is_killed(
    keepstate: Keepstate, shell: Keepstate, store: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(store)

    ended = shell("demo", "--workers", "2", "--most", "100", "--json", "--url", url)

    assert ended.code == 0, ended.err
    told = ended.json()
    assert told["equal"]
    assert (told["modules"], told["commits"], told["workers_killed"]) == (100, 100, 1)
    assert told["modules_taken_over"] >= 1
    assert told["counted"] == told["recounted"]
    # One for each module, the killed worker's too, and a claim for each four of them.
    assert told["transactions"] >= 100 + 100 / 4
    assert told["transactions_per_second"] == pytest.approx(
        told["transactions"] / told["seconds"], rel=0.01, abs=0.1
    )
    assert keepstate("spaces", "--url", url).out == ""


@pytest.mark.slow
def test_people_see_every_counter_twice_and_a_history_that_they_can_look_into(
    keepstate: Keepstate, shell: Keepstate, tmp_path: Path
) -> None:
    ended = shell("demo", "--workers", "2", "--most", "100", TMPDIR=str(tmp_path))

    assert ended.code == 0, ended.err
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+) +equal$", ended.out, re.MULTILINE)
    assert [name for name, *_ in rows] == [
        "modules", "functions", "classes", "lines", "imports", "documents", "events", "commits",
    ]  # fmt: skip
    assert all(counted == again for _, counted, again in rows)
    assert re.search(r"100 modules in [\d.]+ s: \d+ transactions a second, \d+ conflicts resolved", ended.out)
    assert "1 killed in mid-run" in ended.out
    (worker,) = re.findall(r"(worker \d) \(process \d+\) is killed while it holds modules", ended.err)
    early, before, changed, done = [
        shlex.split(words) for words in re.findall(r"^\$ keepstate (.+)$", ended.out, re.MULTILINE)
    ]
    assert early[0] == "show"
    assert early[2:] == ["main#37", "totals"]
    assert [before[0], changed[0], done[0]] == ["show", "diff", "blame"]
    (url,) = re.findall(r"export KEEPSTATE_URL='(.+)'", ended.err)
    assert keepstate(*early, "--json", "--url", url).json()["value"]["modules"] == 37
    number = int(before[2].removeprefix("main#"))
    assert keepstate(*before, "--json", "--url", url).json()["value"]["modules"] == number
    assert "totals.modules" in {one["path"] for one in keepstate(*changed, "--json", "--url", url).lines()}
    author = keepstate(*done, "--json", "--url", url).json()["commit"]["author"]
    assert author.startswith("worker ")
    assert author != worker
    assert re.search(rf"rm -r {tmp_path}/keepstate-demo-\w+$", ended.err, re.MULTILINE)


@pytest.mark.slow
def test_the_space_stays_in_a_store_of_ones_own_only_if_asked(
    keepstate: Keepstate, shell: Keepstate, url: str, tmp_path: Path
) -> None:
    words = ("demo", "--workers", "1", "--kill", "0", "--most", "2")

    shown = shell(*words, "--url", url)
    told = shell(*words, "--url", url, "--keep", "--json").json()
    piped = shell(*words, "--json", TMPDIR=str(tmp_path)).json()

    assert shown.code == 0, shown.err
    assert "$ keepstate diff demo/" in shown.out
    assert "KEEPSTATE_URL" not in shown.err
    assert piped["equal"]
    assert keepstate("spaces").out.split() == [told["space"]]
    assert keepstate("log", told["space"]).out.count("put module/") == 2
    assert not list(tmp_path.glob("keepstate-demo-*"))


def test_a_worker_that_could_not_be_killed_in_time_is_told(shell: Keepstate) -> None:
    ended = shell("demo", "--workers", "2", "--most", "1")

    assert ended.code == 1
    assert "0 of 1 workers were killed before all was done: take more modules" in ended.err


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("sqlite:////no/such/folder/demo.db", 3, "the folder /no/such/folder of"),
        ("redis://127.0.0.1:1/0?retry_for_s=0", 3, "127.0.0.1:1"),
        ("nowhere", 2, "nowhere"),
    ],
)
def test_a_worker_that_fails_says_why_in_one_line(started: Started, url: str, code: int, words: str) -> None:
    worker = started(command=WORKER)

    out, err = worker.communicate(url, timeout=30)

    assert (worker.returncode, err) == (code, "")
    assert words in out
    assert len(out.splitlines()) == 1


def test_the_demo_ends_with_what_a_worker_says_when_it_fails(shell: Keepstate) -> None:
    with Redis(settings={"maxclients": "2"}) as server:
        ended = shell("demo", "--url", f"{server.url}?retry_for_s=0", "--workers", "3", "--most", "400")

    assert ended.code == 3
    # Whether its reason is still read before the connection is gone is a matter of luck.
    assert re.search(r"^keepstate: worker \d failed: .*127\.0\.0\.1", ended.err, re.MULTILINE)
    assert "Traceback" not in ended.err


def test_a_store_of_one_process_is_refused(keepstate: Keepstate) -> None:
    ended = keepstate("demo", "--url", "memory://", "--most", "1")

    assert ended.code == 2
    assert "cannot be shared" in ended.err


def test_the_last_worker_cannot_be_killed(keepstate: Keepstate) -> None:
    assert keepstate("demo", "--workers", "1", "--kill", "1").code == 2
