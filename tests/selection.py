"""Selections of the suite by option: the inner loop, and what needs no server.

`--serverless` leaves out the tests that need a server. A test needs one if it takes one of the server
fixtures, if a parameter names a kind of server, or if its folder or a mark says so.

`--quick` leaves out more, so that the rest ends within a minute on two cores:

- the folders of `ELSEWHERE`, and every backend but memory and SQLite;
- in contracts, one of the two modes: memory is tested with `async`, SQLite with `blocking`;
- tests marked `slow` or `searched`, and those that `slow.txt` lists.

`make test` runs all of them, on the backends that `tests/repeats.py` chooses. `--note-slow` adds the slow
tests of a run to the list and drops the fast ones.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

from tests.processes import spent_s

TESTS = Path(__file__).parent

SERVER_FIXTURES = frozenset(
    f"{kind}_{part}"
    for kind in ("postgres", "redis", "valkey", "redis_cluster")
    for part in ("server", "url")
) | {"redis_cluster"}
SERVER_PARAMETER = re.compile(r"(?<![a-z])(redis|valkey|cluster|postgres|postgresql|rediss)(?![a-z])")
SERVER_FOLDERS = (
    *("architecture", "bench", "browser", "clients", "crashes", "docs", "tools"),
    *("adapters/a2a", "adapters/agent_framework", "adapters/claude_agent", "adapters/key_value"),
    *("adapters/mcp_events", "adapters/openai_agents", "adapters/opentelemetry", "adapters/pydantic_ai"),
    "server",
    *("stores/http", "stores/postgres", "stores/redis", "testing/chaos", "testing/servers"),
)
"""Folders that start servers of their own, or whose tests last long and depend little on the Python."""

ELSEWHERE = ("adapters", "cli", "stores/file", "stores/wrappers", "testing")
"""Folders of one backend, one framework or one tool. While you change it, run its folder."""
OTHER_BACKEND = re.compile(
    r"(?<![a-z])(cache|disk|encrypted|file|named|plain|tiered)(?![a-z])"
    r"|^Test(FarMemory|File|PassedSpace|SqliteFull)::"
)
"""Parameters and classes of the backends that the inner loop leaves out."""
OTHER_MODE = re.compile(
    r"^Test\w*Memory::.*(?<![a-z])blocking(?![a-z])|^Test\w*S(QLite|qlite)\w*::.*(?<![a-z])async(?![a-z])"
)
"""Tests of contracts that the inner loop runs in the other mode only."""
LEFT_OUT_MARKS = ("slow", "searched")
SLOW_TESTS = TESTS / "slow.txt"
SLOW_S = 0.2
"""Seconds of processor time, with those of child processes, from which a test is slow."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--serverless", action="store_true", help="select the tests that need no server")
    parser.addoption("--quick", action="store_true", help="select the inner loop: fast, on memory and SQLite")
    parser.addoption("--note-slow", action="store_true", help="bring tests/slow.txt up to date; needs -n 0")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole folders before they are imported."""
    if not collection_path.is_dir():
        return None
    return True if is_in(collection_path, left_out_folders(config)) else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Leave out what the options leave out, and order the rest after all others have."""
    leave_out(config, items)
    done = yield
    items[:] = long_files_first(items)
    return done


def long_files_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests with those of files that have a long one first, so that no worker begins it at the end.

    Tests of a file stay together, because they share servers.
    """
    long = {item.path for item in items if item.get_closest_marker("slow")}
    return sorted(items, key=lambda item: item.path not in long)


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    folders = left_out_folders(config)
    if not folders:
        return
    quick: bool = config.getoption("--quick")
    unselected = [
        item
        for item in items
        if is_in(item.path, folders) or needs_server(item) or (quick and not is_inner_loop(item))
    ]
    left_out = set(unselected)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=unselected)


def left_out_folders(config: pytest.Config) -> tuple[str, ...]:
    """Return the folders that the options leave out."""
    if config.getoption("--quick"):
        return SERVER_FOLDERS + ELSEWHERE
    return SERVER_FOLDERS if config.getoption("--serverless") else ()


@cache
def is_in(path: Path, folders: tuple[str, ...]) -> bool:
    """Return whether a path is in one of the folders of tests."""
    return any(path.is_relative_to(TESTS / folder) for folder in folders)


def needs_server(item: pytest.Item) -> bool:
    """Return whether a test starts a server or asks for one."""
    _, _, parameters = item.name.partition("[")
    return bool(
        item.get_closest_marker("server")
        or SERVER_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        or SERVER_PARAMETER.search(parameters)
    )


def is_inner_loop(item: pytest.Item) -> bool:
    """Return whether a test is fast and on memory or SQLite, or on no store."""
    if name_of(item) in slow_tests() or any(item.get_closest_marker(mark) for mark in LEFT_OUT_MARKS):
        return False
    _, _, parameters = item.name.partition("[")
    kind = f"{item.cls.__name__}::" if isinstance(item, pytest.Function) and item.cls else ""
    return not any(left_out.search(f"{kind}{parameters}") for left_out in (OTHER_BACKEND, OTHER_MODE))


def name_of(item: pytest.Item) -> str:
    """Return the name of a test's function as the list of slow tests has it."""
    path = item.path.relative_to(TESTS) if item.path.is_relative_to(TESTS) else item.path
    return f"{path.as_posix()}::{item.name.partition('[')[0]}"


@cache
def slow_tests() -> frozenset[str]:
    """Return the names of the slow tests."""
    return frozenset(SLOW_TESTS.read_text(encoding="utf-8").split())


seconds: dict[str, float] = {}
"""The longest time that each function of a test took in this run."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before_s = processor_s()
    done = yield
    name = name_of(item)
    seconds[name] = max(seconds.get(name, 0.0), processor_s() - before_s)
    return done


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--note-slow"):
        fast = {name for name, taken_s in seconds.items() if taken_s < SLOW_S / 2}
        slow = {name for name, taken_s in seconds.items() if taken_s >= SLOW_S}
        SLOW_TESTS.write_text("".join(f"{name}\n" for name in sorted(slow_tests() - fast | slow)), "utf-8")


def processor_s() -> float:
    """Return the processor time of this process, of its children that have ended and of forked programs."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + spent_s()
