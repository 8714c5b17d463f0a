"""`keepstate migrate` writes older versions anew, and refuses what is newer than the application."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Keepstate

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


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    (tmp_path / "old_trips.py").write_text(OLD)
    (tmp_path / "new_trips.py").write_text(NEW)
    return tmp_path


def put(module: str, url: str, folder: Path, space: str) -> None:
    """Puts a document with the code of a module, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, "-c", PUT.format(module, url, space)]
    subprocess.run(command, env=environment, check=True)


def test_older_versions_are_told_of_and_then_written_anew(shell: Keepstate, url: str, modules: Path) -> None:
    put("old_trips", url, modules, "run/1")
    put("new_trips", url, modules, "run/2")

    dry = shell("migrate", "--app", "new_trips", "--dry-run")
    done = shell("migrate", "--app", "new_trips", "--json")
    again = shell("migrate", "--app", "new_trips")

    assert (dry.code, dry.out) == (0, "run/1: 1 document, cli/trip@1 in 1; 0 written\n")
    assert done.lines() == [
        {"space": "run/1", "documents": 1, "older": {"cli/trip@1": 1}, "written": 1, "left": {}}
    ]
    assert (again.code, again.out) == (0, "2 documents, all of the newest versions\n")
    assert shell("get", "run/1", "trip", "--app", "new_trips").json() == {"@type": "cli/trip@2", "cents": 700}


def test_a_newer_version_is_refused_before_anything_is_written(
    shell: Keepstate, url: str, modules: Path
) -> None:
    put("new_trips", url, modules, "run/2")

    refused = shell("migrate", "--app", "old_trips")

    assert refused.code == 2
    assert "document 'trip' of 'run/2': cli/trip@2 is stored here" in refused.err
    assert "knows cli/trip@1" in refused.err


def test_without_a_module_nothing_can_be_migrated(keepstate: Keepstate) -> None:
    refused = keepstate("migrate")

    assert refused.code == 2
    assert "--app MODULE" in refused.err
