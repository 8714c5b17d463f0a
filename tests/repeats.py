"""Cases that repeat a test on one more backend, which only `make deep` runs.

What stands above the stores reaches each of them by the store protocol, and the store contract proves every
backend whole. So `make test` runs a test above the stores on memory, on SQLite and on one server, and marks
its other cases `deep`. The server depends on the test's name: each server meets a part of the tests, and a
test meets the same one in every run. In contracts memory is tested with `async`, SQLite with `blocking`.

Tests of the stores themselves, and tests whose parameters name the backends that they are about, are whole.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

ABOVE_STORES = ("adapters", "engine", "managers", "memories", "sessions", "sync", "typed", "workspace")
"""Folders of tests that reach a store by the engine only."""
CHOOSES_ITSELF = "adapters/google_adk"
"""A folder that `make adk` runs whole; `tests/adapters/test_google_adk.py` chooses its backends."""
BACKEND_FIXTURES = ("any_url", "ks", "place", "reopened", "shared_place", "shared_url", "url")
"""Fixtures that have a backend's name as their parameter."""
SERVERS = ("postgres", "redis", "redis_cluster", "valkey")
REPEATED = {"cache": "disk", "file": "sqlite", "named": "memory", "plain": "memory"}
"""Places whose tests repeat those on another place, by name."""
CLASSES = {
    "TestFile": "file",
    "TestMemory": "memory",
    "TestPassedSpace": "passed",
    "TestPostgres": "postgres",
    "TestRedis": "redis",
    "TestSQLite": "sqlite",
}
"""The classes of contracts, with the backends that they are about."""
OTHER_MODES = {("memory", "blocking"), ("passed", "blocking"), ("sqlite", "async")}
"""Modes of contracts that another class proves."""
OTHER_STORE_MODES = {
    ("TestEncryptedMemory", "blocking"),
    ("TestRedisCluster", "blocking"),
    ("TestThreeTiers", "async"),
    ("TestTieredMemory", "blocking"),
    ("TestValkey", "blocking"),
}
"""Contracts of stores in the mode in which their code is that of other stores or of their own other mode."""


@dataclass(frozen=True, slots=True)
class Case:
    """A test on one backend. The cases of a test differ in nothing but the backend and the mode."""

    item: pytest.Item
    test: tuple[str, ...]
    backend: str
    mode: str


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the repeated cases before pytest selects by marks."""
    for item in repeats(items):
        item.add_marker(pytest.mark.deep)


def repeats(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the cases that repeat another case of their test."""
    tests: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for item in items:
        if case := case_of(item):
            tests[case.test].append(case)
        elif is_other_store_mode(item):
            yield item
    for test, cases in tests.items():
        backends = {case.backend for case in cases}
        server = server_of(test, backends)
        for case in cases:
            if is_repeated(case, backends, server) or is_other_mode(case, backends):
                yield case.item


def case_of(item: pytest.Item) -> Case | None:
    """Return a test's case, or None if its backend is no matter of parameters or classes."""
    if not isinstance(item, pytest.Function) or not is_above_stores(item.path):
        return None
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    mode = str(parameters.pop("mode", ""))
    kind = item.cls.__name__ if item.cls else ""
    backend = CLASSES.get(kind)
    if backend is None:
        named = [name for name in BACKEND_FIXTURES if name in parameters]
        if not named:
            return None
        backend = str(parameters.pop(named[0]))
    else:
        kind = ""
    others = (f"{name}={value_id(item, value)}" for name, value in sorted(parameters.items()))
    return Case(item, (item.path.name, kind, item.originalname, *others), backend, mode)


def value_id(item: pytest.Function, value: object) -> str:
    """Return text that is the same for equal parameters of one collection."""
    return value if isinstance(value, str) else f"{type(value).__name__}@{id(value)}"


def server_of(test: Sequence[str], backends: set[str]) -> str:
    """Return the server on which a test runs, by its names only, or nothing if it runs on none."""
    servers = [name for name in SERVERS if name in backends]
    return servers[zlib.crc32("::".join(test[:3]).encode()) % len(servers)] if servers else ""


def is_repeated(case: Case, backends: set[str], server: str) -> bool:
    """Return whether another backend of the test proves the same."""
    if case.backend in SERVERS:
        return case.backend != server
    return REPEATED.get(case.backend) in backends


def is_other_mode(case: Case, backends: set[str]) -> bool:
    """Return whether the test runs in this mode on another backend."""
    return (case.backend, case.mode) in OTHER_MODES and {"memory", "sqlite"} <= backends


@cache
def is_above_stores(path: Path) -> bool:
    """Return whether a file of tests is in one of the folders above the stores."""
    if not path.is_relative_to(TESTS) or path.is_relative_to(TESTS / CHOOSES_ITSELF):
        return False
    return path.relative_to(TESTS).parts[0] in ABOVE_STORES


def is_other_store_mode(item: pytest.Item) -> bool:
    """Return whether a test of a store's contract has a mode that another store's proves."""
    if not isinstance(item, pytest.Function) or item.cls is None or not hasattr(item, "callspec"):
        return False
    return (item.cls.__name__, item.callspec.params.get("mode")) in OTHER_STORE_MODES
