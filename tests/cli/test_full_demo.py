"""The full demo of `examples/`: its team indexes each module once, while some are killed and all paused."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from keepstate_testing.servers import Redis

from keepstate.cli.exits import INTERRUPTED
from tests.cli.conftest import Ended, Keepstate, Started

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DEMO = (sys.executable, "-m", "examples.demo")
WORKER = (sys.executable, "-m", "examples.demo.worker", "demo", "ada")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def play(tmp_path: Path) -> Keepstate:
    """Run the example as `make demo` does."""

    def ended(*words: str, **environment: str) -> Ended:
        done = subprocess.run(
            [*DEMO, *words],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", **environment},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return ended


@pytest.mark.slow
@pytest.mark.parametrize("store", ["url", "redis_url", "postgres_url"])
def test_nothing_is_lost_or_done_twice_when_agent_and_conductor_are_killed(
    keepstate: Keepstate, play: Keepstate, store: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(store)

    ended = play("--workers", "2", "--most", "48", "--json", "--url", url)

    assert ended.code == 0, ended.err
    told = ended.json()
    assert told["equal"]
    assert (told["modules"], told["commits"], told["agents"]) == (48, 48, ["ada", "ben"])
    assert (told["workers_killed"], told["workers_recovered"], told["conductors_killed"]) == (1, 1, 1)
    assert told["modules_taken_over"] >= 1
    assert told["stood_still"] and 32 <= told["paused_at"] <= 48
    assert told["counted"] == told["recounted"]
    assert {name: told["counted"][name] for name in told["counted_by_agents"]} == told["counted_by_agents"]
    # One for each module, the killed agent's too, and a claim for each of them.
    assert told["transactions"] >= 96
    assert told["transactions_per_second"] == pytest.approx(
        told["transactions"] / told["seconds"], rel=0.01, abs=0.1
    )
    assert keepstate("spaces", "--url", url).out == ""


@pytest.mark.slow
def test_people_see_what_happens_what_came_of_it_and_what_to_try(
    keepstate: Keepstate, play: Keepstate, started: Started, tmp_path: Path
) -> None:
    ended = play("--workers", "2", "--most", "100", TMPDIR=str(tmp_path))

    assert ended.code == 0, ended.err
    rows = re.findall(r"^(\w+) +([\d,]+) +([\d,]+) +equal$", ended.out, re.MULTILINE)
    assert [name for name, *_ in rows] == [
        "modules", "functions", "classes", "lines", "bytes", "imports",
        "documents", "events", "commits", "tasks", "embeddings",
    ]  # fmt: skip
    assert all(counted == again for _, counted, again in rows)
    assert re.search(r"together: 100 modules, [\d,]+ lines  equal$", ended.out, re.MULTILINE)
    assert re.search(r"100 modules in [\d.]+ s: [\d,]+ transactions, \d+ conflicts resolved", ended.out)
    assert "1 killed during the run, 1 recovered" in ended.out
    happened = [line[9:] for line in ended.err.splitlines() if re.match(r" *[\d.]+ s  ", line)]
    assert in_order(
        happened,
        r"ada and ben begin",
        r"(ada|ben) \(process \d+\) is killed while it holds \S+",
        r"(ada|ben) continues from its checkpoint: \d+ modules",
    )
    assert in_order(
        happened,
        r"step 1 of 4, collect: the team's queue has 100 tasks",
        r"the workflow is paused",
        r"(\d+) modules are indexed; a second later still \1",
        r"the workflow is resumed",
        r"step 2 of 4, index: all 100 modules",
    )
    assert in_order(
        happened,
        r"the conductor \(process \d+\) is killed too",
        r"the new conductor continues after step 1",
        r"step 4 of 4, report: the knowledge base is complete, with 100 documents",
    )
    told = [line for line in README.read_text("utf-8").splitlines() if re.match(r" *[\d.]+ s  ", line)]
    assert told and {form_of(line[9:]) for line in told} <= {form_of(line) for line in happened}
    (killed,) = re.findall(r"s  (\w+) \(process \d+\) is killed while", ended.err)
    (url,) = re.findall(r"export KEEPSTATE_URL='(.+)'", ended.err)
    shows_each_manager(ended.out)
    shows_a_history(keepstate, url, ended.out, killed)
    tries = re.findall(r"^  keepstate (.+)$", ended.err, re.MULTILINE)
    assert len(tries) >= 4
    for words in tries:
        command = shlex.split(words, comments=True)
        if command[0] == "serve":
            serves_a_link(started(*command, "--port", "0", "--url", url))
            continue
        tried = keepstate(*command, "--url", url)
        assert tried.code == 0 and tried.out
    assert re.search(rf"rm -r {tmp_path}/keepstate-demo-\w+$", ended.err, re.MULTILINE)


def serves_a_link(server: subprocess.Popen[str]) -> None:
    """Check that a server prints a link for a browser, and ends by a signal."""
    assert server.stdout is not None
    assert any("/#" in line for line in iter(server.stdout.readline, ""))
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0


def shows_each_manager(out: str) -> None:
    for manager in ("Orchestration", "Workflow", "Tool", "Knowledge"):
        assert f"{manager}StateManager" in out
    assert "AgentStateStore" in out
    assert "its queue: 0 pending, 0 in progress, 100 completed" in out
    assert "COMPLETED: 4 of 4 steps" in out
    assert "0 wait for a retry" in out
    assert "COMPLETED: 100 of 100 documents, 0 failed" in out


def shows_a_history(keepstate: Keepstate, url: str, out: str, killed: str) -> None:
    """Check the commands that the end of the demo shows: run again, they say what was told."""
    early, before, changed, done = [
        shlex.split(words) for words in re.findall(r"^\$ keepstate (.+)$", out, re.MULTILINE)
    ]
    assert [early[0], *early[2:]] == ["show", "main#37", "totals"]
    assert [before[0], changed[0], done[0]] == ["show", "diff", "blame"]
    then = keepstate(*before, "--json", "--url", url).json()["value"]["modules"]
    assert 0 < keepstate(*early, "--json", "--url", url).json()["value"]["modules"] <= then < 100
    assert keepstate(*changed, "--json", "--url", url).lines()
    commit = keepstate(*done, "--json", "--url", url).json()["commit"]
    assert commit["message"].startswith("index ") and commit["author"] in ("ada", "ben")


def form_of(line: str) -> str:
    """Return a line of what happened without its numbers and names."""
    return re.sub(r"\d[\d,]*", "N", re.sub(r"\S+\.py", "M", re.sub(r"\b(ada|ben)\b", "A", line)))


def in_order(lines: list[str], *patterns: str) -> bool:
    """Return whether there is a line for each pattern, one behind the other."""
    left = iter(lines)
    return all(any(re.match(pattern, line) for line in left) for pattern in patterns)


@pytest.mark.slow
def test_the_spaces_stay_in_a_store_of_ones_own_only_if_asked(
    keepstate: Keepstate, play: Keepstate, url: str, tmp_path: Path
) -> None:
    words = ("--workers", "1", "--kill", "0", "--most", "12")

    shown = play(*words, "--url", url)
    told = play(*words, "--url", url, "--keep", "--json").json()
    piped = play(*words, "--json", TMPDIR=str(tmp_path)).json()

    assert shown.code == 0, shown.err
    assert "$ keepstate diff demo/" in shown.out
    assert "KEEPSTATE_URL" not in shown.err
    assert piped["equal"]
    assert keepstate("spaces").out.split() == [told["space"], f"{told['space']}/tools"]
    assert keepstate("log", told["space"]).out.count("index ") == 12
    assert not list(tmp_path.glob("keepstate-demo-*"))


def test_an_agent_that_could_not_be_killed_in_time_is_told(play: Keepstate) -> None:
    ended = play("--workers", "2", "--most", "1")

    assert ended.code == 1
    assert "0 of 1 agents were killed before all was done: take more modules" in ended.err


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


@pytest.mark.server
def test_the_demo_ends_with_what_a_worker_says_when_it_fails(play: Keepstate) -> None:
    with Redis(settings={"maxclients": "2"}) as server:
        # The server refuses whoever comes third. Now and then that is the demo itself.
        for _ in range(8):
            ended = play("--url", f"{server.url}?retry_for_s=0", "--workers", "3", "--most", "400")
            assert ended.code == 3
            assert "Traceback" not in ended.err
            # Whether the server's reason is still read before the connection is gone is a matter of luck.
            assert re.search(r"^(keepstate|demo): .*127\.0\.0\.1", ended.err, re.MULTILINE)
            if re.search(r"^keepstate: \w+ failed: ", ended.err, re.MULTILINE):
                return
    pytest.fail(f"No worker was refused, only the demo: {ended.err}")


def test_a_store_of_one_process_is_refused(play: Keepstate) -> None:
    ended = play("--url", "memory://", "--most", "1")

    assert ended.code == 2
    assert "cannot be shared" in ended.err


@pytest.mark.parametrize(
    "words",
    [("--workers", "0"), ("--kill", "-1"), ("--most", "0"), ("--workers", "1", "--kill", "1")],
    ids=" ".join,
)
def test_a_number_that_the_demo_cannot_use_is_rejected(play: Keepstate, words: tuple[str, ...]) -> None:
    assert play(*words).code == 2


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_with_its_workers_and_its_space(
    keepstate: Keepstate, started: Started, url: str
) -> None:
    keepstate("put", "mine", "note", "1")
    process = started("--workers", "2", "--url", url, command=DEMO)
    assert process.stderr is not None
    while "is killed" not in process.stderr.readline():
        assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (INTERRUPTED, "")
    assert "Traceback" not in err
    assert not any(worker.is_running() for worker in workers)
    assert keepstate("spaces").out == "mine\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_demo_ends_quietly_when_the_reader_of_its_output_is_gone(
    started: Started, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = started("--workers", "1", "--kill", "0", "--most", "2", command=DEMO)
    assert process.stdout is not None and process.stderr is not None
    closed, other = process.stdout, process.stderr
    if stream == "stderr":
        closed, other = other, closed
    closed.close()

    text = other.read()

    assert process.wait(60) == 0
    assert "Traceback" not in text and "BrokenPipeError" not in text
    assert not list(tmp_path.glob("keepstate-demo-*"))
