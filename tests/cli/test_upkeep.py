"""Tasks, sweeping, and how commands end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import keepstate as ks_package
from keepstate.engine.queue.tasks import STATES
from tests.cli.conftest import Keepstate


def _queued(url: str) -> None:
    async def main() -> None:
        async with ks_package.open(url) as ks:
            queue = ks.space("run").queue
            await queue.put("fine", id="fine")
            await queue.put("bad", id="bad", max_attempts=1, priority=1)
            (task,) = await queue.claim("me", lease_s=60)
            await task.fail(ValueError("no such page"))

    asyncio.run(main())


def test_tasks_are_counted_by_state(keepstate: Keepstate, url: str) -> None:
    _queued(url)

    counts = keepstate("queue", "counts", "run", "--json").json()

    assert counts == {**dict.fromkeys(STATES, 0), "ready": 1, "dead": 1, "paused": []}
    assert "dead            1" in keepstate("queue", "counts", "run").out


def test_dead_tasks_are_listed_and_requeued(keepstate: Keepstate, url: str) -> None:
    _queued(url)

    (dead,) = keepstate("queue", "list", "run", "dead", "--json").lines()
    requeued = keepstate("queue", "requeue", "run", "bad", "--json").json()

    assert (dead["id"], dead["error"]) == ("bad", "ValueError: no such page")
    assert requeued == {"requeued": 1}
    assert keepstate("queue", "requeue", "run", "bad").code == 1


def test_tasks_are_listed_in_pages(keepstate: Keepstate, url: str) -> None:
    async def main() -> None:
        async with ks_package.open(url) as ks:
            for number in range(5):
                await ks.space("run").queue.put(number, id=f"task {number}")

    asyncio.run(main())

    first = keepstate("queue", "list", "run", "ready", "--limit", "2", "--json").lines()
    second = keepstate(
        "queue", "list", "run", "ready", "--limit", "2", "--json", "--after", first[-1]["cursor"]
    ).lines()
    last = keepstate("queue", "list", "run", "ready", "--after", second[-1]["cursor"])

    assert [[task["id"] for task in page] for page in (first, second)] == [
        ["task 0", "task 1"], ["task 2", "task 3"],
    ]  # fmt: skip
    assert "task 4" in last.out
    assert "task 3" not in last.out


def test_a_cursor_that_no_listing_gave_is_refused(keepstate: Keepstate, url: str) -> None:
    _queued(url)

    listed = keepstate("queue", "list", "run", "ready", "--after", "beyond")

    assert (listed.code, listed.out) == (2, "")
    assert "beyond" in listed.err


def test_a_sweep_says_how_much_went(keepstate: Keepstate) -> None:
    keepstate("put", "run", "gone", "1", "--ttl-s", "0.001")

    swept = keepstate("sweep", "--json")

    assert swept.json() == {"removed": 1}
    assert keepstate("sweep").out == "0 entries removed\n"


def test_an_unknown_scheme_is_answered_with_the_known_ones(keepstate: Keepstate) -> None:
    ended = keepstate("spaces", "--url", "mongodb://localhost")

    assert (ended.code, ended.out) == (2, "")
    assert "sqlite://" in ended.err
    assert "Traceback" not in ended.err


def test_a_server_that_is_down_is_unavailable(keepstate: Keepstate) -> None:
    ended = keepstate("spaces", "--url", "redis://127.0.0.1:1")

    assert ended.code == 3
    assert "127.0.0.1" in ended.err


def test_a_file_that_is_no_store_is_damaged(keepstate: Keepstate, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and long enough to be seen as none" * 40)

    ended = keepstate("spaces", "--url", f"sqlite:///{tmp_path}/text.db")

    assert ended.code == 5
    assert "text.db" in ended.err


def test_a_missing_argument_is_wrong_usage(keepstate: Keepstate) -> None:
    assert keepstate("get").code == 2


def test_help_names_every_command_and_the_exit_codes(keepstate: Keepstate) -> None:
    told = keepstate("--help")

    assert told.code == 0
    for command in ["demo", "spaces", "ls", "get", "put", "watch", "queue", "sweep", "doctor", "repair"]:
        assert command in told.out
    assert "Exit codes" in told.out
