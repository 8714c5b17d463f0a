"""LangGraph's own tests of its stores pass on `KeepstateStore`, wherever that is, but for those told here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.adapters.conftest import url_of
from tests.adapters.langgraph.sdists import installed, unpacked

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PLUGINS = ("pytest-asyncio", "pytest-mock", "pytest-retry")
_OPTIONS = (
    *("-p", "official_store", "-p", "no:randomly", "-p", "no:cacheprovider"),
    *("-o", "addopts=", "-o", "asyncio_mode=auto"),
)

_IN_A_LOOP = "wants blocking calls refused in an event loop; ours work there"
_EXPIRED = "makes an item expire by SQL; and of ours what has expired is never given"


@dataclass(frozen=True)
class Suite:
    """Tests of one of LangGraph's stores: how many there are in a version, and which are to fail."""

    package: str
    files: tuple[str, ...]
    counts: dict[str, int]
    different: dict[str, str]


SUITES = {
    "InMemoryStore": Suite(
        "langgraph-checkpoint",
        ("tests/test_store.py",),
        {"4.3.2": 117},
        {"test_embed_with_path": "wants items without a vector at the end of what a query finds"},
    ),
    "SqliteStore": Suite(
        "langgraph-checkpoint-sqlite",
        ("tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"),
        {"3.1.2": 153},
        {
            "test_vector_store_initialization": "looks for a table of vectors in the connection",
            "test_sql_injection_vulnerability": "wants keys of filters refused that are no words",
            "test_no_running_loop": _IN_A_LOOP,
            "test_ttl_override_default": "wants no refresh on reading; the interface says refresh",
        },
    ),
    "PostgresStore": Suite(
        "langgraph-checkpoint-postgres",
        ("tests/test_store.py", "tests/test_async_store.py"),
        {"3.2.0": 121},
        {
            "test_batch_list_namespaces_ops": "gives a text for the labels of a suffix, which finds nothing",
            "test_no_running_loop": _IN_A_LOOP,
            "test_abatch_uses_single_pool_checkout": "counts what is taken from psycopg's pool",
            "test_omit_expired_disabled_preserves_expired_rows": _EXPIRED,
            "test_omit_expired_filters_read_paths": _EXPIRED,
            "test_omit_expired_refresh_ttl_only_refreshes_live_rows": _EXPIRED,
            "test_omit_expired_search_pagination": _EXPIRED,
        },
    ),
}
"""Whoever changes a row changes the table of docs/how-to/langgraph.md."""


@pytest.mark.slow
def test_langgraphs_tests_of_its_store_in_memory_pass(tmp_path: Path) -> None:
    assert_as_told(SUITES["InMemoryStore"], "memory://", tmp_path)


@pytest.mark.theirs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
@pytest.mark.parametrize("suite", SUITES)
def test_langgraphs_tests_of_its_stores_pass(
    suite: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = url_of(kind, request, tmp_path)
    postgres = request.getfixturevalue("postgres_server").url if suite == "PostgresStore" else ""

    assert_as_told(SUITES[suite], url, tmp_path, postgres)


def assert_as_told(suite: Suite, url: str, folder: Path, postgres: str = "") -> None:
    """Run a suite on a store, and refuses another count, or a failure that is not told of."""
    sources = unpacked(suite.package, folder)
    plugged = installed(folder / "plugged", *PLUGINS)
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_OPTIONS, f"--junitxml={report}", *suite.files],
        cwd=sources,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (HERE, plugged, ROOT / "src"))),
            "KEEPSTATE_URL": url,
            "KEEPSTATE_POSTGRES": postgres,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    names = {case.attrib["name"].partition("[")[0] for case in failed}
    print(f"{suite.package}: {len(cases)} tests, {len(cases) - len(failed)} passed")

    assert names == set(suite.different), done.stdout[-3000:]
    assert len(cases) == suite.counts.get(version(suite.package), len(cases))
