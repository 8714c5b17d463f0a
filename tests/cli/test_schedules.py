"""Schedules at the terminal."""

from __future__ import annotations

from keepstate import sync
from tests.cli.conftest import Keepstate


def test_schedules_are_listed_run_paused_resumed_and_deleted(keepstate: Keepstate, url: str) -> None:
    with sync.open(url) as ks:
        schedules = ks.space("pool").schedules
        schedules.put("nightly", cron="0 2 * * *", zone="Europe/Berlin", kind="report")
        schedules.put("often", every_s=90)

    rows = keepstate("schedules", "pool", "--json").lines()
    assert [(row["name"], row["cron"], row["every_s"]) for row in rows] == [
        ("nightly", "0 2 * * *", None),
        ("often", None, 90.0),
    ]
    told = keepstate("schedules", "pool").out
    assert "0 2 * * * Europe/Berlin" in told and "every 90 s" in told
    assert [keepstate("schedules", "pool", "nightly", flag).code for flag in ("--pause", "--pause")] == [0, 0]
    assert "paused" in keepstate("schedules", "pool", "nightly").out
    assert keepstate("schedules", "pool", "nightly", "--resume", "--json").json()["paused"] is False
    ran = keepstate("schedules", "pool", "nightly", "--run")
    assert ran.out.startswith("schedule/nightly/20")
    assert keepstate("queue", "list", "pool", "ready", "--json").json()["id"] == ran.out.strip()
    assert len(keepstate("schedules", "pool", "often", "--next", "3", "--json").lines()) == 3
    assert len(keepstate("schedules", "pool", "often", "--next", "3").out.splitlines()) == 3
    assert keepstate("schedules", "pool", "often", "--delete").out == "often deleted\n"
    assert [row["name"] for row in keepstate("schedules", "pool", "--json").lines()] == ["nightly"]


def test_a_missing_schedule_and_wrong_options_are_told(keepstate: Keepstate) -> None:
    keepstate("put", "pool", "plan", "1")

    for flag in ((), ("--pause",), ("--resume",), ("--run",), ("--delete",), ("--next", "2")):
        missing = keepstate("schedules", "pool", "gone", *flag)
        assert (missing.code, "no schedule 'gone'" in missing.err) == (1, True), flag
    assert keepstate("schedules", "pool", "gone", "--pause", "--run").code == 2
    assert keepstate("schedules", "pool", "--pause").code == 2
    assert keepstate("schedules", "pool", "gone", "--next", "0").code in (1, 2)
    assert keepstate("schedules", "pool").out == ""
