"""The worker command, and what the queue command does with single tasks."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

import keepstate as ks_package
from keepstate import sync
from tests.cli.conftest import Keepstate, Started

HANDLERS = """
import time
from pathlib import Path

def handle(task):
    if task.payload == "bad":
        raise ValueError("no such page")
    return task.payload * 2

def wait(task):
    Path(__file__).with_name("begun").touch()
    time.sleep(0.3)
    return "waited"

def hang(task):
    Path(__file__).with_name("begun").touch()
    while True:
        time.sleep(60)

def hang_in_a_step(task):
    task.step("hang", hang, task)

handlers = {"": handle, "wait": wait, "hang": hang, "step": hang_in_a_step}
"""


def _put(url: str, *payloads: object, kind: str = "") -> None:
    async def main() -> None:
        async with ks_package.open(url) as ks:
            for payload in payloads:
                await ks.space("pool").queue.put(payload, id=str(payload), kind=kind, max_attempts=1)

    asyncio.run(main())


def test_a_worker_works_and_its_tasks_are_shown_and_run_again(
    keepstate: Keepstate, url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs_of_a_worker.py").write_text(HANDLERS)
    _put(url, "good", "bad")

    ended = keepstate("worker", "pool", "jobs_of_a_worker:handlers", "--idle-s", "0.1", "--json")
    shown = keepstate("queue", "show", "pool", "bad").json()

    assert (ended.json()["completed"], ended.json()["failed"]) == (1, 1)
    assert (shown["state"], [each["error"] for each in shown["attempts"]]) == (
        "dead",
        ["ValueError: no such page"],
    )
    assert keepstate("queue", "rerun", "pool", "bad", "--json").json()["state"] == "ready"
    assert keepstate("queue", "cancel", "pool", "bad", "--reason", "bad", "--json").json()["cancelled"]
    assert keepstate("queue", "cancel", "pool", "bad").code != 0
    assert keepstate("queue", "show", "pool", "nobody").code != 0


def test_a_worker_logs_failed_tasks_where_a_person_sees_them(
    shell: Keepstate, url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs_that_fail.py").write_text(HANDLERS)
    _put(url, "bad")

    ended = shell("worker", "pool", "jobs_that_fail:handlers", "--idle-s", "0.1")

    assert ended.out.startswith("idle: 0 completed, 1 failed")
    assert ended.err.startswith(f"working on tasks in pool of {url}; ")
    assert "task 'bad' of 'pool' failed in attempt 1" in ended.err
    assert ended.err.endswith("ValueError: no such page\n")


def test_a_worker_serves_all_spaces_under_a_name(keepstate: Keepstate, url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs_of_many_spaces.py").write_text(HANDLERS)

    async def put() -> None:
        async with ks_package.open(url) as ks:
            for space in ("user/ann", "user/bob", "team/red"):
                await ks.space(space).queue.put(space, id="one")

    asyncio.run(put())

    ended = keepstate(
        "worker", "--under", "user", "jobs_of_many_spaces:handlers", "--idle-s", "0.1", "--json"
    )

    assert ended.json()["completed"] == 2
    assert keepstate("queue", "show", "user/bob", "one").json()["state"] == "done"
    assert keepstate("queue", "show", "team/red", "one").json()["state"] == "ready"
    both = keepstate("worker", "pool", "jobs_of_many_spaces:handlers", "--under", "user/")
    assert both.code != 0 and "not both" in both.err
    alone = keepstate("worker", "pool")
    assert alone.code != 0 and "MODULE:HANDLERS" in alone.err


def test_a_worker_that_gets_sigterm_ends_its_task_first(started: Started, url: str, tmp_path: Path) -> None:
    (tmp_path / "slow_jobs_of_a_worker.py").write_text(HANDLERS)
    _put(url, "slow", kind="wait")
    worker = started("worker", "pool", "slow_jobs_of_a_worker:handlers", "--json")

    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)

    assert worker.returncode == 0 and '"completed": 1' in out.replace('":1', '": 1')


@pytest.mark.parametrize("kind", ["hang", "step"])
def test_a_worker_whose_handler_never_ends_ends_at_sigterm_and_its_task_is_claimed_again(
    started: Started, url: str, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "jobs_without_end.py").write_text(HANDLERS)
    _put(url, "endless", kind=kind)
    worker = started("worker", "pool", "jobs_without_end:handlers", "--drain-s", "0.1", "--json")

    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    worker.send_signal(signal.SIGTERM)
    out, _ = worker.communicate(timeout=60)

    assert worker.returncode == 0 and json.loads(out)["released"] == 1
    with sync.open(url) as ks:
        (task,) = ks.space("pool").queue.claim("other", lease_s=60)
        assert (task.id, task.attempt) == ("endless", 1)


def test_a_worker_ends_although_a_handler_goes_on_after_its_timeout(
    started: Started, url: str, tmp_path: Path
) -> None:
    (tmp_path / "jobs_without_end.py").write_text(HANDLERS)
    _put(url, "endless", kind="hang")
    options = ("--timeout-s", "0.1", "--idle-s", "0.1", "--json")

    out, _ = started("worker", "pool", "jobs_without_end:handlers", *options).communicate(timeout=60)

    assert json.loads(out)["failed"] == 1
    with sync.open(url) as ks:
        info = ks.space("pool").queue.rerun("endless")
        assert info.state == "ready"
        assert [task.id for task in ks.space("pool").queue.claim("other", lease_s=60)] == ["endless"]
