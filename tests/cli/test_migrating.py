"""`keepstate migrate` goes to the versions that the application writes, and names what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Keepstate, Started

OLD = """
from dataclasses import dataclass
from keepstate import register

@register("cli/trip")
@dataclass
class Trip:
    price: float
"""
NEW = """
from dataclasses import dataclass
from keepstate import register, upcast

@register("cli/trip", version=2)
@dataclass
class Trip:
    cents: int

@upcast("cli/trip", 1)
def cents(fields):
    return {"cents": round(100 * fields["price"])}
"""
PUT = """
import {0}
from keepstate import sync
with sync.open("{1}") as ks:
    ks.space("{2}").documents.put("trip", {0}.Trip(7))
"""

PINNED = """
from keepstate import downcast, register_write_version

@downcast("cli/trip", 2)
def in_dollars(fields):
    return {"price": fields["cents"] / 100}

register_write_version("cli/trip", 1)
"""

PUT_MANY = """
import old_trips
from keepstate import sync
with sync.open("{0}") as ks:
    for space in ("run/1", "run/2"):
        with ks.space(space).transaction() as tx:
            for number in range({1}):
                tx.documents.put(f"trip {{number}}", old_trips.Trip(number))
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "old_trips.py").write_text(OLD)
    (tmp_path / "new_trips.py").write_text(NEW)
    return tmp_path


def put(module: str, url: str, folder: Path, space: str) -> None:
    """Put a document with the code of a module, in a process of its own."""
    run(PUT.format(module, url, space), folder)


def run(code: str, folder: Path) -> None:
    """Run code that finds the modules, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_older_versions_are_told_of_and_then_written_anew(shell: Keepstate, url: str, modules: Path) -> None:
    put("old_trips", url, modules, "run/1")
    put("new_trips", url, modules, "run/2")

    dry = shell("migrate", "--app", "new_trips", "--dry-run")
    done = shell("migrate", "--app", "new_trips", "--json")
    again = shell("migrate", "--app", "new_trips")

    assert (dry.code, dry.out) == (0, "run/1: 1 document, cli/trip@1 to cli/trip@2 in 1; nothing written\n")
    assert done.lines() == [
        {
            "tenant": None, "space": "run/1", "documents": 1, "due": 1, "written": 1,
            "steps": [{"from": "cli/trip@1", "to": "cli/trip@2", "documents": 1}],
            "lost": {}, "refused": {}, "unknown": {}, "reindex": [],
        }
    ]  # fmt: skip
    assert (again.code, again.out) == (0, "2 documents, all of the versions that the application writes\n")
    assert shell("get", "run/1", "trip", "--app", "new_trips").json() == {"@type": "cli/trip@2", "cents": 700}


def test_documents_go_down_to_the_version_that_the_application_writes_and_back(
    shell: Keepstate, url: str, modules: Path
) -> None:
    (modules / "pinned_trips.py").write_text(NEW + PINNED)
    (modules / "other_trips.py").write_text("")
    put("new_trips", url, modules, "run/1")
    put("new_trips", url, modules, "run/10")

    down = shell("migrate", "--app", "pinned_trips", "--under", "run/1")

    assert (down.code, down.out) == (0, "run/1: 1 document, cli/trip@2 to cli/trip@1 in 1; 1 written\n")
    assert shell("get", "run/1", "trip", "--app", "old_trips").json() == {
        "@type": "cli/trip@1",
        "price": 0.07,
    }
    up = shell(
        "migrate", "run/1", "--app", "pinned_trips", "--to-version", "cli/trip=newest", "--json"
    ).lines()
    assert up[0]["steps"] == [{"from": "cli/trip@1", "to": "cli/trip@2", "documents": 1}]
    assert shell("get", "run/1", "trip", "--app", "new_trips").json() == {"@type": "cli/trip@2", "cents": 7}
    assert shell("migrate", "--app", "other_trips").out.splitlines() == [
        "run/1: cli/trip@2 in 1, whose class is not registered in this version",
        "run/10: cli/trip@2 in 1, whose class is not registered in this version",
        "2 documents; none can be migrated",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--to-version", "cli/trip"], "names no version"),
        (["--to-version", "cli/trip=0"], "names no version"),
        (["--to-version", "cli/trip=3"], "this application knows cli/trip@2"),
        (["--to-version", "cli/trip=1"], "write a downcaster: @downcast('cli/trip', 2)"),
        (["--to-version", "nothing=1"], "no class is registered as 'nothing'"),
        (["run/1", "--under", "run"], "not both"),
    ],
    ids=str,
)
def test_a_version_that_cannot_be_written_is_refused_before_anything_is_read(
    shell: Keepstate, url: str, modules: Path, given: list[str], said: str
) -> None:
    put("new_trips", url, modules, "run/1")

    refused = shell("migrate", "--app", "new_trips", *given)

    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err


def test_what_a_downcaster_loses_is_refused_unless_it_is_declared(
    shell: Keepstate, url: str, modules: Path
) -> None:
    losing = NEW + PINNED.replace('fields["cents"] / 100', 'fields["cents"] // 100')
    (modules / "losing_trips.py").write_text(losing)
    (modules / "declaring_trips.py").write_text(
        losing.replace('@downcast("cli/trip", 2)', '@downcast("cli/trip", 2, loses="the cents")')
    )
    put("new_trips", url, modules, "run/1")

    refused = shell("migrate", "--app", "losing_trips")
    done = shell("migrate", "--app", "declaring_trips")

    assert refused.code == 1
    assert "refused trip: cli/trip@2 to cli/trip@1 does not come back as it was" in refused.out
    assert done.code == 0
    assert "run/1: data is lost, cli/trip@2: the cents in 1" in done.out


def test_documents_of_all_tenants_are_written_anew(shell: Keepstate, url: str, modules: Path) -> None:
    put("old_trips", url, modules, "run/1")
    run(PUT.format("old_trips", f'{url}", tenant="acme', "run/1"), modules)

    done = shell("migrate", "--app", "new_trips", "--json").lines()

    assert [(each["tenant"], each["space"], each["written"]) for each in done] == [
        (None, "run/1", 1), ("acme", "run/1", 1)
    ]  # fmt: skip


def test_a_newer_version_than_the_application_knows_is_refused_by_name(
    shell: Keepstate, url: str, modules: Path
) -> None:
    put("new_trips", url, modules, "run/2")

    refused = shell("migrate", "--app", "old_trips")

    assert refused.code == 1
    assert "  refused trip: cli/trip@2 is stored here and this application knows cli/trip@1" in refused.out
    assert "upgrade this one" in refused.out


def test_progress_tells_how_many_are_written_of_each_space(shell: Keepstate, url: str, modules: Path) -> None:
    run(PUT_MANY.format(url, 120), modules)

    done = shell("migrate", "--app", "new_trips")

    assert done.err.splitlines() == [
        f"{place} of 2  run/{place}: written {written} of 120 documents"
        for place in (1, 2)
        for written in (50, 100, 120)
    ]
    assert done.out.splitlines()[0] == "run/1: 120 documents, cli/trip@1 to cli/trip@2 in 120; 120 written"


def test_a_killed_migration_goes_on_where_it_was(
    shell: Keepstate, started: Started, url: str, modules: Path
) -> None:
    run(PUT_MANY.format(url, 900), modules)
    process = started("migrate", "--app", "new_trips")
    assert process.stderr is not None
    first = process.stderr.readline()
    process.kill()
    process.wait()

    left = shell("migrate", "--app", "new_trips", "--dry-run", "--json").lines()
    again = shell("migrate", "--app", "new_trips", "--json").lines()

    assert first == "1 of 2  run/1: written 50 of 900 documents\n"
    due = [space["due"] for space in left]
    assert due[-1] == 900
    assert due[0] <= 850
    assert [space["written"] for space in again] == due
    assert (
        shell("migrate", "--app", "new_trips").out
        == "1,800 documents, all of the versions that the application writes\n"
    )
    trip = shell("get", "run/1", "trip 899", "--app", "new_trips").json()
    assert trip == {"@type": "cli/trip@2", "cents": 89900}


def test_a_space_that_is_not_there_is_no_success(shell: Keepstate, url: str, modules: Path) -> None:
    put("old_trips", url, modules, "run/1")

    refused = shell("migrate", "run", "--app", "new_trips")

    assert (refused.code, refused.out) == (1, "")
    assert "nothing is in space 'run'" in refused.err


def test_without_a_module_nothing_can_be_migrated(keepstate: Keepstate) -> None:
    refused = keepstate("migrate")

    assert refused.code == 2
    assert "--app MODULE" in refused.err
