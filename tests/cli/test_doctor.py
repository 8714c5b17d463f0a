"""The doctor names each setting that loses data, its value, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from keepstate_testing.servers import Postgres, Redis, RedisCluster

from tests.cli.conftest import Ended, Keepstate


def _risks(told: Ended) -> dict[str, Any]:
    """Return the findings that are not well by the last word of their subject: the setting's name."""
    return {f["subject"].split()[-1]: f for f in told.json()["findings"] if not f["well"]}


def test_nothing_is_wrong_with_a_durable_file(keepstate: Keepstate) -> None:
    keepstate("put", "run", "plan", "1")

    told = keepstate("doctor", "--json")

    assert told.code == 0
    assert told.json()["well"]
    findings = {finding["subject"]: finding for finding in told.json()["findings"]}
    assert findings["an acknowledged write survives"]["text"] == "a power cut"
    assert findings["SQLite"]["value"].startswith("3.")


def test_the_room_on_the_disk_of_a_file_is_reported(
    keepstate: Keepstate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keepstate("put", "run", "plan", "1")
    keepstate("make-room", "--reserve", "1")

    def disk(told: Ended) -> dict[str, Any]:
        return next(each for each in told.json()["findings"] if each["subject"] == "disk")

    plenty = disk(keepstate("doctor", "--json"))
    monkeypatch.setattr("keepstate.cli.doctor.disk_usage", lambda _: SimpleNamespace(free=1_000))
    little = keepstate("doctor", "--json")

    files_bytes = int(plenty["text"].split()[-1].replace(",", ""))
    assert files_bytes > 1 << 20 and "bytes free" in plenty["text"]
    assert disk(little)["text"].startswith("1,000 bytes free") and "make room" in disk(little)["mend"]
    assert little.code == 0  # a full disk loses nothing


def test_normal_durability_is_shown_with_what_it_survives(keepstate: Keepstate, url: str) -> None:
    keepstate("put", "run", "plan", "1")

    told = keepstate("doctor", "--url", f"{url}?durability=normal")

    assert told.code == 1
    assert "durability=full" in told.out
    assert "a crash of the process or server, not a power cut" in told.out


def test_memory_keeps_nothing_and_says_what_does(keepstate: Keepstate) -> None:
    told = keepstate("doctor", "--url", "memory://", "--json")

    assert told.code == 1
    assert _risks(told)["survives"]["mend"] == "use sqlite:/// to keep anything"


@pytest.mark.server
def test_each_risky_setting_of_redis_is_listed_until_it_is_mended(keepstate: Keepstate) -> None:
    with Redis() as server:
        before = _risks(keepstate("doctor", "--json", "--url", server.url))
        shown = keepstate("doctor", "--url", server.url).out
        server.command("CONFIG", "SET", "appendonly", "yes")
        half_way = _risks(keepstate("doctor", "--json", "--url", server.url))
        server.command("CONFIG", "SET", "appendfsync", "always")
        server.command("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
        rewriting = _risks(keepstate("doctor", "--json", "--url", server.url))
        server.command("CONFIG", "SET", "no-appendfsync-on-rewrite", "no")
        after = keepstate("doctor", "--json", "--url", server.url)

    assert {name: f.get("value") for name, f in before.items()} == {
        "survives": None, "appendonly": "no", "appendfsync": "everysec", "save": "''",
    }  # fmt: skip
    assert "CONFIG SET appendonly yes" in before["appendonly"]["mend"]
    assert f"risk {server.url[8:-2]} appendonly = no: the server has no log of its writes" in shown
    assert set(half_way) == {"survives", "appendfsync"}
    assert "last two seconds" in half_way["appendfsync"]["text"]
    assert set(rewriting) == {"no-appendfsync-on-rewrite"}
    assert (after.code, _risks(after)) == (0, {})


@pytest.mark.server
def test_a_policy_that_throws_state_away_is_listed(keepstate: Keepstate) -> None:
    with Redis(settings={"maxmemory-policy": "allkeys-lru"}) as server:
        risks = _risks(keepstate("doctor", "--json", "--url", server.url))

    assert risks["maxmemory-policy"]["value"] == "allkeys-lru"
    assert "CONFIG SET maxmemory-policy noeviction" in risks["maxmemory-policy"]["mend"]


@pytest.mark.server
def test_a_server_that_keeps_its_settings_to_itself_is_judged_by_what_it_tells(keepstate: Keepstate) -> None:
    with Redis(appendonly=True, appendfsync="always") as server:
        server.command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all", "-config")
        url = server.url.replace("redis://", "redis://ann:secret@")
        told = keepstate("doctor", "--json", "--url", url)

    assert told.code == 1
    assert "secret" not in told.out
    risks = _risks(told)
    assert "appendonly" not in risks
    assert risks["appendfsync"]["value"] == "not known"
    assert risks["appendfsync"]["text"] == "the losses in a power cut are unknown"


@pytest.mark.server
@pytest.mark.slow
def test_replicas_of_a_cluster_are_a_risk_until_a_master_waits_for_one(keepstate: Keepstate) -> None:
    with RedisCluster(replicas=1, appendonly=True, settings={"appendfsync": "always"}) as cluster:
        before = _risks(keepstate("doctor", "--json", "--url", cluster.url))
        for node in cluster.nodes:
            node.command("CONFIG", "SET", "min-replicas-to-write", "1")
        after = _risks(keepstate("doctor", "--json", "--url", cluster.url))

    assert set(before) == {"replicas", "min-replicas-to-write", "cluster-node-timeout"}
    assert before["cluster-node-timeout"]["value"] == "1000"
    assert set(after) == {"replicas"}


@pytest.mark.server
@pytest.mark.slow
def test_each_risky_setting_of_postgresql_is_listed_with_where_to_mend_it(keepstate: Keepstate) -> None:
    with Postgres(durable=False) as server:
        risks = _risks(keepstate("doctor", "--json", "--url", server.url))
    with Postgres() as server:
        well = keepstate("doctor", "--json", "--url", server.url)
        with server._connect() as connection:
            connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
        by_role = _risks(keepstate("doctor", "--json", "--url", server.url))
        with server._connect() as connection:
            connection.execute("ALTER ROLE postgres RESET synchronous_commit")
            connection.execute("ALTER SYSTEM SET full_page_writes = off")
            connection.execute("SELECT pg_reload_conf()")
        in_file = _risks(keepstate("doctor", "--json", "--url", server.url))

    assert set(risks) == {"survives", "fsync", "full_page_writes", "synchronous_commit"}
    assert risks["fsync"]["value"] == "off"
    assert "command line" in risks["fsync"]["mend"]
    assert (well.code, _risks(well)) == (0, {})
    assert set(by_role) == {"survives", "synchronous_commit"}
    assert "ALTER ROLE" in by_role["synchronous_commit"]["mend"]
    assert "ALTER SYSTEM SET full_page_writes = 'on'" in in_file["full_page_writes"]["mend"]
    assert in_file["survives"]["text"] == "a crash of the process or server, not a power cut"
