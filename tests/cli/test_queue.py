"""The commands on tasks, in one space and in all spaces below a name."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

import keepstate as ks_package
from keepstate.engine.queue.queue import Task
from tests.cli.conftest import INSTANT, Keepstate


def _fail(url: str, *spaces: str, tenant: str | None = None) -> None:
    """Put a task of each of two kinds into each space, and let both die."""

    async def handle(task: Task) -> None:
        await task.step("look", len, "four")
        raise ValueError("no such page")

    async def main() -> None:
        async with ks_package.open(url, tenant=tenant) as ks:
            for space in spaces:
                queue = ks.space(space).queue
                for kind in ("report", "mail"):
                    await queue.put(kind, id=f"{kind}/1", kind=kind, max_attempts=1)
                await queue.run({"report": handle, "mail": handle}, idle_s=0.01)

    asyncio.run(main())


def test_a_task_is_shown_with_its_attempts_and_steps(keepstate: Keepstate, url: str) -> None:
    _fail(url, "pool")

    shown = keepstate("queue", "show", "pool", "report/1").json()

    assert (shown["state"], shown["payload"], shown["kind"]) == ("dead", "report", "report")
    assert [attempt["error"] for attempt in shown["attempts"]] == ["ValueError: no such page"]
    assert [(step["name"], step["state"]) for step in shown["steps"]] == [("look", "done")]
    assert keepstate("queue", "show", "pool", "none").err.endswith("see: keepstate queue list pool\n")


def test_dead_tasks_below_a_name_are_requeued_by_kind_and_time(keepstate: Keepstate, url: str) -> None:
    _fail(url, "pool/a", "pool/b", "poolside")
    requeue = ("queue", "requeue", "--under", "pool", "--kind", "report", "--json")

    none = keepstate(*requeue, "--since", "2100-01-01T00:00:00Z").json()
    some = keepstate(*requeue, "--since", "1h").json()

    assert (none, some) == ({"requeued": 0}, {"requeued": 2})
    counts = keepstate("queue", "counts", "--under", "pool", "--json").json()
    assert (counts["ready"], counts["dead"]) == (2, 2)
    assert keepstate("queue", "requeue", "poolside").out == "2 tasks requeued\n"


def test_of_many_tasks_those_that_cannot_be_requeued_or_cancelled_are_named(
    keepstate: Keepstate, url: str
) -> None:
    _fail(url, "pool")
    unknown = [f"none/{number}" for number in range(12)]

    requeued = keepstate("queue", "requeue", "pool", *unknown[:6], "report/1", *unknown[6:])
    cancelled = keepstate("queue", "cancel", "pool", "report/1", *unknown, "--json")

    assert (requeued.code, requeued.out) == (1, "1 task requeued\n")
    assert (cancelled.code, [line["cancelled"] for line in cancelled.lines()]) == (1, [True] + [False] * 12)
    for ended in (requeued, cancelled):
        assert "'none/9': no " in ended.err
        assert "none/10" not in ended.err
        assert "and 2 more" in ended.err
        assert "12 tasks left as before; see: keepstate queue list pool" in ended.err
    assert keepstate("queue", "cancel", "pool").code == 2


def test_queues_of_all_tenants_are_paused_and_resumed(keepstate: Keepstate, url: str) -> None:
    async def claimed() -> int:
        async with ks_package.open(url, tenant="acme") as ks:
            return len(await ks.space("pool").queue.claim("me", lease_s=60))

    _fail(url, "pool", tenant="acme")
    keepstate("queue", "requeue", "pool", "report/1", "--tenant", "acme")

    paused = keepstate("queue", "pause", "--under", "", "--tenants", "--kind", "report")
    held_back = asyncio.run(claimed())
    resumed = keepstate("queue", "resume", "--under", "", "--tenants", "--kind", "report")

    assert (paused.out, resumed.out) == ("1 queue paused\n", "1 queue resumed\n")
    assert (held_back, asyncio.run(claimed())) == (0, 1)


def test_counts_name_the_queues_that_are_paused(keepstate: Keepstate, url: str) -> None:
    _fail(url, "pool/a", "pool/b")
    _fail(url, "pool", tenant="acme")
    keepstate("queue", "pause", "pool/a")
    keepstate("queue", "pause", "pool/b", "--kind", "report")
    keepstate("queue", "pause", "pool", "--tenant", "acme")

    one = keepstate("queue", "counts", "pool/a", "--json").json()
    shown = keepstate("queue", "counts", "--under", "pool").out.splitlines()
    everywhere = keepstate("queue", "counts", "--under", "", "--tenants").out.splitlines()

    assert (one["dead"], one["paused"]) == (2, [{"tenant": None, "space": "pool/a", "kinds": None}])
    assert shown[-2:] == ["paused    pool/a: all kinds", "paused    pool/b: report"]
    assert everywhere[-1] == "paused    tenant 'acme', pool: all kinds"
    keepstate("queue", "resume", "--under", "", "--tenants")
    assert "paused" not in keepstate("queue", "counts", "pool/a").out


def test_dead_tasks_of_many_spaces_are_listed_in_pages(keepstate: Keepstate, url: str) -> None:
    _fail(url, "pool/a", "pool/b", "poolside")
    _fail(url, "pool", tenant="acme")

    first = keepstate("queue", "dead", "--under", "pool", "--limit", "3")
    cursor = first.err.split("--after ")[1].strip()
    rest = keepstate("queue", "dead", "--under", "pool", "--after", cursor, "--json")
    alone = keepstate("queue", "dead", "poolside", "--limit", "1", "--json").lines()
    alone += keepstate("queue", "dead", "poolside", "--after", alone.pop()["next"], "--json").lines()
    everywhere = keepstate("queue", "dead", "--under", "", "--tenants").out.splitlines()

    heads, *rows = (line.split()[:3] for line in first.out.splitlines())
    assert (heads, [row[0] for row in rows]) == (["space", "id", "kind"], ["pool/a", "pool/a", "pool/b"])
    assert "ValueError: no such page" in first.out and "there are more: keepstate queue dead" in first.err
    (last,) = rest.lines()  # the tasks of a space died in any order
    assert (last["space"], last["error"]) == ("pool/b", "ValueError: no such page")
    assert {rows[2][1], last["id"]} == {"report/1", "mail/1"}
    assert {row["id"] for row in alone} == {"report/1", "mail/1"}
    assert sorted({line.split()[0] for line in everywhere[1:]}) == ["'acme'", "-"]
    assert "--under NAME" in keepstate("queue", "dead").err


def test_a_shown_task_has_plain_times_except_in_its_payload(keepstate: Keepstate, url: str) -> None:
    async def put() -> None:
        async with ks_package.open(url) as ks:
            await ks.space("pool").queue.put(datetime(2026, 1, 2, tzinfo=UTC), id="one")

    asyncio.run(put())

    shown, exact = (
        keepstate("queue", "show", "pool", "one"),
        keepstate("queue", "show", "pool", "one", "--json"),
    )

    exactly = {"@type": "datetime", "value": "2026-01-02T00:00:00+00:00"}
    assert shown.json()["payload"] == exact.json()["payload"] == exactly
    assert shown.json()["put_at"] == exact.json()["put_at"]
    assert re.fullmatch(INSTANT, exact.json()["put_at"])
    assert (len(exact.out.splitlines()), len(shown.out.splitlines()) > 10) == (1, True)


def test_an_ended_task_runs_again_or_as_a_copy(keepstate: Keepstate, url: str) -> None:
    _fail(url, "pool")

    copy = keepstate("queue", "rerun", "pool", "mail/1", "--as-id", "mail/2", "--from-step", "look", "--json")
    again = keepstate("queue", "rerun", "pool", "mail/1")

    assert (copy.json(), again.out) == ({"task": "mail/2", "state": "ready"}, "mail/1 ready\n")
    refused = keepstate("queue", "rerun", "pool", "mail/1")
    assert (refused.code, "give --as-id" in refused.err) == (2, True)
    assert keepstate("queue", "rerun", "pool", "mail/1", "--as-id", "mail/2").code == 2
    assert keepstate("queue", "cancel", "pool", "mail/1", "--reason", "late").out == "mail/1 cancelled\n"


def test_a_restored_backup_loses_its_claims_and_leases_and_waits(keepstate: Keepstate, url: str) -> None:
    async def hold() -> int:
        async with ks_package.open(url) as ks:
            pool = ks.space("pool")
            await pool.queue.put("x", id="x", max_attempts=1)
            [task] = await pool.queue.claim("me", lease_s=600)
            await pool.leases.acquire("leader", 600)
            return task.token

    async def claim() -> list[tuple[str, int]]:
        async with ks_package.open(url) as ks:
            pool = ks.space("pool")
            await pool.leases.acquire("leader", 600)
            return [(task.id, task.attempt) for task in await pool.queue.claim("me", lease_s=60)]

    asyncio.run(hold())
    refused = keepstate("restored")

    restored = keepstate("restored", "--yes", "--json").json()

    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert restored == {"spaces": 1, "paused": 1, "claims": 1, "leases": 1}
    assert asyncio.run(claim()) == []
    keepstate("queue", "resume", "--under", "", "--tenants")
    shown = keepstate("queue", "show", "pool", "x").json()
    assert [attempt["error"] for attempt in shown["attempts"]] == [
        "a backup was restored while this attempt was held"
    ]
    keepstate("restored", "--yes")
    keepstate("queue", "resume", "pool")
    assert asyncio.run(claim()) == [("x", 1)]


def test_the_rules_of_a_queue_are_set_and_printed(keepstate: Keepstate) -> None:
    keepstate("put", "pool", "plan", "1")
    none = keepstate("queue", "configure", "pool").json()
    given = '{"limits": [{"running": 2}], "retry": {"first_s": 9, "never": ["ValueError"]}}'
    shown = keepstate("queue", "configure", "pool", given, "--json").json()
    wrong = keepstate("queue", "configure", "pool", '{"limit": 2}')
    kept = keepstate("queue", "configure", "pool", "--json").json()
    again = keepstate("queue", "configure", "pool", json.dumps(shown), "--json").json()

    assert none == {"limits": [], "aging_s": None, "retry": None}
    assert (shown["limits"][0]["running"], shown["retry"]["never"]) == (2, ["ValueError"])
    assert (wrong.code, "`limit`" in wrong.err) == (2, True)
    assert shown == kept == again


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_has_every_command(keepstate: Keepstate, shell: str) -> None:
    script = keepstate("completion", shell).out

    for word in ("export-tenant", "requeue", "older-than", "cancelled"):
        assert word in script


def test_bash_completes_commands_and_options(keepstate: Keepstate, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(keepstate("completion", "bash").out)

    def completed(*words: str) -> list[str]:
        listed = " ".join(map(repr, words))
        line = f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _keepstate; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(
            ["bash", "-c", f"source {tmp_path}/script; {line}"], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("keepstate", "que") == ["queue"]
    assert sorted(completed("keepstate", "queue", "re")) == ["requeue", "rerun", "resume"]
    assert completed("keepstate", "queue", "requeue", "--si") == ["--since"]
