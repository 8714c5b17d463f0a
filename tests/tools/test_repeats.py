"""A test above the stores runs on memory, SQLite and one server, and `make deep` runs its other cases."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.repeats import Case, is_above_stores, is_other_mode, is_repeated, server_of
from tests.selection import long_files_first

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = "tests/memories/test_memory_contract.py"
EMBEDDED = {("TestMemory", "async"), ("TestPassedSpace", "async"), ("TestSQLite", "blocking")}
SERVERS = {("TestRedis", "async"), ("TestPostgres", "blocking")}


class SimpleItem(pytest.Item):
    """A test that does nothing."""

    def runtest(self) -> None: ...


def test_a_contract_above_the_stores_runs_on_memory_sqlite_and_one_server() -> None:
    daily, deep = collected("not deep"), collected("deep")

    assert len(daily) > 10
    assert {name: cases - SERVERS for name, cases in daily.items()} == dict.fromkeys(daily, EMBEDDED)
    assert {len(cases & SERVERS) for cases in daily.values()} == {1}
    assert set().union(*daily.values()) >= SERVERS, "each server meets a part of the tests"
    for name, cases in daily.items():
        assert cases.isdisjoint(deep[name])
        assert cases | deep[name] >= {*SERVERS, ("TestMemory", "blocking"), ("TestSQLite", "async")}


def collected(marks: str) -> dict[str, set[tuple[str, str]]]:
    """Return the classes and modes in which each test of a contract is selected, by its name."""
    words = [
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "-m",
        marks,
        CONTRACT,
    ]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True, text=True)
    tests: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for kind, name, mode in re.findall(r"::(\w+)::(\w+)\[(\w+)", done.stdout):
        tests[name].add((kind, mode))
    return tests


@pytest.mark.parametrize(
    ("backend", "backends", "repeated"),
    [
        ("file", {"file", "sqlite"}, True),
        ("file", {"file", "memory"}, False),
        ("named", {"named", "memory"}, True),
        ("memory", {"memory", "sqlite"}, False),
        ("redis", {"redis"}, False),
    ],
)
def test_a_backend_is_left_out_only_where_another_proves_the_same(
    request: pytest.FixtureRequest, backend: str, backends: set[str], repeated: bool
) -> None:
    case = Case(request.node, ("test_it",), backend, "")

    assert is_repeated(case, backends, server_of(case.test, backends)) is repeated


def test_a_mode_is_left_out_only_where_another_backend_has_it(request: pytest.FixtureRequest) -> None:
    case = Case(request.node, ("test_it",), "memory", "blocking")

    assert is_other_mode(case, {"memory", "sqlite"})
    assert not is_other_mode(case, {"memory", "redis"})


@pytest.mark.parametrize(
    ("path", "above"),
    [
        ("tests/engine/test_queue.py", True),
        ("tests/adapters/a2a/test_a2a.py", True),
        ("tests/adapters/google_adk/test_sessions.py", False),
        ("tests/stores/redis/test_contract.py", False),
    ],
)
def test_tests_of_stores_and_those_that_choose_their_backends_are_whole(path: str, above: bool) -> None:
    assert is_above_stores(ROOT / path) is above


def test_a_test_meets_the_same_server_in_each_run() -> None:
    servers = [
        server_of(("test_file.py", "", f"test_{number}"), {"redis", "postgres"}) for number in range(6)
    ]

    assert servers == ["redis", "redis", "redis", "redis", "postgres", "postgres"]


def test_files_with_a_long_test_come_first_and_stay_whole(request: pytest.FixtureRequest) -> None:
    def item(file: str, *marks: str) -> pytest.Item:
        made: pytest.Item = SimpleItem.from_parent(request.session, name=f"{file}{marks}")
        made.path = Path(file)
        for mark in marks:
            made.add_marker(mark)
        return made

    short, quick, slow, other = item("a"), item("b"), item("b", "slow"), item("c")

    assert long_files_first([short, quick, slow, other]) == [quick, slow, short, other]
